"""Every field of RabbitMQ's answers is in Flyball's too, or the reason why not is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest

from flyball.broker.settings import Address
from flyball.lab.rabbitmq import RabbitMq
from tests.broker.management.api.conftest import Api, connected
from tests.nodes import RunningNode

BY_PAIRS = "what goes from which exchange to which channel and queue is not counted: it would cost every message"
ERLANG = "it is of Erlang's virtual machine, or of how RabbitMQ is built on it"
NOT_COUNTED = "it is not counted: it would cost something for every message"
NOT_KEPT = "it is not kept"
STORE = "PostgreSQL reads and writes files, in processes of its own"

# For each kind of document why fields are missing here, and which.
CANNOT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "overview": {ERLANG: ("contexts.cowboy_opts",), STORE: ("message_stats.disk_reads",)},
    "node": {
        ERLANG: (
            "contexts.cowboy_opts",
            "gc_bytes_reclaimed",
            "metrics_gc_queue_length",
            "mnesia_disk_tx_count",
            "mnesia_ram_tx_count",
            "net_ticktime",
            "proc_total",
            "proc_used",
            "queue_index_read_count",
            "queue_index_write_count",
            "ra_open_file_metrics",
            "run_queue",
        ),
        STORE: (
            "io_read_avg_time",
            "io_read_bytes",
            "io_read_count",
            "io_reopen_count",
            "io_seek_avg_time",
            "io_seek_count",
            "io_sync_avg_time",
            "io_sync_count",
            "io_write_avg_time",
            "io_write_bytes",
            "io_write_count",
            "msg_store_read_count",
        ),
    },
    "connection": {
        ERLANG: ("garbage_collection", "reductions", "send_pend"),
        NOT_COUNTED: ("recv_cnt", "send_cnt"),
        NOT_KEPT: ("peer_cert_issuer", "peer_cert_validity", "ssl_hash", "ssl_key_exchange"),
    },
    "channel": {
        BY_PAIRS: ("deliveries", "publishes"),
        ERLANG: ("garbage_collection", "pending_raft_commands", "reductions"),
        NOT_COUNTED: (
            "message_stats.deliver",
            "message_stats.deliver_no_ack",
            "message_stats.drop_unroutable",
            "message_stats.get",
            "message_stats.get_empty",
            "message_stats.get_no_ack",
        ),
    },
    "exchange": {
        BY_PAIRS: ("incoming", "outgoing"),
        NOT_COUNTED: ("message_stats.publish_out",),
        NOT_KEPT: ("user_who_performed_action",),
    },
    "queue": {
        BY_PAIRS: ("deliveries", "incoming"),
        ERLANG: ("backing_queue_status", "garbage_collection", "reductions"),
        NOT_COUNTED: (
            "consumer_capacity",
            "consumer_utilisation",
            "message_bytes_persistent",
            "message_stats.get_empty",
            "messages_persistent",
        ),
    },
    "vhost": {
        NOT_COUNTED: (
            "message_stats.confirm",
            "message_stats.drop_unroutable",
            "message_stats.get_empty",
            "message_stats.return_unroutable",
        ),
    },
}

# Present only on objects that are unused for a while.
SOMETIMES = frozenset({"idle_since"})

# The contents of these come from clients and other programs.
OPEN = frozenset({"arguments", "client_properties", "cluster_state", "socket_opts", "effective_policy_definition"})

DOCUMENTS = ("overview", "node", "connection", "channel", "consumer", "exchange", "queue", "binding", "vhost")


@contextmanager
def busy(address: Address) -> Iterator[None]:
    """Let a client do all that is counted, and stay."""
    with connected(address, client_properties={"connection_name": "fields"}) as connection:
        channel = connection.channel()
        channel.exchange_declare("fields", "topic", durable=True)
        channel.queue_declare("fields", durable=True)
        channel.queue_bind("fields", "fields", "key")
        channel.confirm_delivery()
        for _ in range(5):
            channel.basic_publish("fields", "key", b"body")
        method, _, _ = channel.basic_get("fields")
        channel.basic_nack(method.delivery_tag)
        method, _, _ = channel.basic_get("fields")
        channel.basic_ack(method.delivery_tag)
        channel.basic_get("fields", auto_ack=True)
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("fields", lambda *_: None)
        yield


def documents(address: Address) -> dict[str, Any]:
    """Return one document of each kind, of the broker whose API is there."""
    api = Api(address)
    queue = "/queues/%2F/fields"
    api.until(queue, lambda found: found.get("consumer_details") and found.get("messages_unacknowledged") == 2)
    api.until(queue, lambda found: found["message_stats"].get("deliver", 0) == 2)
    api.until("/exchanges/%2F/fields", lambda found: "publish_in" in found.get("message_stats", {}))
    api.until("/connections", lambda found: found and all("channels" in connection for connection in found))
    name = next(
        connection["name"]
        for connection in api.get("/connections")
        if connection["client_properties"].get("connection_name") == "fields"
    )
    channel = f"/channels/{quote(name)}%20(1)"
    api.until(channel, lambda found: found.get("consumer_count") == 1 and "ack" in found.get("message_stats", {}))
    found = {
        "overview": api.until("/overview", lambda found: "publish" in found["message_stats"]),
        "node": api.until("/nodes", lambda found: "mem_used" in found[0])[0],
        "connection": api.get(f"/connections/{quote(name)}"),
        "channel": api.get(channel),
        "consumer": next(item for item in api.get("/consumers/%2F") if item["queue"]["name"] == "fields"),
        "exchange": api.get("/exchanges/%2F/fields"),
        "queue": api.get(queue),
        "binding": api.get("/queues/%2F/fields/bindings")[1],
        "vhost": api.until("/vhosts/%2F", lambda found: "message_stats" in found),
    }
    api.close()
    return found


def fields(document: Any, place: str = "") -> set[str]:
    """Return the names of all fields of a document, those inside others after a dot."""
    if isinstance(document, list):
        return fields(document[0], place) if document else set()
    if not isinstance(document, dict):
        return set()
    found: set[str] = set()
    for name, value in document.items():
        found.add(place + name)
        if name not in OPEN:
            found |= fields(value, f"{place}{name}.")
    return found


@pytest.fixture(scope="module")
def theirs(counting_rabbitmq: RabbitMq) -> dict[str, Any]:
    with busy(Address(counting_rabbitmq.host, counting_rabbitmq.port)):
        return documents(counting_rabbitmq.api_address)


@pytest.fixture(scope="module")
def ours(console_node: RunningNode) -> dict[str, Any]:
    with busy(console_node.address("amqp")):
        return documents(console_node.address("http"))


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_field_of_rabbitmq_is_told_or_cannot_be(
    kind: str, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    cannot = {name for names in CANNOT.get(kind, {}).values() for name in names}
    # With a field goes its rate, and what is in it.
    together = tuple(f"{name}{end}" for name in cannot for end in (".", "_details"))
    missing = fields(theirs[kind]) - fields(ours[kind]) - SOMETIMES
    assert {name for name in missing if not name.startswith(together)} == cannot
