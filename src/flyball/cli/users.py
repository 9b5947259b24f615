"""`flyball user ...`: those who may log in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DEFAULT_SERVER, DONE, WRONG_USE, AsJson, Server, fail, run
from flyball.client.sync import Client

app = typer.Typer(name="user", help="Add, change, list and delete users.", no_args_is_help=True)

UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
PasswordFile = Annotated[
    str | None, typer.Option("--password-file", metavar="FILE", help="File with the password; - is standard input.")
]
PlainPassword = Annotated[
    str | None,
    typer.Option("--password", metavar="TEXT", help="The password. Others can see it in the list of processes."),
]
NoPassword = Annotated[
    bool, typer.Option("--no-password", help="No password: it can log in with a certificate only.")
]


def add_user(client: Client, name: str, password: str | None, tags: list[str], out: Output) -> int:
    client.manage("user.add", name=name, password=password, tags=tags)
    out.tell(f"added user {shown(name)}", {"name": name, "tags": tags})
    return DONE


def change_password(client: Client, name: str, password: str | None, out: Output) -> int:
    client.manage("user.password", name=name, password=password)
    what = "removed" if password is None else "changed"
    out.tell(f"{what} the password of {shown(name)}", {"name": name, "has_password": password is not None})
    return DONE


def set_tags(client: Client, name: str, tags: list[str], out: Output) -> int:
    client.manage("user.tags", name=name, tags=tags)
    out.tell(f"{shown(name)} has the tags {shown(', '.join(tags)) or 'none'}", {"name": name, "tags": tags})
    return DONE


def delete_user(client: Client, name: str, out: Output) -> int:
    client.manage("user.delete", name=name)
    out.tell(f"deleted user {shown(name)}", {"name": name, "deleted": True})
    return DONE


def list_users(client: Client, out: Output) -> int:
    users = client.manage("user.list")
    if out.is_json:
        for user in users:
            out.json(user)
    elif users:
        out.table(
            ("name", "password", "tags"),
            [(user["name"], "yes" if user["has_password"] else "no", ", ".join(user["tags"])) for user in users],
        )
    return DONE


def read_password(plain: str | None, file: str | None, none: bool) -> str | None:
    """Return the password from where the options say, or ask for it twice, if that can be done unseen."""
    if (plain is not None) + (file is not None) + none > 1:
        fail("give one of --password-file, --password and --no-password.", WRONG_USE)
    if none:
        return None
    if plain is not None:
        return plain
    if file is not None:
        return _without_line_end(_read(file))
    if not sys.stdin.isatty():
        fail("give the password with --password-file; - is standard input.", WRONG_USE)
    asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return asked


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        fail(f"cannot read {shown(file)}: {error.strerror}.")
    except ValueError:
        fail(f"{shown(file)} is no UTF-8 text.")


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


@app.command()
def add(
    name: UserName,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="A tag, such as administrator. May be given several times.")
    ] = None,
    password_file: PasswordFile = None,
    password: PlainPassword = None,
    no_password: NoPassword = False,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Add a user. Asks for the password unless told where to find it.

    It may do nothing yet: see flyball permission set.

    Example: flyball user add alice --tag administrator
    """
    secret = read_password(password, password_file, no_password)
    run(server, None, as_json, lambda client, out: add_user(client, name, secret, tag or [], out))


@app.command()
def password(
    name: UserName,
    password_file: PasswordFile = None,
    password: PlainPassword = None,
    no_password: NoPassword = False,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Change the password of a user. Asks for it unless told where to find it.

    Example: flyball user password alice
    """
    secret = read_password(password, password_file, no_password)
    run(server, None, as_json, lambda client, out: change_password(client, name, secret, out))


@app.command()
def tags(
    name: UserName,
    tag: Annotated[
        list[str] | None, typer.Argument(metavar="TAG...", help="All its tags; none to clear them.")
    ] = None,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Give a user just these tags.

    Example: flyball user tags alice administrator
    """
    run(server, None, as_json, lambda client, out: set_tags(client, name, tag or [], out))


@app.command("list")
def list_(server: Server = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    """List all users.

    Example: flyball user list
    """
    run(server, None, as_json, list_users)


@app.command()
def delete(name: UserName, server: Server = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    """Delete a user and its permissions.

    Example: flyball user delete guest
    """
    run(server, None, as_json, lambda client, out: delete_user(client, name, out))
