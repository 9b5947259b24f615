"""What nodes say to each other: one class for each kind of frame. How they lie in bytes is the codec's business."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flyball.model import Correlation, Selector

VERSION = 3
"""Of the protocol: nodes of different versions do not talk."""

NONCE_BYTES = 32
PROOF_BYTES = 32


class Outcome(enum.IntEnum):
    """What became of a message that was to be put into a queue of another node."""

    STORED = 0
    """It is there: in the store, if it is to be kept."""
    FULL = 1
    """The queue takes no more."""
    NOT_FOUND = 2
    """There is no such queue any more."""
    MOVED = 3
    """Another node serves the queue; this one has not got the message."""
    UNKNOWN = 4
    """Nobody can tell."""


class Settlement(enum.IntEnum):
    """What becomes of a message that was delivered."""

    ACK = 0
    """It is dealt with."""
    REQUEUE = 1
    """It was delivered and goes back."""
    REJECT = 2
    """It was delivered, and nobody is to get it any more."""
    RETURN = 3
    """It was not delivered to anybody and goes back as it was."""


class Ending(enum.IntEnum):
    """Why a consumer gets no more."""

    ASKED = 0
    DELETED = 1
    """Its queue is gone."""
    MOVED = 2
    """Another node serves its queue."""
    FAILED = 3
    """Its node has met a defect and has requeued what it had."""


@dataclass(slots=True)
class Content:
    """A message as it goes over the link: all but its place in a queue."""

    body: bytes
    properties: bytes = b""
    origin: bytes = b""
    persistent: bool = True
    priority: int = 0
    time_us: int | None = None
    """How long it may live, in a put; when its time is up, elsewhere."""
    sender: int | None = None
    receiver: int | None = None
    context: int | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.properties) + len(self.origin)

    @property
    def correlation(self) -> Correlation | None:
        found = (self.sender, self.receiver, self.context)
        return None if found == (None, None, None) else found


@dataclass(slots=True)
class Hello:
    """The first that each side says."""

    version: int
    node_id: int
    epoch: int
    nonce: bytes


@dataclass(slots=True)
class Proof:
    """That the sender knows the secret of the domain, made from both Hellos."""

    digest: bytes


@dataclass(slots=True)
class Request:
    """A question. Numbers are the asker's, one sequence for all that is answered."""

    number: int
    text: bytes


@dataclass(slots=True)
class Response:
    number: int
    text: bytes


@dataclass(slots=True)
class Failure:
    """Whatever had that number could not be done."""

    number: int
    kind: str
    """The name of the error's class."""
    text: str


@dataclass(slots=True)
class Put:
    number: int
    queue_ids: list[int]
    content: Content


@dataclass(slots=True)
class PutDone:
    """Answers many puts at once."""

    outcome: int
    numbers: list[int]


@dataclass(slots=True)
class Consume:
    """Asks for the messages of a queue; the number is the consumer's from then on."""

    number: int
    queue_id: int
    prefetch: float
    priority: int
    exclusive: bool
    selector: Selector | None = None
    """Which messages it asks for; None: in the order of the queue."""


@dataclass(slots=True)
class Consuming:
    number: int


@dataclass(slots=True)
class Deliver:
    """A message for a consumer, leased to it."""

    consumer: int
    message_id: int
    arrived_us: int
    delivery_count: int
    content: Content
    recovered: bool = False
    """Whether it may have been delivered before its node served the queue."""


@dataclass(slots=True)
class Settle:
    """Ends leases of a consumer, or of messages that were asked for with Get (consumer 0)."""

    consumer: int
    settlement: int
    message_ids: list[int]


@dataclass(slots=True)
class Window:
    """Changes how many messages a consumer may hold."""

    consumer: int
    prefetch: float


@dataclass(slots=True)
class Pause:
    consumer: int


@dataclass(slots=True)
class Resume:
    consumer: int


@dataclass(slots=True)
class Cancel:
    """The consumer wants no more; what it holds it may still settle."""

    consumer: int


@dataclass(slots=True)
class Cancelled:
    """The last that comes for a consumer. For 0, which is none: an acknowledgement came after the queue had moved."""

    consumer: int
    ending: int


@dataclass(slots=True)
class Get:
    number: int
    queue_id: int


@dataclass(slots=True)
class Got:
    """One message, leased to the link if Get asked for it, or none; and how many more are ready."""

    number: int
    ready: int
    message: Deliver | None


@dataclass(slots=True)
class Read:
    """Asks for the first message that a selector fits, to look at it or for good. Got answers, with no lease."""

    number: int
    queue_id: int
    selector: Selector
    removes: bool
    """The message is gone for good before the answer comes."""
    only_text: bool
    """A message with a zero byte stays, and is refused: the reader's protocol cannot express it."""


@dataclass(slots=True)
class List:
    """Asks for the ready messages of a queue with a larger id, oldest first, to look at them."""

    number: int
    queue_id: int
    after_id: int
    limit: int


@dataclass(slots=True)
class Listed:
    """Some of them, as many as fit into a frame; none if there are no more."""

    number: int
    messages: list[Deliver]


@dataclass(slots=True)
class Hand:
    """Messages that change over from one member of a clustered queue to another. They are in no store.

    The batch is the sender's count: one that comes again, over another connection, is answered and not taken twice.
    """

    number: int
    batch: int
    queue_id: int
    messages: list[Deliver]


@dataclass(slots=True)
class Handed:
    number: int
    outcome: int


@dataclass(slots=True)
class Reply:
    """A direct reply to a channel of AMQP on the other node."""

    name: str
    content: Content


Frame = (
    Hello
    | Proof
    | Request
    | Response
    | Failure
    | Put
    | PutDone
    | Consume
    | Consuming
    | Deliver
    | Settle
    | Window
    | Pause
    | Resume
    | Cancel
    | Cancelled
    | Get
    | Got
    | Read
    | List
    | Listed
    | Hand
    | Handed
    | Reply
)
