"""`flyball queue ...`: create, list, delete, purge and look into queues."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import (
    CLIENT_NAME,
    DEFAULT_SERVER,
    DONE,
    NOTHING_FOUND,
    AsJson,
    ClientName,
    Server,
    fail,
    run,
)
from flyball.client.sync import Client
from flyball.errors import ClusterError, QueueNameTaken, QueueNotFound

app = typer.Typer(name="queue", help="Create, list, delete, purge and look into queues.", no_args_is_help=True)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]


def create_queue(client: Client, name: str, out: Output, *, exist_ok: bool) -> int:
    try:
        queue = client.create_queue(name)
    except QueueNameTaken:
        if not exist_ok:
            raise
        queue = client.get_queue_by_name(name)
        out.tell(f"{shown(name)} exists with id {queue.id}", {"id": queue.id, "name": name, "created": False})
    else:
        out.tell(f"created {shown(name)} with id {queue.id}", {"id": queue.id, "name": name, "created": True})
    return DONE


def list_queues(client: Client, out: Output) -> int:
    """List the queues of all nodes; whose they are is shown if any belongs to another node than the one asked."""
    queues = client.manage("queue.list")
    if out.is_json:
        for queue in queues:
            out.json(queue)
    elif queues:
        is_alone = all(queue["is_here"] for queue in queues)
        columns = ["id", "name", *([] if is_alone else ["node"]), "ready", "leased", "consumers"]
        out.table(columns, [[_cell(queue[column]) for column in columns] for queue in queues])
    return DONE


def _cell(value: Any) -> Any:
    """Return what stands in a table; a node that does not answer has not told how much its queues hold."""
    return "?" if value is None else value


def count_messages(client: Client, name: str) -> int:
    """Return how many messages the queue holds, leased ones included.

    Raises QueueNotFound, and ClusterError if its node does not say.
    """
    queue_id = client.get_queue_by_name(name).id
    for queue in client.manage("queue.list"):
        if queue["id"] == queue_id:
            if queue["ready"] is None:
                raise ClusterError(f"node {queue['node']}, which serves {shown(name)}, does not answer; try again")
            return int(queue["ready"] + queue["leased"])
    raise QueueNotFound(name)


def delete_queue(client: Client, name: str, out: Output) -> int:
    client.delete_queue(name)
    out.tell(f"deleted {shown(name)}", {"name": name, "deleted": True})
    return DONE


def purge_queue(client: Client, name: str, out: Output) -> int:
    count = client.purge(name)
    out.tell(f"purged {count} messages from {shown(name)}", {"name": name, "purged": count})
    return DONE


def peek_queue(client: Client, name: str, out: Output, *, count: int, raw: bool) -> int:
    found = client.read_messages(name, most=count)
    for message in found:
        out.message(message, raw=raw)
    return DONE if found else NOTHING_FOUND


@app.command()
def create(
    queue: QueueName,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Accept a queue that exists already.")] = False,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Create a queue.

    Example: flyball queue create orders
    """
    run(server, None, as_json, lambda client, out: create_queue(client, queue, out, exist_ok=exist_ok))


@app.command("list")
def list_(server: Server = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    """List the queues of all nodes and how many messages they hold.

    Example: flyball queue list --json
    """
    run(server, None, as_json, list_queues)


@app.command()
def delete(
    queue: QueueName,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it even if it holds messages, and do not ask.")] = False,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Delete a queue and its messages. Asks first if there are any.

    Example: flyball queue delete orders --yes
    """
    run(server, None, as_json, partial(_confirm_and_delete, queue, yes))


def _confirm_and_delete(queue: str, yes: bool, client: Client, out: Output) -> int:
    count = 0 if yes else count_messages(client, queue)
    if count:
        if not sys.stdin.isatty():
            fail(f"{shown(queue)} holds {count} messages. Give --yes to delete them with it.")
        typer.confirm(f"{shown(queue)} holds {count} messages. Delete them with it?", abort=True, err=True)
    return delete_queue(client, queue, out)


@app.command()
def purge(queue: QueueName, server: Server = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    """Remove all messages of a queue, except those that consumers hold.

    Example: flyball queue purge orders
    """
    run(server, None, as_json, lambda client, out: purge_queue(client, queue, out))


@app.command()
def peek(
    queue: QueueName,
    count: Annotated[int, typer.Option("--count", min=1, help="Show so many messages at most.")] = 1,
    raw: Annotated[bool, typer.Option("--raw", help="Print no line end after a message.")] = False,
    name: ClientName = CLIENT_NAME,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Show the oldest messages of a queue, whoever they are addressed to, without removing them.

    Exits with 3 if there are none.

    Example: flyball queue peek orders --count 5
    """
    run(server, name, as_json, lambda client, out: peek_queue(client, queue, out, count=count, raw=raw))
