"""Queues in RabbitMQ's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import bindings, domain_view, fields
from flyball.broker.management.api.answers import answer, done, moment
from flyball.broker.management.api.context import ApiContext, Body, Call, Routes
from flyball.broker.management.api.direct_client import CHANNEL, has_queue, perform
from flyball.broker.management.api.domain_view import ListedQueue
from flyball.broker.management.api.statistics import (
    DELIVERIES,
    OF_LENGTH,
    OF_QUEUE,
    Facts,
    detailed,
    message_stats,
    rates_of,
)
from flyball.broker.management.node_sampler import Sampler
from flyball.broker.wire import amqp
from flyball.errors import InvalidArgument, InvalidName, QueueNotFound
from flyball.model import MESSAGE_OVERHEAD_BYTES

Key = Callable[[ListedQueue], Any]


def _count(own: str) -> Key:
    return lambda queue: queue.count(own)


# Getters for common sort columns, without building each document. See also `RATES`.
KEYS: dict[str, Key] = {
    "name": lambda queue: queue.name,
    "vhost": lambda queue: queue.vhost,
    "state": lambda queue: "down" if queue.is_down else "running",
    "consumers": _count("consumers"),
    "messages_parked": _count("parked"),
    **{name: _count(own) for name, own in OF_LENGTH.items()},
    **{f"message_stats.{name}": _count(own) for name, own in OF_QUEUE.items()},
}

# Sort columns of rates, and the counters that they sum.
RATES: dict[str, tuple[str, ...]] = {
    **{f"{name}_details.rate": (own,) for name, own in OF_LENGTH.items()},
    **{f"message_stats.{name}_details.rate": (own,) for name, own in OF_QUEUE.items()},
    "message_stats.deliver_get_details.rate": DELIVERIES,
}


# Fields copied unchanged from a queue's facts.
DECLARED = ("id", "name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments", "node")

_BODY = Body({"durable": "boolean", "auto_delete": "boolean", "arguments": "object"})
_DELETION = {"if-empty": "true: only if it is empty", "if-unused": "true: only if it has no consumers"}


routes = Routes()


@routes.get("/queues", is_list=True)
@routes.get("/queues/{vhost}", is_list=True)
async def list_queues(call: Call) -> Response:
    """List all visible queues, or those of a vhost."""
    found = await domain_view.queues(call, frozenset(call.vhosts))
    rates = {name: _rate(call.context.sampler, counts) for name, counts in RATES.items()}
    return await call.many(found, lambda queue: document(call.context, queue.facts()), KEYS | rates)


def _rate(sampler: Sampler, names: Collection[str]) -> Key:
    """Return a getter for the summed rates of these counters."""

    def rate(queue: ListedQueue) -> float | None:
        counts = queue.counts()
        if counts is None:
            return None
        # Faster than `rates_of`: the counters are known.
        rates = sampler.rates_of("queue", (queue.vhost, queue.name), counts)
        return sum([rates[name] for name in names])

    return rate


@routes.get("/queues/{vhost}/{name}")
async def show(call: Call) -> Response:
    """Return a queue with its consumers."""
    vhost, name = call.vhost, call.part("name")
    facts = await domain_view.queue(call, vhost, name)
    shown = document(call.context, facts)
    shown["consumer_details"] = (
        await domain_view.consumers_of_queue(call, vhost, name) if facts.get("consumers") else []
    )
    return call.one(shown)


@routes.get("/queues/{vhost}/{name}/bindings", is_list=True)
async def list_bindings(call: Call) -> Response:
    """List the bindings of a queue, including that of the default exchange."""
    vhost, name = call.vhost, call.part("name")
    await domain_view.queue(call, vhost, name)
    return await bindings.listed(call, bindings.to_queue(call, vhost, name))


def document(context: ApiContext, facts: Facts) -> dict[str, Any]:
    """Return a queue as RabbitMQ's document."""
    policy = context.node.hub.authority.policies.for_queue(facts["vhost"], facts["name"])
    found: dict[str, Any] = {
        **{name: facts[name] for name in DECLARED},
        "policy": None if policy is None else policy.name,
        "operator_policy": None,
        "effective_policy_definition": {} if policy is None else dict(policy.definition),
        "state": facts["state"],
    }
    if facts["type"] == "quorum" or facts["member"]:
        members = facts.get("members", [facts["node"]])
        found |= {"leader": facts["node"], "members": members, "online": members}
    if facts["state"] == "down":
        return found
    rates = rates_of(context.sampler, "queue", (facts["vhost"], facts["name"]), facts, OF_QUEUE, OF_LENGTH)
    found |= detailed(OF_LENGTH, facts, rates)
    found |= _contents(facts)
    found["message_stats"] = message_stats(OF_QUEUE, facts, rates)
    return found


def _contents(facts: Facts) -> dict[str, Any]:
    """Return message counts and consumers of a queue."""
    found: dict[str, Any] = {
        "consumers": facts["consumers"],
        "exclusive_consumer_tag": facts["exclusive_consumer"],
        "recoverable_slaves": None,
        "single_active_consumer_tag": facts["active_consumer"],
        "head_message_timestamp": _head_arrived(facts["head_age_s"]),
        "messages_ram": facts["in_memory"] + facts["unacked"],
        "messages_ready_ram": facts["in_memory"],
        "messages_unacknowledged_ram": facts["unacked"],
        "messages_parked": facts["parked"],
        "messages_paged_out": facts["ready"] - facts["in_memory"],
        "memory": facts["in_memory"] * MESSAGE_OVERHEAD_BYTES + (facts["ready_bytes"] or 0),
    }
    found |= _sizes(facts)
    if facts["idle_since_s"] is not None:
        found["idle_since"] = moment(facts["idle_since_s"])
    if facts["exclusive"] and facts["owner"] is not None:
        found["owner_pid_details"] = {"name": facts["owner"], **_peer_of(facts["owner"])}
    return found


def _sizes(facts: Facts) -> dict[str, int]:
    """Return the known sizes of message bodies."""
    ready, unacked = facts["ready_bytes"], facts["unacked_bytes"]
    found = {}
    if ready is not None:
        found["message_bytes_ready"] = ready
    if unacked is not None:
        found["message_bytes_unacknowledged"] = unacked
    if ready is not None and unacked is not None:
        found["message_bytes"] = ready + unacked
    # Sizes of messages outside memory are unknown: report the total only if there are none.
    if facts["in_memory"] == facts["ready"]:
        found["message_bytes_paged_out"] = 0
        if "message_bytes" in found:
            found["message_bytes_ram"] = found["message_bytes"]
    return found


def _head_arrived(age_s: float | None) -> int | None:
    """Return when the oldest message arrived. RabbitMQ needs a timestamp from the publisher for this."""
    return None if age_s is None else int(time.time() - age_s)


def _peer_of(connection: str) -> dict[str, Any]:
    """Return the peer's address, from the connection's name."""
    host, _, port = connection.partition(" -> ")[0].rpartition(":")
    return {"peer_host": host, "peer_port": int(port) if port.isdecimal() else None}


# Changes


@routes.put("/queues/{vhost}/{name}", body=_BODY)
async def declare_queue(call: Call) -> Response:
    """Declare a queue, or check that it exists with these properties."""
    vhost, name = call.vhost, call.part("name")
    document = await call.document()
    method = declaration(name, document)
    is_new = not await has_queue(call.node, vhost, name)
    await perform(call, vhost, method, amqp.QueueDeclareOk)
    return done(201 if is_new else 204)


@routes.delete("/queues/{vhost}/{name}", query=_DELETION)
async def delete_queue(call: Call) -> Response:
    """Delete a queue and its messages."""
    vhost, name = await _existing(call)
    query = call.request.query_params
    if_unused, if_empty = fields.flag(query, "if-unused", False), fields.flag(query, "if-empty", False)
    await perform(call, vhost, amqp.QueueDelete(CHANNEL, name, if_unused, if_empty, False), amqp.QueueDeleteOk)
    return done()


@routes.delete("/queues/{vhost}/{name}/contents")
async def purge_queue(call: Call) -> Response:
    """Purge a queue: delete its ready messages."""
    await _purge(call)
    return done()


@routes.post("/flyball/queues/{vhost}/{name}/purge")
async def purge_and_count(call: Call) -> Response:
    """Purge a queue and return the number of deleted messages."""
    return answer({"purged": await _purge(call)})


async def _purge(call: Call) -> int:
    purge = amqp.QueuePurge(CHANNEL, call.part("name"), False)
    return (await perform(call, call.vhost, purge, amqp.QueuePurgeOk)).message_count


@routes.post("/queues/{vhost}/{name}/actions", body=Body({"action": "string"}, ("action",)))
async def act_on_queue(call: Call) -> Response:
    """Accept sync and cancel_sync: a queue has no mirrors, so there is nothing to do."""
    await _existing(call)
    action = fields.text(await call.document(), "action")
    if action not in ("sync", "cancel_sync"):
        raise InvalidArgument(f"unknown action {action!r} on a queue: use sync or cancel_sync")
    return done()


def declaration(name: str, document: fields.Document) -> amqp.QueueDeclare:
    """Return the declaration in a document, with AMQP's defaults.

    Raises InvalidArgument, InvalidName.
    """
    if not name:
        # AMQP would generate a name that the requester never learns.
        raise InvalidName("the name of a queue cannot be empty")
    return amqp.QueueDeclare(
        CHANNEL,
        name,
        False,
        fields.flag(document, "durable", False),
        False,
        fields.flag(document, "auto_delete", False),
        False,
        fields.table(document, "arguments"),
    )


async def _existing(call: Call) -> tuple[str, str]:
    vhost, name = call.vhost, call.part("name")
    if not await has_queue(call.node, vhost, name):
        raise QueueNotFound(name, vhost)
    return vhost, name
