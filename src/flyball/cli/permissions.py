"""`flyball permission ...`: what users may do in virtual hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DEFAULT_SERVER, DONE, AsJson, Server, run
from flyball.client.sync import Client
from flyball.model import DEFAULT_VHOST

app = typer.Typer(name="permission", help="Set, clear and list what users may do.", no_args_is_help=True)

UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
Vhost = Annotated[str, typer.Option("--vhost", metavar="NAME", help="The virtual host.")]
_ACTIONS = ("configure", "write", "read")


def set_permission(client: Client, user: str, vhost: str, patterns: tuple[str, str, str], out: Output) -> int:
    permission: dict[str, Any] = {"user": user, "vhost": vhost, **dict(zip(_ACTIONS, patterns, strict=True))}
    client.manage("permission.set", **permission)
    out.tell(f"set the permission of {shown(user)} in {shown(vhost)}", permission)
    return DONE


def clear_permission(client: Client, user: str, vhost: str, out: Output) -> int:
    client.manage("permission.clear", user=user, vhost=vhost)
    text = f"cleared the permission of {shown(user)} in {shown(vhost)}"
    out.tell(text, {"user": user, "vhost": vhost, "cleared": True})
    return DONE


def list_permissions(client: Client, user: str | None, vhost: str | None, out: Output) -> int:
    permissions = client.manage("permission.list", user=user, vhost=vhost)
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
    configure: Annotated[str, typer.Option("--configure", help="Names that it may declare and delete.")] = "",
    write: Annotated[str, typer.Option("--write", help="Names that it may write to.")] = "",
    read: Annotated[str, typer.Option("--read", help="Names that it may read from.")] = "",
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Let a user into a virtual host and say what it may do there.

    A pattern is a regular expression that fits anywhere in the name of a queue or exchange, and allows nothing if
    it is empty. What was set before is replaced.

    Example: flyball permission set alice --vhost shop --write '^orders$' --read '.*'
    """
    run(server, None, as_json, lambda client, out: set_permission(client, user, vhost, (configure, write, read), out))


@app.command()
def clear(
    user: UserName, vhost: Vhost = DEFAULT_VHOST, server: Server = DEFAULT_SERVER, as_json: AsJson = False
) -> None:
    """Shut a user out of a virtual host.

    Example: flyball permission clear alice --vhost shop
    """
    run(server, None, as_json, lambda client, out: clear_permission(client, user, vhost, out))


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only those of one user.")] = None,
    vhost: Annotated[
        str | None, typer.Option("--vhost", metavar="NAME", help="Only those in one virtual host.")
    ] = None,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """List what users may do.

    Example: flyball permission list --user alice
    """
    run(server, None, as_json, lambda client, out: list_permissions(client, user, vhost, out))
