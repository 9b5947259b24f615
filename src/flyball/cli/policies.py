"""`flyball policy`: settings for queues or exchanges with matching names."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, WRONG_USE, AsJson, Url, fail, run
from flyball.client.api import DEFAULT_URL, Api
from flyball.model import DEFAULT_VHOST

app = typer.Typer(name="policy", help="Set, clear and list policies.", no_args_is_help=True)

PolicyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]
Vhost = Annotated[str, typer.Option("--vhost", metavar="NAME", help="The virtual host.")]


class ApplyTo(enum.StrEnum):
    """Kinds of objects that a policy applies to."""

    ALL = "all"
    QUEUES = "queues"
    EXCHANGES = "exchanges"


def set_policy(api: Api, policy: dict[str, Any], out: Output) -> int:
    api.put("policies", policy["vhost"], policy["name"], document={**policy, "apply-to": policy["apply_to"]})
    out.show(f"set policy {shown(policy['name'])} in {shown(policy['vhost'])}", policy)
    return DONE


def clear_policy(api: Api, name: str, vhost: str, out: Output) -> int:
    api.delete("policies", vhost, name)
    out.show(f"cleared policy {shown(name)} in {shown(vhost)}", {"name": name, "vhost": vhost, "cleared": True})
    return DONE


def list_policies(api: Api, vhost: str | None, out: Output) -> int:
    found = api.get("policies") if vhost is None else api.get("policies", vhost)
    names = ("name", "vhost", "pattern", "priority", "definition")
    policies = [{"apply_to": document["apply-to"], **{name: document[name] for name in names}} for document in found]
    if out.is_json:
        for policy in policies:
            out.json(policy)
    elif policies:
        out.table(
            ("name", "vhost", "pattern", "apply to", "priority", "definition"),
            [
                (
                    policy["name"],
                    policy["vhost"],
                    policy["pattern"],
                    policy["apply_to"],
                    policy["priority"],
                    json.dumps(policy["definition"], ensure_ascii=False),
                )
                for policy in policies
            ],
        )
    return DONE


@app.command("set")
def set_(
    name: PolicyName,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Regular expression of the names that the policy applies to.")
    ],
    definition: Annotated[
        str, typer.Argument(metavar="DEFINITION", help="Policy keys and values, as a JSON object.")
    ],
    vhost: Vhost = DEFAULT_VHOST,
    apply_to: Annotated[
        ApplyTo, typer.Option("--apply-to", help="Whether it applies to queues, exchanges or both.")
    ] = ApplyTo.ALL,
    priority: Annotated[
        int, typer.Option("--priority", help="The matching policy with the highest priority applies.")
    ] = 0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Set a policy. It applies immediately, also to existing queues and exchanges.

    Example: flyball policy set short '^log' '{"max-length": 1000}' --apply-to queues
    """
    policy = {
        "name": name,
        "vhost": vhost,
        "pattern": pattern,
        "apply_to": apply_to.value,
        "priority": priority,
        "definition": _read(definition),
    }
    run(url, as_json, lambda api, out: set_policy(api, policy, out))


def _read(definition: str) -> dict[str, Any]:
    try:
        found = json.loads(definition)
    except (ValueError, RecursionError) as error:
        fail(f"DEFINITION is not valid JSON: {error}.", WRONG_USE)
    if not isinstance(found, dict):
        fail('DEFINITION is not a JSON object, such as {"max-length": 1000}.', WRONG_USE)
    return found


@app.command()
def clear(name: PolicyName, vhost: Vhost = DEFAULT_VHOST, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a policy.

    Example: flyball policy clear short
    """
    run(url, as_json, lambda api, out: clear_policy(api, name, vhost, out))


@app.command("list")
def list_(
    vhost: Annotated[
        str | None, typer.Option("--vhost", metavar="NAME", help="Only policies of this virtual host.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List policies by virtual host, highest priority first.

    Example: flyball policy list
    """
    run(url, as_json, lambda api, out: list_policies(api, vhost, out))
