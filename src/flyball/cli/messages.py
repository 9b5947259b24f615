"""`flyball put` and `flyball get`."""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from flyball.cli.output import Output, shown
from flyball.cli.session import (
    DONE,
    NOTHING_FOUND,
    WRONG_USE,
    AsJson,
    ReadOrder,
    Url,
    fail,
    run_client,
)
from flyball.client import Draft, Order
from flyball.client.api import DEFAULT_URL
from flyball.client.sync import Client
from flyball.errors import QueueNotFound

# With more messages a progress bar is shown.
_LONG_COUNT = 50_000

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]


def puts(client: Client, queue: str, draft: Draft, out: Output, *, count: int, create: bool) -> int:
    """Put the message `count` times."""
    try:
        target = client.get_queue(queue)
    except QueueNotFound:
        if not create:
            fail(f"no queue {queue!r}. Create it with `flyball queue create {shown(queue)}`, or use --create.")
        target = client.create_queue(queue)
    drafts = track(
        itertools.repeat(draft, count),
        description=f"putting into {escape(shown(queue))}",
        total=count,
        console=Console(stderr=True),
        transient=True,
        disable=count < _LONG_COUNT or not sys.stderr.isatty(),
    )
    client.put_many(target, drafts)
    messages = "a message" if count == 1 else f"{count} messages"
    out.show(f"put {messages} into {shown(queue)}", {"queue": queue, "count": count})
    return DONE


def get_messages(
    client: Client,
    queue: str,
    out: Output,
    *,
    count: int = 1,
    wait_s: float = 0.0,
    order: Order | None = None,
    context: int | None = None,
    sender: int | None = None,
    receiver: int | None = None,
    raw: bool = False,
) -> int:
    """Get messages one by one, printing each before the next is taken."""
    for number in range(count):
        message = client.take(queue, order=order, context=context, sender=sender, receiver=receiver, wait_s=wait_s)
        if message is None:
            return DONE if number else NOTHING_FOUND
        out.message(message, raw=raw)
    return DONE


def read_body(text: str | None, file: Path | None) -> bytes:
    """Return the body: from the argument, standard input or a file."""
    if (text is None) == (file is None):
        fail("no message given: use TEXT, - for standard input, or --file.", WRONG_USE)
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            fail(f"cannot read {file}: {error.strerror}.")
    assert text is not None
    # Arguments that are not UTF-8 are passed on as their original bytes.
    return sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")


def put(
    queue: QueueName,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT|-", help="Message body; - reads it from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="File with the message body.")] = None,
    to: Annotated[int | None, typer.Option("--to", help="Client id of the receiver.")] = None,
    sender: Annotated[int | None, typer.Option("--from", help="Client id of the sender.")] = None,
    context: Annotated[int | None, typer.Option("--context", help="Correlation number, to link messages.")] = None,
    priority: Annotated[
        int, typer.Option("--priority", help="Priority; higher is read first with --order priority.")
    ] = 0,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl", metavar="SECONDS", help="Time to live: the message expires after this time in the queue."
        ),
    ] = None,
    transient: Annotated[bool, typer.Option("--transient", help="Transient message: kept in memory only.")] = False,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of copies to publish.")] = 1,
    create: Annotated[bool, typer.Option("--create", help="Create the queue if it does not exist.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish a message to a queue. It is durable when the command returns.

    Example: flyball put orders "two coffees" --priority 5
    """
    body = read_body(text, file)

    def work(client: Client, out: Output) -> int:
        draft = Draft(body, to, context, priority, ttl, not transient, sender=sender)
        return puts(client, queue, draft, out, count=count, create=create)

    run_client(url, as_json, work)


def get(
    queue: QueueName,
    count: Annotated[int, typer.Option("--count", min=1, help="Maximum number of messages.")] = 1,
    wait: Annotated[
        float, typer.Option("--wait", min=0, metavar="SECONDS", help="Time to wait for each message.")
    ] = 0.0,
    order: Annotated[ReadOrder | None, typer.Option("--order", help="Which message comes first.")] = None,
    context: Annotated[
        int | None, typer.Option("--context", help="Only messages with this correlation number.")
    ] = None,
    sender: Annotated[int | None, typer.Option("--from", help="Only messages from this client id.")] = None,
    to: Annotated[
        int | None, typer.Option("--to", help="Only messages for this client id, and those for anyone.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print bodies without a line end.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Get messages from a queue, ack them and print them. Exits with 3 if there is none.

    Example: flyball get orders --count 10 --wait 2.5
    """

    def work(client: Client, out: Output) -> int:
        take = partial(get_messages, count=count, wait_s=wait, context=context, sender=sender, receiver=to, raw=raw)
        return take(client, queue, out, order=None if order is None else order.order)

    run_client(url, as_json, work)
