"""`flyball user`: users that can log in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, WRONG_USE, AsJson, Url, fail, run
from flyball.client.api import DEFAULT_URL, Api
from flyball.client.http import Refused
from flyball.errors import UserNameTaken, UserNotFound

app = typer.Typer(name="user", help="Add, change, list and delete users.", no_args_is_help=True)

UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
PasswordFile = Annotated[
    str | None, typer.Option("--password-file", metavar="FILE", help="File with the password; - is standard input.")
]
PlainPassword = Annotated[
    str | None,
    typer.Option(
        "--password",
        metavar="TEXT",
        help="Password. Visible to other users in the list of processes; prefer --password-file.",
    ),
]
NoPassword = Annotated[
    bool, typer.Option("--no-password", help="No password: the user can log in only with a certificate.")
]


def add_user(api: Api, name: str, password: str | None, tags: list[str], out: Output) -> int:
    if _exists(api, name):
        raise UserNameTaken(name)
    api.put("users", name, document={"password": password, "tags": tags})
    out.show(f"added user {shown(name)}", {"name": name, "tags": tags})
    return DONE


def change_password(api: Api, name: str, password: str | None, out: Output) -> int:
    api.put("flyball", "users", name, "password", document={"password": password})
    what = "removed" if password is None else "changed"
    out.show(f"{what} the password of {shown(name)}", {"name": name, "has_password": password is not None})
    return DONE


def set_tags(api: Api, name: str, tags: list[str], out: Output) -> int:
    api.put("flyball", "users", name, "tags", document={"tags": tags})
    out.show(f"{shown(name)} has the tags {shown(', '.join(tags)) or 'none'}", {"name": name, "tags": tags})
    return DONE


def delete_user(api: Api, name: str, out: Output) -> int:
    api.delete("users", name)
    out.show(f"deleted user {shown(name)}", {"name": name, "deleted": True})
    return DONE


def list_users(api: Api, out: Output) -> int:
    users = [
        {"name": user["name"], "tags": user["tags"], "has_password": bool(user["password_hash"])}
        for user in api.get("users")
    ]
    if out.is_json:
        for user in users:
            out.json(user)
    elif users:
        out.table(
            ("name", "password", "tags"),
            [(user["name"], "yes" if user["has_password"] else "no", ", ".join(user["tags"])) for user in users],
        )
    return DONE


def _exists(api: Api, name: str) -> bool:
    try:
        api.get("users", name, columns="name")
    except Refused as error:
        if error.kind != UserNotFound.__name__:
            raise
        return False
    return True


def read_password(plain: str | None, file: str | None, none: bool) -> str | None:
    """Return the password from the option that is set, or prompt for it twice on a terminal."""
    if (plain is not None) + (file is not None) + none > 1:
        fail("use only one of --password-file, --password and --no-password.", WRONG_USE)
    if none:
        return None
    if plain is not None:
        return plain
    if file is not None:
        return _without_line_end(_read(file))
    if not sys.stdin.isatty():
        fail("no terminal to prompt for the password: use --password-file (- is standard input).", WRONG_USE)
    asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return asked


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        fail(f"cannot read {shown(file)}: {error.strerror}.")
    except ValueError:
        fail(f"{shown(file)} is not UTF-8 text.")


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


@app.command()
def add(
    name: UserName,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Tag, such as administrator; may be repeated.")
    ] = None,
    password_file: PasswordFile = None,
    password: PlainPassword = None,
    no_password: NoPassword = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a user. Prompts for the password unless an option gives it.

    The user has no permissions yet: see flyball permission set.

    Example: flyball user add alice --tag administrator
    """
    secret = read_password(password, password_file, no_password)
    run(url, as_json, lambda api, out: add_user(api, name, secret, tag or [], out))


@app.command()
def password(
    name: UserName,
    password_file: PasswordFile = None,
    password: PlainPassword = None,
    no_password: NoPassword = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change the password of a user. Prompts for it unless an option gives it.

    Example: flyball user password alice
    """
    secret = read_password(password, password_file, no_password)
    run(url, as_json, lambda api, out: change_password(api, name, secret, out))


@app.command()
def tags(
    name: UserName,
    tag: Annotated[
        list[str] | None, typer.Argument(metavar="TAG...", help="All tags of the user; none clears them.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Set the tags of a user.

    Example: flyball user tags alice administrator
    """
    run(url, as_json, lambda api, out: set_tags(api, name, tag or [], out))


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all users.

    Example: flyball user list
    """
    run(url, as_json, list_users)


@app.command()
def delete(name: UserName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a user and its permissions.

    Example: flyball user delete guest
    """
    run(url, as_json, lambda api, out: delete_user(api, name, out))
