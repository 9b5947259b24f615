"""The nouns of Flyball: messages, queues, clients, and what a reader asks for.

Plain data, known to every layer. Nothing here does I/O, keeps time or knows a protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_NAME_LENGTH = 255
"""Longest name of a client or queue, in characters."""

DEFAULT_VHOST = "/"
"""The virtual host of whoever does not name one: all clients of the research protocols."""

OWNER = "@owner"
"""The user name of whoever logs in with the node's token. No user can be added under it."""

TOKEN_FILE = "admin.token"
"""The file in a node's data folder that holds its token."""

Arguments = Mapping[str, Any]
"""What a declaration says beyond its fixed fields, by name."""


@dataclass(slots=True, frozen=True)
class Timestamp:
    """A point in time, in seconds since 1970, that is beyond what a datetime can hold."""

    seconds: int


MESSAGE_OVERHEAD_BYTES = 600
"""What a message costs in memory beyond its body and properties, indexes included."""

# Queues that one request of Telesto or ThorBangMQ may name: a list of a million fits into 3 MB, and each mention is a
# copy. Of a longer list one more is read, so that it is refused.
MAX_COPIES = 10_000

# What it costs to remember when a message in memory expires.
EXPIRY_BYTES = 250


# What a queue, an exchange and a binding cost in memory beyond their arguments, with all that knows them.
QUEUE_BYTES = 4096
EXCHANGE_BYTES = 2048
BINDING_BYTES = 2048

# What a registered client costs in memory, with its name.
CLIENT_BYTES = 1024

# What a place in the trie of a topic exchange costs: a word of a binding's key takes one, unless others begin alike.
TOPIC_PLACE_BYTES = 512


class ClientMode(enum.IntEnum):
    """What a client may do. The numbers are those of the Telesto protocol."""

    FULL = 1
    READ_ONLY = 2


class Order(enum.IntEnum):
    """Which of the matching messages a read returns."""

    OLDEST = 1
    NEWEST = 2
    PRIORITY = 3
    """Highest priority first, oldest first among equals."""


@dataclass(slots=True)
class Client:
    """Somebody with an identity: the sender and receiver of messages."""

    id: int
    name: str
    mode: ClientMode


@dataclass(slots=True)
class Queue:
    """The name and number of a queue and how it was declared; its messages are the engine's business.

    The name is unique in its virtual host, except that the members of a clustered queue, each on a node of its own,
    all have the name of the clustered queue. A queue that is not durable is forgotten when the node stops; an
    exclusive one serves the connection that declared it and ends with it.
    """

    id: int
    name: str
    vhost: str = DEFAULT_VHOST
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    member: bool = False
    """Whether it is a member of a clustered queue."""


@dataclass(slots=True)
class Exchange:
    """Where publishers of AMQP send messages: it routes them to queues and other exchanges by its bindings."""

    name: str
    type: str
    vhost: str = DEFAULT_VHOST
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


class Destination(enum.StrEnum):
    """What a binding leads to."""

    QUEUE = "queue"
    EXCHANGE = "exchange"


@dataclass(slots=True)
class Binding:
    """A rule of an exchange: what fits goes on to the destination."""

    source: str
    destination: str
    kind: Destination = Destination.QUEUE
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)
    vhost: str = DEFAULT_VHOST


@dataclass(slots=True)
class User:
    """Somebody who may log in. The hash is argon2's, None for one who cannot log in with a password."""

    name: str
    password_hash: str | None = field(default=None, repr=False)
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Permission:
    """What a user may do in a virtual host: regular expressions of the names of queues and exchanges."""

    user: str
    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass(slots=True)
class Policy:
    """Arguments for all queues or exchanges whose names fit a pattern; the one with the highest priority applies."""

    name: str
    pattern: str
    definition: Arguments
    vhost: str = DEFAULT_VHOST
    apply_to: str = "all"
    """all, queues or exchanges."""
    priority: int = 0


Receipt = tuple[Callable[[int, bool], None], int]
"""What to call, and with which number; and whether the store has refused the message."""


@dataclass(slots=True)
class Message:
    """What was published into one queue.

    Ids count up in the order of arrival, so the id is also the place in the queue. `receiver`, `sender`
    and `context` are None where there is none. `properties` are opaque here: the protocol that wrote
    them reads them. Times are microseconds since 1970 in UTC. A message that came through AMQP has an
    `origin`, exchange and routing key as two short strings of that protocol, and its properties as AMQP encodes
    them; any other has none.
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
    delivery_count: int = 0
    """How often it was handed to a consumer and came back."""
    recovered: bool = False
    """Whether it was read back after a restart or a move to another node: it may have been delivered before."""
    stored: bool = False
    """Whether the store has it: set when its commit is through."""
    receipt: Receipt | None = field(default=None, repr=False, compare=False)
    """Who wants to know if it is acked before it is stored, or refused by the store; None from then on."""
    paged_bytes: int = field(default=-1, repr=False, compare=False)
    """How long the body is while body and properties are left to the store (see `Engine.page_out`); else -1."""
    footprint_bytes: int = field(init=False, repr=False, compare=False)
    """What it costs in memory."""

    @property
    def redelivered(self) -> bool:
        """Whether a consumer has had it before, or may have."""
        return self.delivery_count > 0 or self.recovered

    @property
    def is_paged(self) -> bool:
        """Whether body and properties are not here but in the store."""
        return self.paged_bytes >= 0

    @property
    def body_bytes(self) -> int:
        """How long the body is, wherever it is."""
        return len(self.body) if self.paged_bytes < 0 else self.paged_bytes

    def __post_init__(self) -> None:
        # Once: it is asked for when the message comes, when it is written and when it goes.
        size = len(self.body) + len(self.properties) + len(self.origin) + MESSAGE_OVERHEAD_BYTES
        self.footprint_bytes = size if self.expires_us is None else size + EXPIRY_BYTES


Correlation = tuple[int | None, int | None, int | None]
"""Sender, receiver and context of a message, by which readers may select it."""


@dataclass(slots=True)
class Draft:
    """A message on its way in: what the sender decides about it."""

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
    """Which messages of a queue a reader asks for, and which of those comes first.

    A `reader` sees messages addressed to it and, while `unaddressed` is true, those addressed to nobody.
    A reader of None sees everything, whoever it is addressed to.
    """

    reader: int | None = None
    unaddressed: bool = True
    sender: int | None = None
    context: int | None = None
    order: Order = Order.OLDEST


@dataclass(slots=True)
class QueueSummary:
    """What recovery tells about one queue without reading its messages."""

    queue: Queue
    message_count: int = 0
    last_message_id: int = 0
    addressed: dict[int, int] = field(default_factory=dict)
    """How many messages wait for each receiver."""
    sent: dict[int, int] = field(default_factory=dict)
    """How many messages there are of each sender."""


@dataclass(slots=True, frozen=True)
class Definition:
    """Something that is declared and kept beside clients, queues and messages: an exchange, a binding, a user ...

    `value` is what JSON can say. There is one of each `kind` and `key`. As a text it does not show its value,
    which may hold a secret.
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
    """Everything a node needs to know before it serves: read once, at recovery."""

    clients: list[Client] = field(default_factory=list)
    queues: list[QueueSummary] = field(default_factory=list)
    next_client_id: int = 1
    next_queue_id: int = 1
    definitions: list[Definition] = field(default_factory=list)
    elsewhere: list[PlacedQueue] = field(default_factory=list)
    """The queues that other nodes of the domain serve."""
    version: int = 0
    """The last change of the domain that is in here."""


def size_of(value: object) -> int:
    """Return about how much memory the arguments of a definition take."""
    if isinstance(value, str | bytes):
        return 60 + len(value)
    if isinstance(value, Mapping):
        return 100 + sum([100 + size_of(key) + size_of(item) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return 60 + sum([8 + size_of(item) for item in value])
    return 32
