"""`flyball queue`: create, list, delete, purge and peek."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import (
    DONE,
    NOTHING_FOUND,
    AsJson,
    Url,
    fail,
    run,
    run_client,
)
from flyball.client.api import DEFAULT_URL, Api
from flyball.client.http import Refused
from flyball.client.sync import Client
from flyball.errors import ClusterError, QueueNameTaken, QueueNotFound
from flyball.model import DEFAULT_VHOST

_COLUMNS = "id,name,vhost,node,messages_ready,messages_unacknowledged,messages_parked,messages_ready_ram,consumers"
_CREATED = 201

app = typer.Typer(name="queue", help="Create, list, delete, purge and peek queues.", no_args_is_help=True)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]


def create_queue(api: Api, name: str, out: Output, *, exist_ok: bool) -> int:
    is_new = find_queue(api, name) is None and _declare(api, name)
    if not is_new and not exist_ok:
        raise QueueNameTaken(name)
    queue_id = get_queue(api, name)["id"]
    text = f"created {shown(name)} with id {queue_id}" if is_new else f"{shown(name)} exists with id {queue_id}"
    out.show(text, {"id": queue_id, "name": name, "created": is_new})
    return DONE


def _declare(api: Api, name: str) -> bool:
    """Declare a queue; return whether it is new."""
    return api.put("queues", DEFAULT_VHOST, name, document={"durable": True}).status == _CREATED


def find_queue(api: Api, name: str) -> dict[str, Any] | None:
    """Return the node's document of a queue, None if it does not exist."""
    try:
        return get_queue(api, name)
    except Refused as error:
        if error.kind != QueueNotFound.__name__:
            raise
        return None


def get_queue(api: Api, name: str) -> dict[str, Any]:
    """Return the node's document of a queue. Raises Refused if it does not exist."""
    queue: dict[str, Any] = api.get("queues", DEFAULT_VHOST, name, columns=_COLUMNS)
    return queue


def list_queues(api: Api, out: Output) -> int:
    """List the queues of all nodes; with their nodes, if one is served by another node than the one asked."""
    here = api.get("whoami")["node"]
    found = [_facts(document, here) for document in api.get("queues", columns=_COLUMNS)]
    queues = sorted(found, key=lambda queue: queue["id"])
    if out.is_json:
        for queue in queues:
            out.json(queue)
    elif queues:
        is_alone = all(queue["is_here"] for queue in queues)
        columns = ["id", "name", *([] if is_alone else ["node"]), "ready", "leased", "consumers"]
        out.table(columns, [[_cell(queue[column]) for column in columns] for queue in queues])
    return DONE


def _facts(document: dict[str, Any], here: str) -> dict[str, Any]:
    """Return the shown fields of a queue, asked at the node `here`; counts are None if its node does not answer."""
    return {
        "id": document["id"],
        "name": document["name"],
        "vhost": document["vhost"],
        "node": document["node"],
        "is_here": document["node"] == here,
        "ready": document.get("messages_ready"),
        "leased": document.get("messages_unacknowledged"),
        "parked": document.get("messages_parked"),
        "in_memory": document.get("messages_ready_ram"),
        "consumers": document.get("consumers"),
    }


def _cell(value: Any) -> Any:
    """Return a table cell; counts of a node that does not answer are unknown."""
    return "?" if value is None else value


def count_messages(api: Api, name: str) -> int:
    """Return the number of messages of a queue, unacked ones included.

    Raises Refused if it does not exist, ClusterError if its node does not answer.
    """
    queue = get_queue(api, name)
    if "messages_ready" not in queue:
        raise ClusterError(f"node {queue['node']}, which serves {shown(name)}, does not answer: retry")
    return int(queue["messages_ready"] + queue["messages_unacknowledged"])


def delete_queue(api: Api, name: str, out: Output) -> int:
    api.delete("queues", DEFAULT_VHOST, name)
    out.show(f"deleted {shown(name)}", {"name": name, "deleted": True})
    return DONE


def purge_queue(api: Api, name: str, out: Output) -> int:
    count = api.post("flyball", "queues", DEFAULT_VHOST, name, "purge")["purged"]
    out.show(f"purged {count} messages from {shown(name)}", {"name": name, "purged": count})
    return DONE


def peek_queue(client: Client, name: str, out: Output, *, count: int, raw: bool) -> int:
    found = client.read_messages(name, most=count)
    for message in found:
        out.message(message, raw=raw)
    return DONE if found else NOTHING_FOUND


@app.command()
def create(
    queue: QueueName,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the queue exists already.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a queue.

    Example: flyball queue create orders
    """
    run(url, as_json, lambda api, out: create_queue(api, queue, out, exist_ok=exist_ok))


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the queues of all nodes and their numbers of messages.

    Example: flyball queue list --json
    """
    run(url, as_json, list_queues)


@app.command()
def delete(
    queue: QueueName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a queue with its messages. Asks for confirmation if there are any.

    Example: flyball queue delete orders --yes
    """
    run(url, as_json, partial(_confirm_and_delete, queue, yes))


def _confirm_and_delete(queue: str, yes: bool, api: Api, out: Output) -> int:
    count = 0 if yes else count_messages(api, queue)
    if count:
        if not sys.stdin.isatty():
            fail(f"{shown(queue)} holds {count} messages. Use --yes to delete them with it.")
        typer.confirm(f"{shown(queue)} holds {count} messages. Delete them with it?", abort=True, err=True)
    return delete_queue(api, queue, out)


@app.command()
def purge(queue: QueueName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove all ready messages of a queue; unacked ones stay.

    Example: flyball queue purge orders
    """
    run(url, as_json, lambda api, out: purge_queue(api, queue, out))


@app.command()
def peek(
    queue: QueueName,
    count: Annotated[int, typer.Option("--count", min=1, help="Maximum number of messages.")] = 1,
    raw: Annotated[bool, typer.Option("--raw", help="Print bodies without a line end.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the oldest messages of a queue without removing them, whatever their receiver.

    Exits with 3 if there are none.

    Example: flyball queue peek orders --count 5
    """
    run_client(url, as_json, lambda client, out: peek_queue(client, queue, out, count=count, raw=raw))
