"""What the commands that talk to a node share: its address, who they are, and how they fail."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from flyball.cli.output import Output
from flyball.client import ClientMode, ConnectionFailed, NotSupported, Order, RequestTimeout
from flyball.client.sync import Client
from flyball.errors import (
    ClientNameTaken,
    ClientNotFound,
    FlyballError,
    NotPermitted,
    QueueNameTaken,
    QueueNotFound,
    StoreUnavailable,
)

DONE = 0
FAILED = 1
WRONG_USE = 2
NOTHING_FOUND = 3
INTERRUPTED = 130

CLIENT_NAME = "cli"

Server = Annotated[
    str, typer.Option("--server", envvar="FLYBALL_SERVER", metavar="HOST:PORT", help="Where the node listens.")
]
ClientName = Annotated[
    str,
    typer.Option("--client", envvar="FLYBALL_CLIENT", metavar="NAME", help="Client to be, registered if new."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
DEFAULT_SERVER = "127.0.0.1:9001"

Work = Callable[[Client, Output], int]


class ReadOrder(enum.StrEnum):
    """Which message comes first."""

    OLDEST = "oldest"
    NEWEST = "newest"
    PRIORITY = "priority"

    @property
    def order(self) -> Order:
        return Order[self.name]


_ADVICE: dict[type[FlyballError], str] = {
    ConnectionFailed: "Start a node with `flyball serve`, or say where it is with --server.",
    QueueNotFound: "See `flyball queue list`, or create it with `flyball queue create`.",
    QueueNameTaken: "Give --exist-ok if that is fine.",
    ClientNotFound: "See `flyball client list`.",
    ClientNameTaken: "Choose another name, or see `flyball client list`.",
    NotPermitted: "Be another client with --client: see `flyball client list`.",
    NotSupported: "Use --server with the address of a Flyball node.",
    RequestTimeout: "See the node's log.",
    StoreUnavailable: "See the node's log.",
}


def run(
    server: str,
    name: str | None,
    as_json: bool,
    work: Work,
    *,
    mode: ClientMode = ClientMode.FULL,
    existing_ok: bool = True,
) -> NoReturn:
    """Connect, do the work and exit with its result. An error is one line on stderr."""
    try:
        with Client.connect(server, name=name, mode=mode, existing_ok=existing_ok) as client:
            code = work(client, Output(sys.stdout.buffer, as_json))
    except FlyballError as error:
        fail(advised(error))
    except BrokenPipeError:
        pipe_closed()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(code)


def pipe_closed() -> NoReturn:
    """Exit without a word: whoever read our output has enough."""
    # Python would complain when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(FAILED) from None


def fail(problem: str, code: int = FAILED) -> NoReturn:
    """Say what is wrong, in one line, and exit."""
    typer.echo(f"flyball: {' '.join(problem.split())}", err=True)
    raise typer.Exit(code)


def advised(error: FlyballError) -> str:
    """Return what happened and what to do about it."""
    advice = next((_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE), None)
    return str(error) if advice is None else f"{error}. {advice}"


def client_id_of(client: Client, who: str) -> int:
    """Return the id of the client of that name, or with that number. Raises ClientNotFound."""
    for known in client.get_clients():
        if known.name == who:
            return known.id
    if who.isascii() and who.isdigit() and 0 < int(who) < 2**31:
        return int(who)
    raise ClientNotFound(who)
