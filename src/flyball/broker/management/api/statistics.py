"""Flyball's counters under RabbitMQ's names, with rates."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from flyball.broker.management.node_sampler import Sampler

# Facts of a queue, connection ...: plain values under Flyball's names, see `management.inspection`.
Facts = Mapping[str, Any]

# The counters whose sum is RabbitMQ's deliver_get.
DELIVERIES = ("delivered", "delivered_no_ack", "got", "got_no_ack")

# RabbitMQ's names of the counters of a queue.
OF_QUEUE = {
    "publish": "published",
    "deliver": "delivered",
    "deliver_no_ack": "delivered_no_ack",
    "get": "got",
    "get_no_ack": "got_no_ack",
    "ack": "acknowledged",
    "redeliver": "redelivered",
}

OF_NODE = {
    **OF_QUEUE,
    "confirm": "confirmed",
    "return_unroutable": "unroutable_returned",
    "drop_unroutable": "unroutable_dropped",
    "get_empty": "get_empty",
    "disk_writes": "store_appended",
}

OF_CHANNEL = {name: name for name in ("publish", "confirm", "return_unroutable", "deliver_get", "ack", "redeliver")}

OF_LENGTH = {"messages": "messages", "messages_ready": "ready", "messages_unacknowledged": "unacked"}

OF_BYTES = {"recv_oct": "recv_oct", "send_oct": "send_oct"}

OF_CHURN = {
    "connection_created": "connections_opened",
    "connection_closed": "connections_closed",
    "channel_created": "channels_opened",
    "channel_closed": "channels_closed",
    "queue_declared": "queues_declared",
    "queue_created": "queues_created",
    "queue_deleted": "queues_deleted",
}


def detailed(names: Mapping[str, str], counts: Facts, rates: Mapping[str, float]) -> dict[str, Any]:
    """Return the counters under RabbitMQ's names, each followed by its rate."""
    found: dict[str, Any] = {}
    for name, own in names.items():
        found[name] = counts[own]
        found[f"{name}_details"] = {"rate": rates.get(own, 0.0)}
    return found


def message_stats(names: Mapping[str, str], counts: Facts, rates: Mapping[str, float]) -> dict[str, Any]:
    """Return RabbitMQ's message_stats: like `detailed`, with the sum of deliveries where they are separate."""
    found = detailed(names, counts, rates)
    if names.keys() >= OF_QUEUE.keys():
        found["deliver_get"] = sum(counts[own] for own in DELIVERIES)
        found["deliver_get_details"] = {"rate": sum(rates.get(own, 0.0) for own in DELIVERIES)}
    return found


def rates_of(
    sampler: Sampler, kind: str, key: Hashable, facts: Facts, *tables: Mapping[str, str]
) -> dict[str, float]:
    """Return the rates of an object's counters, if it was sampled shortly before."""
    counts = {own: facts[own] for table in tables for own in table.values()}
    return sampler.rates_of(kind, key, counts)
