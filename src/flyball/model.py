"""The data model of Flyball: messages, queues, clients, exchanges, users and their definitions.

Plain data, used by every layer, without I/O, clock or protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Maximum length of the name of a client or queue, in characters.
MAX_NAME_LENGTH = 255

# The virtual host of clients that do not name one, which all clients of the research protocols are.
DEFAULT_VHOST = "/"

# The user name of logins with the node's token. No user can be added with this name.
OWNER = "@owner"

# The file in a node's data folder that holds its token.
TOKEN_FILE = "admin.token"

# The optional arguments of a declaration, by name.
Arguments = Mapping[str, Any]


@dataclass(slots=True, frozen=True)
class Timestamp:
    """A point in time, in seconds since 1970, that is out of the range of datetime."""

    seconds: int


# Memory of a message beyond its body and properties, indexes included.
MESSAGE_OVERHEAD_BYTES = 600

# Maximum number of queues that one request of Telesto or ThorBangMQ may name: a list of a million fits into 3 MB, and
# each entry makes a copy. Decoders read one entry more of a longer list, so that it is refused.
MAX_COPIES = 10_000

# Memory of the expiry of a message in memory.
EXPIRY_BYTES = 250


# Memory of a queue, an exchange and a binding beyond their arguments, with every reference to them.
QUEUE_BYTES = 4096
EXCHANGE_BYTES = 2048
BINDING_BYTES = 2048

# Memory of a registered client, with its name.
CLIENT_BYTES = 1024

# Memory of a node in the trie of a topic exchange. Each word of a binding key takes one, unless keys share a prefix.
TOPIC_PLACE_BYTES = 512


class ClientMode(enum.IntEnum):
    """The permissions of a client. The numbers are those of the Telesto protocol."""

    FULL = 1
    READ_ONLY = 2


class Order(enum.IntEnum):
    """Which of the matching messages a read returns."""

    OLDEST = 1
    NEWEST = 2
    # Highest priority first, oldest first among equals.
    PRIORITY = 3


@dataclass(slots=True)
class Client:
    """A registered client of the research protocols: a sender and receiver of messages."""

    id: int
    name: str
    mode: ClientMode


@dataclass(slots=True)
class Queue:
    """The id of a queue and its declaration; the engine holds its messages.

    The name is unique in its virtual host, except that the members of a clustered queue, each on its own node, all
    have the name of the clustered queue. A transient queue is deleted when the node stops, an exclusive queue with
    the connection that declared it.
    """

    id: int
    name: str
    vhost: str = DEFAULT_VHOST
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    # Whether it is a member of a clustered queue.
    member: bool = False


@dataclass(slots=True)
class Exchange:
    """An AMQP exchange: routes messages by its bindings to queues and other exchanges."""

    name: str
    type: str
    vhost: str = DEFAULT_VHOST
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


class Destination(enum.StrEnum):
    """The kind of a binding's destination."""

    QUEUE = "queue"
    EXCHANGE = "exchange"


@dataclass(slots=True)
class Binding:
    """A rule of an exchange: messages that match it go to the destination."""

    source: str
    destination: str
    kind: Destination = Destination.QUEUE
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)
    vhost: str = DEFAULT_VHOST


@dataclass(slots=True)
class User:
    """A user. The hash is argon2's, None for a user who cannot log in with a password."""

    name: str
    password_hash: str | None = field(default=None, repr=False)
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Permission:
    """A user's permissions in a virtual host: regular expressions that match names of queues and exchanges."""

    user: str
    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass(slots=True)
class Policy:
    """Arguments for queues or exchanges whose names match a pattern; the policy with the highest priority applies."""

    name: str
    pattern: str
    definition: Arguments
    vhost: str = DEFAULT_VHOST
    # all, queues or exchanges.
    apply_to: str = "all"
    priority: int = 0


# A callback and its first argument; the second is whether the store refused the message.
Receipt = tuple[Callable[[int, bool], None], int]


@dataclass(slots=True)
class Message:
    """A message in one queue.

    Ids grow in the order of arrival, so the id is also the position in the queue. `properties` are opaque here: only
    the protocol that wrote them reads them. Times are microseconds since 1970 in UTC. A message published over AMQP
    has an `origin`, its exchange and routing key as two AMQP short strings, and properties in AMQP's encoding; other
    messages have an empty origin.
    """

    id: int
    queue_id: int
    body: bytes
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None
    priority: int = 0
    arrived_us: int = 0
    expires_us: int | None = None
    properties: bytes = b""
    persistent: bool = True
    origin: bytes = b""
    # How often it was requeued after a delivery.
    delivery_count: int = 0
    # Whether it was read back after a restart or a move to another node: it may have been delivered before.
    recovered: bool = False
    # Whether its commit has completed.
    stored: bool = False
    # Called if the message is acked before it is stored, or if the store refuses it; None from then on.
    receipt: Receipt | None = field(default=None, repr=False, compare=False)
    # Size of the body while body and properties are only in the store (see `Engine.page_out`); else -1.
    paged_bytes: int = field(default=-1, repr=False, compare=False)
    # What it takes in memory.
    footprint_bytes: int = field(init=False, repr=False, compare=False)

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before, or may have been."""
        return self.delivery_count > 0 or self.recovered

    @property
    def is_paged(self) -> bool:
        """Whether body and properties are only in the store."""
        return self.paged_bytes >= 0

    @property
    def body_bytes(self) -> int:
        """Size of the body, in memory or in the store."""
        return len(self.body) if self.paged_bytes < 0 else self.paged_bytes

    def __post_init__(self) -> None:
        # Computed once: it is read when the message arrives, when it is written and when it is removed.
        size = len(self.body) + len(self.properties) + len(self.origin) + MESSAGE_OVERHEAD_BYTES
        self.footprint_bytes = size if self.expires_us is None else size + EXPIRY_BYTES


# Sender, receiver and context of a message, by which readers may select it.
Correlation = tuple[int | None, int | None, int | None]


@dataclass(slots=True)
class Draft:
    """A message to be published: the fields that its sender decides."""

    body: bytes
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None
    priority: int = 0
    expires_us: int | None = None
    properties: bytes = b""
    persistent: bool = True
    origin: bytes = b""


@dataclass(slots=True, frozen=True)
class Selector:
    """A filter for messages of a queue, and the order of the matches.

    A `reader` sees messages addressed to it and, while `unaddressed` is true, those without a receiver.
    A reader of None sees every message.
    """

    reader: int | None = None
    unaddressed: bool = True
    sender: int | None = None
    context: int | None = None
    order: Order = Order.OLDEST


@dataclass(slots=True)
class QueueSummary:
    """Counts of a recovered queue, whose messages are not read."""

    queue: Queue
    message_count: int = 0
    last_message_id: int = 0
    # Number of messages by receiver.
    addressed: dict[int, int] = field(default_factory=dict)
    # Number of messages by sender.
    sent: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Definition:
    """A stored definition other than a client, queue or message: an exchange, a binding, a user ...

    `value` is JSON. `kind` and `key` are unique together. The repr leaves out the value, which may hold a secret.
    """

    kind: str
    key: str
    value: Mapping[str, Any] = field(hash=False, repr=False)


@dataclass(slots=True, frozen=True)
class PlacedQueue:
    """A queue and the node that serves it."""

    queue: Queue
    owner: int


@dataclass(slots=True)
class Snapshot:
    """The state that a node reads once, at recovery, before it serves."""

    clients: list[Client] = field(default_factory=list)
    queues: list[QueueSummary] = field(default_factory=list)
    next_client_id: int = 1
    next_queue_id: int = 1
    definitions: list[Definition] = field(default_factory=list)
    # The queues that other nodes of the domain serve.
    elsewhere: list[PlacedQueue] = field(default_factory=list)
    # The last change of the domain that the snapshot includes.
    version: int = 0


def size_of(value: object) -> int:
    """Estimate the memory of a definition's arguments."""
    if isinstance(value, str | bytes):
        return 60 + len(value)
    if isinstance(value, Mapping):
        return 100 + sum([100 + size_of(key) + size_of(item) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return 60 + sum([8 + size_of(item) for item in value])
    return 32
