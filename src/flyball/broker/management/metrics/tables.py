"""Which metrics there are, and what each is made from: RabbitMQ's names where they mean the same, and Flyball's own.

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
# Flyball counts what clients of all protocols do with queues of all types together.
ALL_QUEUES = labels(protocol="all", queue_type="all")


# RabbitMQ's, of the node

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
        ("process_max_fds", GAUGE, "open_files_limit", "Most open file descriptors"),
        ("process_max_tcp_sockets", GAUGE, "max_connections", "Most connections of clients"),
        ("resident_memory_limit_bytes", GAUGE, "memory_limit_bytes", "Memory at which publishers have to stop"),
        ("disk_space_available_limit_bytes", GAUGE, "disk_free_limit_bytes", "Publishers are blocked below it"),
        ("erlang_uptime_seconds", GAUGE, "uptime_s", "For how long the node has run"),
    ],
}

RABBITMQ_COUNTS = metrics(
    "rabbitmq_",
    [
        ("connections", GAUGE, "connections", "Connections"),
        ("channels", GAUGE, "channels", "Channels"),
        ("consumers", GAUGE, "consumers", "Consumers"),
        ("queues", GAUGE, "queues", "Queues that the node serves"),
    ],
)

RABBITMQ_GLOBAL = [
    *metrics(
        "rabbitmq_global_",
        [
            ("publishers", GAUGE, "channel_publishers", "Channels that have published something"),
            ("consumers", GAUGE, "consumers", "Consumers"),
            ("messages_received_total", COUNTER, "published", "Messages that clients have published"),
            ("messages_confirmed_total", COUNTER, "confirmed", "Messages confirmed to their publishers"),
            ("messages_routed_total", COUNTER, "routed", "Messages put into queues, each queue counted"),
            ("messages_unroutable_dropped_total", COUNTER, "unroutable_dropped", "Messages that no queue got"),
            ("messages_unroutable_returned_total", COUNTER, "unroutable_returned", "Messages returned to publishers"),
        ],
        ALL_PROTOCOLS,
    ),
    *metrics(
        "rabbitmq_global_messages_",
        [
            ("delivered_total", COUNTER, "sent", "Messages sent to clients"),
            ("delivered_consume_manual_ack_total", COUNTER, "delivered", "Messages to consumers that acknowledge"),
            ("delivered_consume_auto_ack_total", COUNTER, "delivered_no_ack", "Messages to those that do not"),
            ("delivered_get_manual_ack_total", COUNTER, "got", "Messages asked for one by one, to be acknowledged"),
            ("delivered_get_auto_ack_total", COUNTER, "got_no_ack", "Messages asked for one by one, gone with that"),
            ("redelivered_total", COUNTER, "redelivered", "Messages sent once more"),
            ("acknowledged_total", COUNTER, "acknowledged", "Messages acknowledged"),
            ("get_empty_total", COUNTER, "get_empty", "Messages asked for where there were none"),
        ],
        ALL_QUEUES,
    ),
]

# What RabbitMQ tells of each queue, channel and connection, for all together.
RABBITMQ_SUMS = metrics(
    "rabbitmq_",
    [
        ("alarms_memory_used_watermark", UNTYPED, "is_low_on_memory", "Whether publishers wait for memory"),
        ("alarms_free_disk_space_watermark", UNTYPED, "is_low_on_disk", "Whether publishers wait for disk space"),
        ("queue_messages_ready", GAUGE, "ready", "Messages that wait for consumers"),
        ("queue_messages_unacked", GAUGE, "unacked", "Messages delivered and not yet acknowledged"),
        ("queue_messages", GAUGE, "messages", "Messages ready or not acknowledged"),
        ("queue_messages_ready_bytes", GAUGE, "ready_bytes", "Size of ready messages"),
        ("queue_consumers", GAUGE, "consumers", "Consumers"),
        ("queue_messages_published_total", COUNTER, "routed", "Messages put into queues"),
        ("queue_disk_writes_total", COUNTER, "store_appended", "Messages written to the store"),
        ("channel_consumers", GAUGE, "channel_consumers", "Consumers of channels"),
        ("channel_messages_unacked", GAUGE, "channel_unacked", "Messages delivered and not yet acknowledged"),
        ("channel_messages_unconfirmed", GAUGE, "channel_unconfirmed", "Messages published and not yet confirmed"),
        ("channel_messages_uncommitted", GAUGE, "channel_uncommitted", "Messages in transactions"),
        ("channel_acks_uncommitted", GAUGE, "channel_uncommitted_acks", "Acknowledgements in transactions"),
        ("channel_messages_published_total", COUNTER, "published", "Messages published"),
        ("channel_messages_confirmed_total", COUNTER, "confirmed", "Messages confirmed to their publishers"),
        (
            "channel_messages_unroutable_returned_total",
            COUNTER,
            "unroutable_returned",
            "Messages returned to publishers",
        ),
        ("channel_messages_unroutable_dropped_total", COUNTER, "unroutable_dropped", "Messages that no queue got"),
        ("channel_get_ack_total", COUNTER, "got", "Messages asked for one by one, to be acknowledged"),
        ("channel_get_total", COUNTER, "got_no_ack", "Messages asked for one by one, gone with that"),
        ("channel_get_empty_total", COUNTER, "get_empty", "Messages asked for where there were none"),
        ("channel_messages_delivered_ack_total", COUNTER, "delivered", "Messages to consumers that acknowledge"),
        ("channel_messages_delivered_total", COUNTER, "delivered_no_ack", "Messages to consumers that do not"),
        ("channel_messages_redelivered_total", COUNTER, "redelivered", "Messages sent once more"),
        ("channel_messages_acked_total", COUNTER, "acknowledged", "Messages acknowledged"),
        ("connection_incoming_bytes_total", COUNTER, "read_bytes", "Bytes read from clients"),
        ("connection_outgoing_bytes_total", COUNTER, "written_bytes", "Bytes written to clients"),
        ("connection_channels", GAUGE, "channels", "Channels"),
    ],
)


# RabbitMQ's, of queues, channels and connections


def _head_arrived_s(state: QueueState) -> float | None:
    head = state.head
    return None if head is None else head.arrived_us / 1e6


def _channel_count(connection: Connection) -> int | None:
    return len(connection.channels) if isinstance(connection, AmqpSession) else None


RABBITMQ_QUEUES: Mapping[str, Rows] = {
    "queue_coarse_metrics": [
        ("queue_messages_ready", GAUGE, len, "Messages that wait for consumers"),
        ("queue_messages_unacked", GAUGE, "unacked_count", "Messages delivered and not acknowledged"),
        (
            "queue_messages",
            GAUGE,
            lambda queue: len(queue) + queue.unacked_count,
            "Messages ready or not acknowledged",
        ),
    ],
    "queue_consumer_count": [
        ("queue_consumers", GAUGE, lambda queue: len(queue.consumers), "Consumers"),
    ],
    "queue_metrics": [
        ("queue_messages_ready_ram", GAUGE, lambda queue: len(queue) - queue.absent, "Ready messages in memory"),
        ("queue_messages_paged_out", GAUGE, "absent", "Ready messages in the store only"),
        (
            "queue_messages_ready_bytes",
            GAUGE,
            lambda queue: queue.ready_bytes if queue.knows_bytes else None,
            "Size of ready messages",
        ),
        ("queue_head_message_timestamp", GAUGE, _head_arrived_s, "When the oldest message came, if there is one"),
    ],
}

RABBITMQ_CHANNELS: Mapping[str, Rows] = {
    "channel_metrics": [
        ("channel_consumers", GAUGE, lambda channel: len(channel.deliveries.consumers), "Consumers"),
        (
            "channel_messages_unacked",
            GAUGE,
            lambda channel: len(channel.deliveries.unacked),
            "Messages delivered and not yet acknowledged",
        ),
        ("channel_messages_unconfirmed", GAUGE, "publisher.unconfirmed", "Messages published and not yet confirmed"),
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
            "Most messages that each consumer may hold; 0: any number",
        ),
        (
            "channel_prefetch",
            GAUGE,
            lambda channel: window(channel.deliveries.window.limit),
            "Most messages that all consumers may hold; 0: any number",
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


# Flyball's own

PROCESS = metrics(
    "process_",
    [
        ("start_time_seconds", GAUGE, "started_at_s", "When the process began, in seconds since 1970"),
        ("cpu_seconds_total", COUNTER, "cpu_s", "Processor time used"),
        ("resident_memory_bytes", GAUGE, "memory_bytes", "Memory of the process"),
        ("open_fds", GAUGE, "open_files", "Open file descriptors"),
        ("max_fds", GAUGE, "open_files_limit", "Most open file descriptors"),
    ],
)

OWN = metrics(
    "flyball_",
    [
        ("alarms", GAUGE, "alarms", "What keeps the node from working as it should"),
        ("exchanges", GAUGE, "exchanges", "Exchanges"),
        ("faults_total", COUNTER, "faults", "Unexpected exceptions, each confined to what has met it"),
        ("task_restarts_total", COUNTER, "task_restarts", "Times that a failed task was started again"),
        ("messages_requeued_total", COUNTER, "requeued", "Messages that came back to their queues"),
        (
            "messages_dropped_total",
            COUNTER,
            "dropped",
            "Messages expired, rejected, delivered too often, or too many",
        ),
        ("messages_parked", GAUGE, "parked", "Messages that could not be dead-lettered and wait for an operator"),
        ("messages_resident_bytes", GAUGE, "resident_bytes", "Memory that messages take"),
        ("memory_indexes_bytes", GAUGE, "indexes_bytes", "Memory of the places of messages that are not in memory"),
        ("memory_connections_bytes", GAUGE, "connections_bytes", "Memory that connections hold, beside messages"),
        ("memory_links_bytes", GAUGE, "links_bytes", "Memory that links to and from other nodes hold"),
        ("memory_definitions_bytes", GAUGE, "definitions_bytes", "Memory of queues, exchanges and bindings"),
        ("memory_held_bytes", GAUGE, "held_bytes", "What is held of the limit of memory"),
        ("messages_resident_limit_bytes", GAUGE, "resident_limit_bytes", "Beyond that messages go to the store only"),
        ("store_commits_total", COUNTER, "store_commits", "Commits of the store"),
        ("store_failures_total", COUNTER, "store_failures", "Commits that failed"),
        ("store_appended_total", COUNTER, "store_appended", "Messages written to the store"),
        ("store_removed_total", COUNTER, "store_removed", "Messages removed from the store"),
        ("store_bytes_total", COUNTER, "store_bytes", "Size of what was committed"),
        ("store_pending_changes", GAUGE, "pending_changes", "Changes that wait for the store"),
        ("store_pending_bytes", GAUGE, "pending_bytes", "Size of the changes that wait for the store"),
        ("store_last_commit_seconds", GAUGE, "last_commit_s", "How long the last commit took"),
        ("store_failing", GAUGE, "store_is_failing", "Whether the store does not answer"),
        ("flow_pressure", GAUGE, "under_pressure", "Whether publishers are slowed down"),
        ("flow_waiting_connections", GAUGE, "waiting_connections", "Publishers that wait for their turn"),
        ("flow_blocked_connections", GAUGE, "blocked_connections", "Publishers that were told to stop"),
        ("trace_dropped_total", COUNTER, "trace_dropped", "Requests that the trace had no room for"),
        ("trace_failures_total", COUNTER, "trace_failures", "Times that the trace could not be written"),
        ("node_lease_held", GAUGE, "holds_lease", "Whether the node may serve clients: its lease has not run out"),
        ("node_leaving", GAUGE, "is_leaving", "Whether the node is about to leave its domain"),
        ("cluster_handed_over_total", COUNTER, "handed_over", "Messages given to other members of clustered queues"),
    ],
)

OWN_QUEUES = metrics(
    "flyball_queue_",
    [
        ("published_total", COUNTER, "arrived", "Messages put into the queue"),
        (
            "delivered_total",
            COUNTER,
            lambda queue: queue.delivered + queue.delivered_no_ack + queue.got + queue.got_no_ack,
            "Messages sent to clients",
        ),
        ("redelivered_total", COUNTER, "redelivered", "Messages sent once more"),
        ("acknowledged_total", COUNTER, "acknowledged", "Messages acknowledged"),
        ("requeued_total", COUNTER, "requeued", "Messages that came back"),
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
        ("redelivered_total", COUNTER, "deliveries.redelivered", "Messages sent once more"),
    ],
)


# Who is told of


def queue_labels(state: QueueState) -> str:
    return labels(vhost=state.queue.vhost, queue=state.queue.name)


def channel_labels(channel: Channel) -> str:
    return labels(channel=f"{channel.session.name} ({channel.number})")


def connection_labels(connection: Connection) -> str:
    """Return the label of a connection, which RabbitMQ calls so, too."""
    return labels(channel=connection.name)
