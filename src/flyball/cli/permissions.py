"""`flyball permission`: permissions of users in vhosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, AsJson, Url, run
from flyball.client.api import DEFAULT_URL, Api
from flyball.model import DEFAULT_VHOST

app = typer.Typer(name="permission", help="Set, clear and list permissions of users.", no_args_is_help=True)

UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
Vhost = Annotated[str, typer.Option("--vhost", metavar="NAME", help="The virtual host.")]
_ACTIONS = ("configure", "write", "read")


def set_permission(api: Api, user: str, vhost: str, patterns: tuple[str, str, str], out: Output) -> int:
    permission: dict[str, Any] = {"user": user, "vhost": vhost, **dict(zip(_ACTIONS, patterns, strict=True))}
    api.put("permissions", vhost, user, document=dict(zip(_ACTIONS, patterns, strict=True)))
    out.show(f"set the permission of {shown(user)} in {shown(vhost)}", permission)
    return DONE


def clear_permission(api: Api, user: str, vhost: str, out: Output) -> int:
    api.delete("permissions", vhost, user)
    text = f"cleared the permission of {shown(user)} in {shown(vhost)}"
    out.show(text, {"user": user, "vhost": vhost, "cleared": True})
    return DONE


def list_permissions(api: Api, user: str | None, vhost: str | None, out: Output) -> int:
    found = api.get("permissions") if user is None else api.get("users", user, "permissions")
    permissions = [permission for permission in found if vhost in (None, permission["vhost"])]
    if out.is_json:
        for permission in permissions:
            out.json(permission)
    elif permissions:
        columns = ("user", "vhost", *_ACTIONS)
        out.table(columns, [[permission[column] for column in columns] for permission in permissions])
    return DONE


@app.command("set")
def set_(
    user: UserName,
    vhost: Vhost = DEFAULT_VHOST,
    configure: Annotated[
        str, typer.Option("--configure", help="Regular expression of the names that the user may declare and delete.")
    ] = "",
    write: Annotated[
        str,
        typer.Option(
            "--write", help="Regular expression of the names that the user may write to, by publishing or binding."
        ),
    ] = "",
    read: Annotated[
        str, typer.Option("--read", help="Regular expression of the names that the user may read from.")
    ] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Set the permissions of a user in a virtual host.

    A pattern is a regular expression searched in the names of queues and exchanges; an empty pattern
    matches nothing. Earlier permissions are replaced.

    Example: flyball permission set alice --vhost shop --write '^orders$' --read '.*'
    """
    run(url, as_json, lambda api, out: set_permission(api, user, vhost, (configure, write, read), out))


@app.command()
def clear(user: UserName, vhost: Vhost = DEFAULT_VHOST, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Clear the permissions of a user in a virtual host.

    Example: flyball permission clear alice --vhost shop
    """
    run(url, as_json, lambda api, out: clear_permission(api, user, vhost, out))


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only permissions of this user.")] = None,
    vhost: Annotated[
        str | None, typer.Option("--vhost", metavar="NAME", help="Only permissions in this virtual host.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List permissions.

    Example: flyball permission list --user alice
    """
    run(url, as_json, lambda api, out: list_permissions(api, user, vhost, out))
