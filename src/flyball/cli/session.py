"""Shared by commands that connect to a node: address, credentials, errors."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn
from urllib.parse import quote

import typer

from flyball.cli.output import Output
from flyball.client import RequestTimeout
from flyball.client.api import Api, NoAnswer, place_at
from flyball.client.http import Refused
from flyball.client.sync import Client
from flyball.errors import (
    ClientNameTaken,
    ClientNotFound,
    ClusterError,
    FlyballError,
    ModelNotFound,
    NotPermitted,
    QueueNameTaken,
    QueueNotFound,
    StoreUnavailable,
)
from flyball.model import DEFAULT_VHOST, Order

DONE = 0
FAILED = 1
WRONG_USE = 2
NOTHING_FOUND = 3
INTERRUPTED = 130

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="FLYBALL_URL", metavar="URL", help="HTTP API of the node, as http://USER:PASSWORD@HOST:15672."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Work = Callable[[Api, Output], int]
ClientWork = Callable[[Client, Output], int]


class ReadOrder(enum.StrEnum):
    """Which message comes first."""

    OLDEST = "oldest"
    NEWEST = "newest"
    PRIORITY = "priority"

    @property
    def order(self) -> Order:
        return Order[self.name]


_ADVICE: dict[type[Exception], str] = {
    NoAnswer: "Start a node with `flyball serve`, or set its address with --url.",
    QueueNotFound: "See `flyball queue list`, or create it with `flyball queue create`.",
    QueueNameTaken: "Use --exist-ok to accept that.",
    ClientNotFound: "See `flyball client list`.",
    ClientNameTaken: "Choose another name, or see `flyball client list`.",
    ModelNotFound: "See `flyball model list --all`.",
    NotPermitted: "Use a user with that permission in --url.",
    RequestTimeout: "See the node's log.",
    StoreUnavailable: "See the node's log.",
}
_ADVICE_BY_KIND = {kind.__name__: advice for kind, advice in _ADVICE.items()}
_UNAUTHORIZED = 401


def run(url: str, as_json: bool, work: Work) -> NoReturn:
    """Run `work` with the node's HTTP API and exit with its result. An error is one line on stderr."""
    try:
        place = place_at(url)
    except ValueError as error:
        fail(f"--url: {error}", WRONG_USE)
    try:
        with Api(place) as api:
            code = work(api, Output(sys.stdout.buffer, as_json))
    except Refused as error:
        fail(_joined(error.reason, _advice_for(error)))
    except FlyballError as error:
        fail(advised(error))
    except BrokenPipeError:
        pipe_closed()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(code)


def _advice_for(error: Refused) -> str | None:
    if error.status == _UNAUTHORIZED and not error.kind:
        return "Set user and password in --url, or the node's token file with --token-file."
    return _ADVICE_BY_KIND.get(error.kind)


def amqp_url(api: Api, vhost: str = DEFAULT_VHOST) -> str:
    """Return the node's address for AMQP clients, with the same user. It contains the password.

    Raises ClusterError if the node does not listen for AMQP.
    """
    listeners: dict[str, str] = api.get("whoami")["listeners"]
    protocols = ("amqps", "amqp") if api.place.tls is not None else ("amqp", "amqps")
    protocol = next((protocol for protocol in protocols if protocol in listeners), None)
    if protocol is None:
        raise ClusterError(f"the node at {api.place.shown} does not listen for AMQP: start it with --amqp")
    port = listeners[protocol].rpartition(":")[2]
    host = f"[{api.place.host}]" if ":" in api.place.host else api.place.host
    user, password = quote(api.place.user, safe=""), quote(api.place.password, safe="")
    return f"{protocol}://{user}:{password}@{host}:{port}/{quote(vhost, safe='')}"


def run_client(url: str, as_json: bool, work: ClientWork) -> NoReturn:
    """Connect an AMQP client to the node, run `work` and exit with its result, like `run`."""

    def connected(api: Api, out: Output) -> int:
        with Client.connect(amqp_url(api), http_url=api.place.shown + api.place.prefix) as client:
            return work(client, out)

    run(url, as_json, connected)


def pipe_closed() -> NoReturn:
    """Exit silently: the reader of our output has closed the pipe."""
    # Otherwise Python reports an error when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(FAILED) from None


def fail(problem: str, code: int = FAILED) -> NoReturn:
    """Print an error in one line, and exit."""
    typer.echo(f"flyball: {' '.join(problem.split())}", err=True)
    raise typer.Exit(code)


def advised(error: FlyballError) -> str:
    """Return an error with the next step."""
    advice = next((_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE), None)
    return _joined(str(error), advice)


def _joined(problem: str, advice: str | None) -> str:
    return problem if advice is None else f"{problem}. {advice}"
