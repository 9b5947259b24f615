"""`flyball vhost ...`: virtual hosts, each with queues, exchanges, permissions and policies of its own."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, AsJson, Url, fail, run
from flyball.client.api import DEFAULT_URL, Api
from flyball.errors import VhostNameTaken

app = typer.Typer(name="vhost", help="Add, list and delete virtual hosts.", no_args_is_help=True)

VhostName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the virtual host.")]


_CREATED = 201


def add_vhost(api: Api, name: str, out: Output) -> int:
    if api.put("vhosts", name).status != _CREATED:
        raise VhostNameTaken(name)
    out.show(f"added vhost {shown(name)}", {"name": name})
    return DONE


def list_vhosts(api: Api, out: Output) -> int:
    vhosts = api.get("vhosts", columns="name")
    if out.is_json:
        for vhost in vhosts:
            out.json(vhost)
    elif vhosts:
        out.table(("name",), [(vhost["name"],) for vhost in vhosts])
    return DONE


def delete_vhost(api: Api, name: str, out: Output) -> int:
    api.delete("vhosts", name)
    out.show(f"deleted vhost {shown(name)}", {"name": name, "deleted": True})
    return DONE


@app.command()
def add(name: VhostName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Add a virtual host.

    No user has permissions in it yet: see flyball permission set.

    Example: flyball vhost add shop
    """
    run(url, as_json, lambda api, out: add_vhost(api, name, out))


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all virtual hosts.

    Example: flyball vhost list
    """
    run(url, as_json, list_vhosts)


@app.command()
def delete(
    name: VhostName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a virtual host with its queues, exchanges, messages, permissions and policies. Asks for confirmation.

    Example: flyball vhost delete shop --yes
    """
    run(url, as_json, partial(_confirm_and_delete, name, yes))


def _confirm_and_delete(name: str, yes: bool, api: Api, out: Output) -> int:
    if not yes:
        if not sys.stdin.isatty():
            fail(f"all queues and messages of {shown(name)} are deleted with it. Use --yes to confirm.")
        typer.confirm(f"Delete {shown(name)} and all its queues and messages?", abort=True, err=True)
    return delete_vhost(api, name, out)
