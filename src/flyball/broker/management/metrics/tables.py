"""Tables of metrics and their sources: RabbitMQ's names where they mean the same, and Flyball's own.

RabbitMQ's are grouped by the families of its /metrics/detailed.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyball.broker.engine.queue import QueueState
from flyball.broker.management.inspection import window
from flyball.broker.management.metrics.exposition import COUNTER, GAUGE, UNTYPED, Rows, labels, metrics
from flyball.broker.protocols.amqp.channel import Channel
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.broker.transport.connection import Connection

ALL_PROTOCOLS = labels(protocol="all")
# Flyball counts clients of all protocols and queues of all types together.
ALL_QUEUES = labels(protocol="all", queue_type="all")


# RabbitMQ's metrics of the node

RABBITMQ_NODE: Mapping[str, Rows] = {
    "connection_churn_metrics": [
        ("connections_opened_total", COUNTER, "connections_opened", "Connections opened"),
        ("connections_closed_total", COUNTER, "connections_closed", "Connections closed"),
        ("channels_opened_total", COUNTER, "channels_opened", "Channels opened"),
        ("channels_closed_total", COUNTER, "channels_closed", "Channels closed"),
        ("queues_declared_total", COUNTER, "queues_declared", "Declarations of queues"),
        ("queues_created_total", COUNTER, "queues_created", "Queues created"),
        ("queues_deleted_total", COUNTER, "queues_deleted", "Queues deleted"),
    ],
    "node_coarse_metrics": [
        ("process_open_fds", GAUGE, "open_files", "Open file descriptors"),
        ("process_open_tcp_sockets", GAUGE, "connections", "Open connections of clients"),
        ("process_resident_memory_bytes", GAUGE, "memory_bytes", "Memory of the process"),
        ("disk_space_available_bytes", GAUGE, "disk_free_bytes", "Free disk space in the data folder"),
    ],
    "node_metrics": [
        ("process_max_fds", GAUGE, "open_files_limit", "Limit of open file descriptors"),
        ("process_max_tcp_sockets", GAUGE, "max_connections", "Limit of client connections"),
        ("resident_memory_limit_bytes", GAUGE, "memory_limit_bytes", "Memory limit at which publishers are blocked"),
        (
            "disk_space_available_limit_bytes",
            GAUGE,
            "disk_free_limit_bytes",
            "Free disk space limit below which publishers are blocked",
        ),
        ("erlang_uptime_seconds", GAUGE, "uptime_s", "Uptime of the node"),
    ],
}

RABBITMQ_COUNTS = metrics(
    "rabbitmq_",
    [
        ("connections", GAUGE, "connections", "Connections"),
        ("channels", GAUGE, "channels", "Channels"),
        ("consumers", GAUGE, "consumers", "Consumers"),
        ("queues", GAUGE, "queues", "Queues served by the node"),
    ],
)

RABBITMQ_GLOBAL = [
    *metrics(
        "rabbitmq_global_",
        [
            ("publishers", GAUGE, "channel_publishers", "Channels that have published"),
            ("consumers", GAUGE, "consumers", "Consumers"),
            ("messages_received_total", COUNTER, "published", "Messages published by clients"),
            ("messages_confirmed_total", COUNTER, "confirmed", "Messages confirmed to their publishers"),
            ("messages_routed_total", COUNTER, "routed", "Messages routed, counted per queue"),
            (
                "messages_unroutable_dropped_total",
                COUNTER,
                "unroutable_dropped",
                "Unroutable messages that were dropped",
            ),
            (
                "messages_unroutable_returned_total",
                COUNTER,
                "unroutable_returned",
                "Unroutable messages that were returned",
            ),
        ],
        ALL_PROTOCOLS,
    ),
    *metrics(
        "rabbitmq_global_messages_",
        [
            ("delivered_total", COUNTER, "sent", "Messages delivered to clients"),
            (
                "delivered_consume_manual_ack_total",
                COUNTER,
                "delivered",
                "Messages delivered to consumers with manual ack",
            ),
            (
                "delivered_consume_auto_ack_total",
                COUNTER,
                "delivered_no_ack",
                "Messages delivered to consumers with auto-ack",
            ),
            ("delivered_get_manual_ack_total", COUNTER, "got", "Messages fetched with basic.get, manual ack"),
            ("delivered_get_auto_ack_total", COUNTER, "got_no_ack", "Messages fetched with basic.get, auto-ack"),
            ("redelivered_total", COUNTER, "redelivered", "Messages redelivered"),
            ("acknowledged_total", COUNTER, "acknowledged", "Messages acknowledged"),
            ("get_empty_total", COUNTER, "get_empty", "basic.get on an empty queue"),
        ],
        ALL_QUEUES,
    ),
]

# RabbitMQ's metrics of queues, channels and connections, summed over the node.
RABBITMQ_SUMS = metrics(
    "rabbitmq_",
    [
        ("alarms_memory_used_watermark", UNTYPED, "is_low_on_memory", "Whether the memory alarm is in effect"),
        ("alarms_free_disk_space_watermark", UNTYPED, "is_low_on_disk", "Whether the disk space alarm is in effect"),
        ("queue_messages_ready", GAUGE, "ready", "Ready messages"),
        ("queue_messages_unacked", GAUGE, "unacked", "Unacked messages"),
        ("queue_messages", GAUGE, "messages", "Ready and unacked messages"),
        ("queue_messages_ready_bytes", GAUGE, "ready_bytes", "Size of ready messages"),
        ("queue_consumers", GAUGE, "consumers", "Consumers"),
        ("queue_messages_published_total", COUNTER, "routed", "Messages routed to queues"),
        ("queue_disk_writes_total", COUNTER, "store_appended", "Messages written to the store"),
        ("channel_consumers", GAUGE, "channel_consumers", "Consumers of channels"),
        ("channel_messages_unacked", GAUGE, "channel_unacked", "Unacked messages"),
        ("channel_messages_unconfirmed", GAUGE, "channel_unconfirmed", "Unconfirmed messages"),
        ("channel_messages_uncommitted", GAUGE, "channel_uncommitted", "Messages in transactions"),
        ("channel_acks_uncommitted", GAUGE, "channel_uncommitted_acks", "Acknowledgements in transactions"),
        ("channel_messages_published_total", COUNTER, "published", "Messages published"),
        ("channel_messages_confirmed_total", COUNTER, "confirmed", "Messages confirmed to their publishers"),
        (
            "channel_messages_unroutable_returned_total",
            COUNTER,
            "unroutable_returned",
            "Unroutable messages that were returned",
        ),
        (
            "channel_messages_unroutable_dropped_total",
            COUNTER,
            "unroutable_dropped",
            "Unroutable messages that were dropped",
        ),
        ("channel_get_ack_total", COUNTER, "got", "Messages fetched with basic.get, manual ack"),
        ("channel_get_total", COUNTER, "got_no_ack", "Messages fetched with basic.get, auto-ack"),
        ("channel_get_empty_total", COUNTER, "get_empty", "basic.get on an empty queue"),
        (
            "channel_messages_delivered_ack_total",
            COUNTER,
            "delivered",
            "Messages delivered to consumers with manual ack",
        ),
        (
            "channel_messages_delivered_total",
            COUNTER,
            "delivered_no_ack",
            "Messages delivered to consumers with auto-ack",
        ),
        ("channel_messages_redelivered_total", COUNTER, "redelivered", "Messages redelivered"),
        ("channel_messages_acked_total", COUNTER, "acknowledged", "Messages acknowledged"),
        ("connection_incoming_bytes_total", COUNTER, "read_bytes", "Bytes read from clients"),
        ("connection_outgoing_bytes_total", COUNTER, "written_bytes", "Bytes written to clients"),
        ("connection_channels", GAUGE, "channels", "Channels"),
    ],
)


# RabbitMQ's metrics of single queues, channels and connections


def _head_arrived_s(state: QueueState) -> float | None:
    head = state.head
    return None if head is None else head.arrived_us / 1e6


def _channel_count(connection: Connection) -> int | None:
    return len(connection.channels) if isinstance(connection, AmqpSession) else None


RABBITMQ_QUEUES: Mapping[str, Rows] = {
    "queue_coarse_metrics": [
        ("queue_messages_ready", GAUGE, len, "Ready messages"),
        ("queue_messages_unacked", GAUGE, "unacked_count", "Unacked messages"),
        (
            "queue_messages",
            GAUGE,
            lambda queue: len(queue) + queue.unacked_count,
            "Ready and unacked messages",
        ),
    ],
    "queue_consumer_count": [
        ("queue_consumers", GAUGE, lambda queue: len(queue.consumers), "Consumers"),
    ],
    "queue_metrics": [
        ("queue_messages_ready_ram", GAUGE, lambda queue: len(queue) - queue.absent, "Ready messages in memory"),
        ("queue_messages_paged_out", GAUGE, "absent", "Ready messages that are in the store only"),
        (
            "queue_messages_ready_bytes",
            GAUGE,
            lambda queue: queue.ready_bytes if queue.knows_bytes else None,
            "Size of ready messages",
        ),
        ("queue_head_message_timestamp", GAUGE, _head_arrived_s, "Arrival time of the oldest message"),
    ],
}

RABBITMQ_CHANNELS: Mapping[str, Rows] = {
    "channel_metrics": [
        ("channel_consumers", GAUGE, lambda channel: len(channel.deliveries.consumers), "Consumers"),
        (
            "channel_messages_unacked",
            GAUGE,
            lambda channel: len(channel.deliveries.unacked),
            "Unacked messages",
        ),
        ("channel_messages_unconfirmed", GAUGE, "publisher.unconfirmed", "Unconfirmed messages"),
        (
            "channel_messages_uncommitted",
            GAUGE,
            lambda channel: channel.uncommitted,
            "Messages in a transaction",
        ),
        ("channel_acks_uncommitted", GAUGE, "uncommitted_acks", "Acknowledgements in a transaction"),
        (
            "consumer_prefetch",
            GAUGE,
            lambda channel: window(channel.deliveries.prefetch),
            "Prefetch limit of each consumer; 0: unlimited",
        ),
        (
            "channel_prefetch",
            GAUGE,
            lambda channel: window(channel.deliveries.window.limit),
            "Prefetch limit of the channel; 0: unlimited",
        ),
    ],
}

RABBITMQ_CONNECTIONS: Mapping[str, Rows] = {
    "connection_coarse_metrics": [
        ("connection_incoming_bytes_total", COUNTER, "read_bytes", "Bytes read"),
        ("connection_outgoing_bytes_total", COUNTER, "written_bytes", "Bytes written"),
    ],
    "connection_metrics": [
        ("connection_channels", GAUGE, _channel_count, "Channels"),
    ],
}


# Flyball's own metrics

PROCESS = metrics(
    "process_",
    [
        ("start_time_seconds", GAUGE, "started_at_s", "Start time of the process, in seconds since 1970"),
        ("cpu_seconds_total", COUNTER, "cpu_s", "Processor time used"),
        ("resident_memory_bytes", GAUGE, "memory_bytes", "Memory of the process"),
        ("open_fds", GAUGE, "open_files", "Open file descriptors"),
        ("max_fds", GAUGE, "open_files_limit", "Limit of open file descriptors"),
    ],
)

OWN = metrics(
    "flyball_",
    [
        ("alarms", GAUGE, "alarms", "Active alarms"),
        ("exchanges", GAUGE, "exchanges", "Exchanges"),
        ("faults_total", COUNTER, "faults", "Unexpected exceptions, each confined to one operation"),
        ("task_restarts_total", COUNTER, "task_restarts", "Restarts of failed tasks"),
        ("messages_requeued_total", COUNTER, "requeued", "Messages requeued"),
        (
            "messages_dropped_total",
            COUNTER,
            "dropped",
            "Messages expired, rejected, delivered too often, or too many",
        ),
        ("messages_parked", GAUGE, "parked", "Messages that could not be dead-lettered"),
        ("messages_resident_bytes", GAUGE, "resident_bytes", "Memory of messages"),
        ("memory_indexes_bytes", GAUGE, "indexes_bytes", "Memory of index entries for messages outside memory"),
        ("memory_connections_bytes", GAUGE, "connections_bytes", "Memory of connections, without messages"),
        ("memory_links_bytes", GAUGE, "links_bytes", "Memory of links to and from other nodes"),
        ("memory_definitions_bytes", GAUGE, "definitions_bytes", "Memory of queues, exchanges and bindings"),
        ("memory_held_bytes", GAUGE, "held_bytes", "Memory charged against the memory limit"),
        (
            "messages_resident_limit_bytes",
            GAUGE,
            "resident_limit_bytes",
            "Memory limit beyond which messages are kept in the store only",
        ),
        ("store_commits_total", COUNTER, "store_commits", "Commits of the store"),
        ("store_failures_total", COUNTER, "store_failures", "Commits that failed"),
        ("store_appended_total", COUNTER, "store_appended", "Messages written to the store"),
        ("store_removed_total", COUNTER, "store_removed", "Messages removed from the store"),
        ("store_bytes_total", COUNTER, "store_bytes", "Bytes committed to the store"),
        ("store_pending_changes", GAUGE, "pending_changes", "Changes waiting for the store"),
        ("store_pending_bytes", GAUGE, "pending_bytes", "Bytes of changes waiting for the store"),
        ("store_last_commit_seconds", GAUGE, "last_commit_s", "Duration of the last commit"),
        ("store_failing", GAUGE, "store_is_failing", "Whether the store is unavailable"),
        ("flow_pressure", GAUGE, "under_pressure", "Whether publishers are throttled"),
        ("flow_waiting_connections", GAUGE, "waiting_connections", "Publishers waiting for credit"),
        ("flow_blocked_connections", GAUGE, "blocked_connections", "Blocked publishers"),
        ("trace_dropped_total", COUNTER, "trace_dropped", "Requests dropped by the trace, its buffer being full"),
        ("trace_failures_total", COUNTER, "trace_failures", "Failed writes of the trace"),
        ("node_lease_held", GAUGE, "holds_lease", "Whether the node holds its lease and may serve clients"),
        ("node_leaving", GAUGE, "is_leaving", "Whether the node is leaving its domain"),
        (
            "cluster_handed_over_total",
            COUNTER,
            "handed_over",
            "Messages transferred to other members of clustered queues",
        ),
    ],
)

OWN_QUEUES = metrics(
    "flyball_queue_",
    [
        ("published_total", COUNTER, "arrived", "Messages routed to the queue"),
        (
            "delivered_total",
            COUNTER,
            lambda queue: queue.delivered + queue.delivered_no_ack + queue.got + queue.got_no_ack,
            "Messages delivered to clients",
        ),
        ("redelivered_total", COUNTER, "redelivered", "Messages redelivered"),
        ("acknowledged_total", COUNTER, "acknowledged", "Messages acknowledged"),
        ("requeued_total", COUNTER, "requeued", "Messages requeued"),
        ("dropped_total", COUNTER, "dropped", "Messages expired, rejected, or too many"),
        ("messages_parked", GAUGE, lambda queue: len(queue.parked), "Messages that could not be dead-lettered"),
    ],
)

OWN_CHANNELS = metrics(
    "flyball_channel_",
    [
        ("published_total", COUNTER, "publisher.taken", "Messages published"),
        ("confirmed_total", COUNTER, "publisher.confirmed", "Messages confirmed"),
        ("returned_total", COUNTER, "publisher.returned", "Messages returned"),
        ("delivered_total", COUNTER, "deliveries.last_tag", "Messages sent"),
        ("acknowledged_total", COUNTER, "deliveries.acknowledged", "Messages acknowledged"),
        ("redelivered_total", COUNTER, "deliveries.redelivered", "Messages redelivered"),
    ],
)


# Labels


def queue_labels(state: QueueState) -> str:
    return labels(vhost=state.queue.vhost, queue=state.queue.name)


def channel_labels(channel: Channel) -> str:
    return labels(channel=f"{channel.session.name} ({channel.number})")


def connection_labels(connection: Connection) -> str:
    """Return the label of a connection, as in RabbitMQ."""
    return labels(channel=connection.name)
