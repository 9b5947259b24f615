"""`flyball model`: the versions of models in the registry of a node or domain."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from flyball.cli import model_actions as actions
from flyball.cli.output import shown
from flyball.cli.session import WRONG_USE, AsJson, Url, fail, run
from flyball.client.api import DEFAULT_URL

app = typer.Typer(
    name="model", help="List, compare, publish and choose versions of models in the registry.", no_args_is_help=True
)


class Kind(enum.StrEnum):
    """Kinds of models."""

    PLANT = "plant"
    DESIGN = "design"
    PROFILE = "profile"
    CAPACITY = "capacity"
    SERVICE_TIMES = "service-times"


class State(enum.StrEnum):
    """States of versions."""

    CANDIDATE = "candidate"
    SHADOW = "shadow"
    IN_FORCE = "in_force"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"


class FirstState(enum.StrEnum):
    """States that a version may be published in."""

    CANDIDATE = "candidate"
    SHADOW = "shadow"
    IN_FORCE = "in_force"


KindName = Annotated[Kind, typer.Argument(metavar="KIND", help="plant, design, profile, capacity or service-times.")]
ScopeName = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE", help="domain, node:NAME, queue:NAME, queue:VHOST/NAME, application:NAME or loop:NAME."
    ),
]
VersionNumber = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Number of the version.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason for the log of changes.")]
Force = Annotated[
    bool, typer.Option("--force", help="Overrule that the version is unsound, rejected or quarantined.")
]


@app.command("list")
def list_(
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only models of this kind.")] = None,
    scope: Annotated[
        str | None, typer.Option("--scope", metavar="SCOPE", help="Only the models for this scope.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only versions in this state.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All kept versions, not only those in use.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the models in force and in shadow.

    Example: flyball model list --kind capacity
    """
    query = {"kind": kind and kind.value, "scope": scope, "state": state and state.value}
    chosen = {name: value for name, value in query.items() if value is not None}
    run(url, as_json, lambda api, out: actions.list_models(api, chosen, is_all, out))


@app.command()
def show(
    kind: KindName,
    scope: ScopeName,
    version: Annotated[
        int | None, typer.Option("--version", min=1, metavar="NUMBER", help="Show this version only.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show a model: versions, evidence, and why each one came and went.

    Example: flyball model show capacity queue:orders
    """
    run(url, as_json, lambda api, out: actions.show_model(api, kind.value, scope, version, out))


@app.command()
def diff(
    kind: KindName,
    scope: ScopeName,
    earlier: Annotated[
        int | None, typer.Argument(metavar="[FROM]", min=1, help="The earlier version; default: the previous one.")
    ] = None,
    later: Annotated[
        int | None, typer.Argument(metavar="[TO]", min=1, help="The later version; default: the one in force.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two versions: each parameter, with its change in percent.

    Example: flyball model diff capacity queue:orders 1 2
    """
    given = {"from": earlier, "to": later}
    chosen = {name: number for name, number in given.items() if number is not None}
    run(url, as_json, lambda api, out: actions.diff_versions(api, kind.value, scope, chosen, out))


@app.command("import")
def import_(
    kind: KindName,
    scope: ScopeName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON file of the model; - is standard input.")],
    evidence: Annotated[
        str | None, typer.Option("--evidence", metavar="FILE", help="JSON file: traces, samples and tests.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="FILE", help="JSON file with is_sound and reasons.")
    ] = None,
    state: Annotated[FirstState, typer.Option("--state", help="State of the new version.")] = FirstState.IN_FORCE,
    reason: Reason = "",
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish a file as a new version, by default in force at once.

    Example: flyball model import capacity queue:orders capacity.json
    """
    files = {"evidence": evidence, "certificate": certificate}
    fields = {name: actions.read_json(path) for name, path in files.items() if path is not None}
    fields |= {"state": state.value, "reason": reason, "force": force}
    run(url, as_json, lambda api, out: actions.import_file(api, kind.value, scope, file, fields, out))


@app.command()
def export(
    kind: KindName,
    scope: ScopeName,
    version: Annotated[
        int | None, typer.Option("--version", min=1, metavar="NUMBER", help="Default: the version in force.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write the document of a version, as the file that it was published from.

    Example: flyball model export capacity queue:orders --out capacity.json
    """
    run(url, as_json, lambda api, out: actions.export_file(api, kind.value, scope, version, file, out))


@app.command()
def activate(
    kind: KindName,
    scope: ScopeName,
    version: VersionNumber,
    shadow: Annotated[bool, typer.Option("--shadow", help="Run it in shadow first.")] = False,
    reason: Reason = "",
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a version in force.

    Example: flyball model activate capacity queue:orders 2
    """
    body = {"state": "shadow" if shadow else "in_force", "reason": reason, "force": force}
    run(url, as_json, lambda api, out: actions.change_state(api, kind.value, scope, version, body, out))


@app.command()
def reject(
    kind: KindName,
    scope: ScopeName,
    version: VersionNumber,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Reject a version that is not in force: nothing puts it in force again without --force.

    Example: flyball model reject capacity queue:orders 3 --reason "measured during a backup"
    """
    body = {"state": "rejected", "reason": reason}
    run(url, as_json, lambda api, out: actions.change_state(api, kind.value, scope, version, body, out))


@app.command()
def pin(
    kind: KindName,
    scope: ScopeName,
    version: Annotated[
        int | None, typer.Argument(metavar="[VERSION]", min=1, help="Number of the version; default: in force.")
    ] = None,
    reason: Reason = "",
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a version in force and keep it there until `flyball model unpin`.

    Example: flyball model pin capacity queue:orders 1
    """
    body = {"version": version, "reason": reason, "force": force}
    run(url, as_json, lambda api, out: actions.pin_version(api, kind.value, scope, body, out))


@app.command()
def unpin(
    kind: KindName, scope: ScopeName, reason: Reason = "", url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Let newer versions take over again.

    Example: flyball model unpin capacity queue:orders
    """
    run(url, as_json, lambda api, out: actions.unpin_version(api, kind.value, scope, reason, out))


@app.command()
def rollback(
    kind: KindName,
    scope: ScopeName,
    to: Annotated[
        int | None, typer.Option("--to", min=1, metavar="VERSION", help="Default: the version in force before.")
    ] = None,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Quarantine the version in force and return to the one before it.

    Example: flyball model rollback capacity queue:orders --reason "members are overloaded"
    """
    body = {"to": to, "reason": reason}
    run(url, as_json, lambda api, out: actions.roll_back(api, kind.value, scope, body, out))


@app.command()
def delete(
    kind: KindName,
    scope: ScopeName,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion.")] = False,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a model with all of its versions; consumers use their defaults.

    Example: flyball model delete capacity queue:orders --yes
    """
    if not yes:
        fail(f"all versions of {kind} {shown(scope)} are deleted. Use --yes to confirm.", WRONG_USE)
    run(url, as_json, lambda api, out: actions.delete_model(api, kind.value, scope, reason, out))
