"""`flyball queue ...`: create, list, delete, purge and look into queues."""

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
    out.tell(text, {"id": queue_id, "name": name, "created": is_new})
    return DONE


def _declare(api: Api, name: str) -> bool:
    """Return whether there was no such queue before."""
    return api.put("queues", DEFAULT_VHOST, name, document={"durable": True}).status == _CREATED


def find_queue(api: Api, name: str) -> dict[str, Any] | None:
    """Return what the node tells of a queue, None if there is none."""
    try:
        return get_queue(api, name)
    except Refused as error:
        if error.kind != QueueNotFound.__name__:
            raise
        return None


def get_queue(api: Api, name: str) -> dict[str, Any]:
    """Return what the node tells of a queue. Raises Refused if there is none."""
    queue: dict[str, Any] = api.get("queues", DEFAULT_VHOST, name, columns=_COLUMNS)
    return queue


def list_queues(api: Api, out: Output) -> int:
    """List the queues of all nodes; whose they are is shown if any belongs to another node than the one asked."""
    here = api.get("whoami")["node"]
    found = [_facts(told, here) for told in api.get("queues", columns=_COLUMNS)]
    queues = sorted(found, key=lambda queue: queue["id"])
    if out.is_json:
        for queue in queues:
            out.json(queue)
    elif queues:
        is_alone = all(queue["is_here"] for queue in queues)
        columns = ["id", "name", *([] if is_alone else ["node"]), "ready", "leased", "consumers"]
        out.table(columns, [[_cell(queue[column]) for column in columns] for queue in queues])
    return DONE


def _facts(told: dict[str, Any], here: str) -> dict[str, Any]:
    """Return what is shown of a queue at the node `here`; counts are None if the queue's node does not answer."""
    return {
        "id": told["id"],
        "name": told["name"],
        "vhost": told["vhost"],
        "node": told["node"],
        "is_here": told["node"] == here,
        "ready": told.get("messages_ready"),
        "leased": told.get("messages_unacknowledged"),
        "parked": told.get("messages_parked"),
        "in_memory": told.get("messages_ready_ram"),
        "consumers": told.get("consumers"),
    }


def _cell(value: Any) -> Any:
    """Return what stands in a table; a node that does not answer has not told how much its queues hold."""
    return "?" if value is None else value


def count_messages(api: Api, name: str) -> int:
    """Return how many messages the queue holds, leased ones included.

    Raises Refused if there is none, ClusterError if its node does not say.
    """
    queue = get_queue(api, name)
    if "messages_ready" not in queue:
        raise ClusterError(f"node {queue['node']}, which serves {shown(name)}, does not answer; try again")
    return int(queue["messages_ready"] + queue["messages_unacknowledged"])


def delete_queue(api: Api, name: str, out: Output) -> int:
    api.delete("queues", DEFAULT_VHOST, name)
    out.tell(f"deleted {shown(name)}", {"name": name, "deleted": True})
    return DONE


def purge_queue(api: Api, name: str, out: Output) -> int:
    count = api.post("flyball", "queues", DEFAULT_VHOST, name, "purge")["purged"]
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
            fail(f"{shown(queue)} holds {count} messages. Give --yes to delete them with it.")
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
