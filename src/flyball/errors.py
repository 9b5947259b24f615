"""One hierarchy of errors. The engine and the store raise facts; each protocol maps them to its own codes.

FlyballError
├── RequestError               the peer asked for something that cannot be; the connection goes on
│   ├── QueueNotFound
│   ├── QueueNameTaken
│   ├── QueueNotEmpty
│   ├── QueueFull
│   ├── QueueLimitReached      a virtual host has as many queues as it may have
│   ├── ConnectionLimitReached a virtual host or a user has as many connections as it may have
│   ├── QueueInUse
│   ├── ConsumerRefused        somebody consumes it, or wants to, alone
│   ├── QueueLocked            another connection has it for itself
│   ├── ExchangeNotFound
│   ├── ExchangeInUse
│   ├── UnknownExchangeType
│   ├── TopicNotFound
│   ├── TopicInUse             it has children or durable subscriptions
│   ├── VhostNotFound
│   ├── VhostNameTaken
│   ├── UserNotFound
│   ├── UserNameTaken
│   ├── PolicyNotFound
│   ├── InvalidPattern         not a regular expression
│   ├── UnlikeDeclared         it exists and was declared in another way
│   ├── MemoryLimitReached     no memory for another queue, exchange or binding
│   ├── InvalidArgument
│   ├── ReservedName
│   ├── ClientNotFound
│   ├── ClientNameTaken
│   ├── ClientInUse
│   ├── LeaseNotFound
│   ├── InvalidName
│   ├── InvalidBody
│   ├── LoopNotFound
│   ├── NotSwitchable          a loop cannot be in the mode that somebody wants
│   ├── TooManyLoops
│   ├── NotPermitted
│   └── NotIdentified
├── ProtocolError              the peer broke the rules of its protocol; the connection ends
├── StoreError                 our side: the store could not do it
│   ├── StoreUnavailable       it did not answer in time; the outcome may be unknown
│   │   └── StoreStarting      its server is starting, stopping or recovering
│   ├── StoreMismatch          it holds something this version cannot read
│   ├── StoreInUse             another process has this node's place in it
│   └── Fenced                 others have taken this node's place: it may write nothing more
│       └── StoreRewound       the store has gone back in time: the node joins again
├── SettingsError              a setting is wrong; the field names it
├── LabError                   an experiment cannot be run, or went wrong
├── ControlError               a model, a design or a loop is not fit to be used
├── ClusterError               a domain cannot be changed, or a node cannot join it, as it was asked to
│   └── PeerLost               another node could not be asked, or did not answer
├── AdmissionError             admission control cannot work with what it was given
├── NotAdmitted                a request was turned away; it may come again later
└── PipelineError              the pipeline cannot work with what it was given, or without what it needs
"""

from __future__ import annotations


class FlyballError(Exception):
    """The root of all errors that Flyball raises on purpose."""


class RequestError(FlyballError):
    """The peer asked for something that cannot be done. The connection goes on."""


class QueueNotFound(RequestError):
    """An operation named a queue that does not exist."""

    def __init__(self, queue: int | str, vhost: str | None = None) -> None:
        super().__init__(f"no queue {queue!r}" if vhost is None else f"no queue '{queue}' in vhost '{vhost}'")
        self.queue = queue


class QueueNameTaken(RequestError):
    """A queue of that name exists already."""

    def __init__(self, queue_name: str) -> None:
        super().__init__(f"there is already a queue named {queue_name!r}")
        self.queue_name = queue_name


class QueueNotEmpty(RequestError):
    """A queue was to be removed only if empty, and is not."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' not empty")
        self.queue_name = queue_name


class ConsumerRefused(RequestError):
    """A queue has a consumer that wants to be alone, or has others and is asked for one that does."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' in exclusive use")
        self.queue_name = queue_name


class QueueFull(RequestError):
    """A queue holds as much as it may and takes no more."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' is full")
        self.queue_name = queue_name


class QueueLimitReached(RequestError):
    """A virtual host has as many queues as it may have."""

    def __init__(self, queue_name: str, vhost: str, limit: int) -> None:
        super().__init__(f"cannot declare queue '{queue_name}': queue limit in vhost '{vhost}' ({limit}) is reached")
        self.queue_name = queue_name
        self.vhost = vhost
        self.limit = limit


class RoutingTooCostly(RequestError):
    """To find the queues of one message would keep all other clients waiting."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the routing keys of this message meet more than {limit} places in the patterns of topic exchanges:"
            " send it with fewer keys"
        )
        self.limit = limit


class ConnectionLimitReached(RequestError):
    """A virtual host or a user has as many connections as it may have."""


class QueueInUse(RequestError):
    """A queue was to be removed only if unused, and has consumers."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' in use")
        self.queue_name = queue_name


class QueueLocked(RequestError):
    """A queue belongs to another connection, or to a consumer that wants to be alone."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(
            f"cannot obtain exclusive access to locked queue '{queue_name}' in vhost '{vhost}'. It could be"
            " originally declared on another connection or the exclusive property value does not match that of the"
            " original declaration."
        )
        self.queue_name = queue_name


class ExchangeNotFound(RequestError):
    """An operation named an exchange that does not exist."""

    def __init__(self, exchange_name: str, vhost: str) -> None:
        super().__init__(f"no exchange '{exchange_name}' in vhost '{vhost}'")
        self.exchange_name = exchange_name


class ExchangeInUse(RequestError):
    """An exchange was to be removed only if unused, and has bindings."""

    def __init__(self, exchange_name: str, vhost: str) -> None:
        super().__init__(f"exchange '{exchange_name}' in vhost '{vhost}' in use")
        self.exchange_name = exchange_name


class UnknownExchangeType(RequestError):
    """An exchange was declared of a type that there is not."""

    def __init__(self, exchange_type: str) -> None:
        super().__init__(f"{'unknown' if exchange_type else 'invalid'} exchange type '{exchange_type}'")
        self.exchange_type = exchange_type


class TopicNotFound(RequestError):
    """An operation named a topic that does not exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no topic {topic!r}; create it first")
        self.topic = topic


class TopicInUse(RequestError):
    """A topic was to be removed while others depend on it."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r} cannot go: {reason}")
        self.topic = topic


class VhostNotFound(RequestError):
    """An operation named a virtual host that does not exist."""

    def __init__(self, vhost: str) -> None:
        super().__init__(f"no vhost '{vhost}'")
        self.vhost = vhost


class VhostNameTaken(RequestError):
    """A virtual host of that name exists already."""

    def __init__(self, vhost: str) -> None:
        super().__init__(f"there is already a vhost named {vhost!r}")
        self.vhost = vhost


class UserNotFound(RequestError):
    """An operation named a user that does not exist."""

    def __init__(self, user: str) -> None:
        super().__init__(f"no user {user!r}")
        self.user = user


class UserNameTaken(RequestError):
    """A user of that name exists already."""

    def __init__(self, user: str) -> None:
        super().__init__(f"there is already a user named {user!r}")
        self.user = user


class PolicyNotFound(RequestError):
    """An operation named a policy that does not exist."""

    def __init__(self, policy: str, vhost: str) -> None:
        super().__init__(f"no policy {policy!r} in vhost '{vhost}'")
        self.policy = policy


class InvalidPattern(RequestError):
    """A pattern is not a regular expression."""

    def __init__(self, pattern: str, problem: str) -> None:
        super().__init__(f"{pattern!r} is not a regular expression: {problem}")
        self.pattern = pattern


class UnlikeDeclared(RequestError):
    """A queue or exchange is declared again, and differs from what exists."""

    def __init__(self, field: str, what: str, vhost: str, received: str, current: str) -> None:
        super().__init__(
            f"inequivalent arg '{field}' for {what} in vhost '{vhost}': received {received} but current is {current}"
        )
        self.field = field


class MemoryLimitReached(RequestError):
    """There is no memory for another queue, exchange, binding or client."""

    def __init__(self, held_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"queues, exchanges, bindings and clients take {held_bytes} bytes of memory, the limit is {limit_bytes}:"
            " delete some, or raise --memory-bytes"
        )
        self.held_bytes = held_bytes
        self.limit_bytes = limit_bytes


class InvalidArgument(RequestError):
    """An argument of a declaration has a value that it cannot have."""


class ReservedName(RequestError):
    """A name that only the broker itself may use, or something that nobody may change."""


class ClientNotFound(RequestError):
    """An operation named a client that does not exist."""

    def __init__(self, client: int | str) -> None:
        super().__init__(f"no client {client!r}")
        self.client = client


class ClientNameTaken(RequestError):
    """A client of that name exists already."""

    def __init__(self, client_name: str) -> None:
        super().__init__(f"there is already a client named {client_name!r}")
        self.client_name = client_name


class ClientInUse(RequestError):
    """A client was to be removed only if unused, and messages of its are still stored."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} is the sender of stored messages")
        self.client = client


class LeaseNotFound(RequestError):
    """A message was settled that its consumer does not hold (any more)."""

    def __init__(self, message_id: int) -> None:
        super().__init__(f"message {message_id} is not leased by this consumer")
        self.message_id = message_id


class InvalidName(RequestError):
    """A name is too long or holds a character that names may not have."""


class InvalidBody(RequestError):
    """A message's content is too long or not what its protocol allows."""


class LoopNotFound(RequestError):
    """An operation named a control loop that the node does not know."""

    def __init__(self, loop_name: str) -> None:
        super().__init__(f"no loop {loop_name!r}")
        self.loop_name = loop_name


class NotSwitchable(RequestError):
    """A control loop cannot be put into the mode that somebody wants."""

    def __init__(self, loop_name: str, reason: str) -> None:
        super().__init__(f"the loop {loop_name!r} cannot be switched: {reason}")
        self.loop_name = loop_name


class TooManyLoops(RequestError):
    """A node that knows as many loops as it may was told of another one."""

    def __init__(self, most: int, user: str = "") -> None:
        whose = f" of user '{user}'" if user else ""
        super().__init__(f"{most} loops{whose} are reported already: more are not kept")


class NotPermitted(RequestError):
    """The client's mode forbids the operation."""


class NotIdentified(RequestError):
    """The operation needs a client identity that the connection does not have."""


class ProtocolError(FlyballError):
    """The peer broke the rules of its protocol. The connection ends."""


class StoreError(FlyballError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store did not answer within the time limit. What was asked may or may not be done."""


class StoreStarting(StoreUnavailable):
    """The store's server is starting, stopping or recovering: it takes connections soon, or after a restart."""


class StoreMismatch(StoreError):
    """The store holds data of another version, or of something else."""


class StoreInUse(StoreError):
    """Another process uses the store under this node's name, or its data folder: an operator has to stop one."""


class Fenced(StoreError):
    """The node's epoch is over: others serve its queues. It may write nothing more and has to join again."""


class StoreRewound(Fenced):
    """The store has gone back in time, and does not know of all that this node has written."""


class SettingsError(FlyballError):
    """A setting has a bad value."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


class LabError(FlyballError):
    """An experiment is not well described, or went wrong while it ran."""


class ControlError(FlyballError):
    """A model, a design or a control loop is not fit to be used."""


class ClusterError(FlyballError):
    """A domain cannot be changed, or a node cannot join it, as it was asked to."""


class PeerLost(ClusterError):
    """Another node is gone, cannot be reached or does not answer. What it was asked for may or may not be done."""

    def __init__(self, node_id: int, problem: str) -> None:
        super().__init__(f"node {node_id} {problem}")
        self.node_id = node_id


class AdmissionError(FlyballError):
    """Admission control cannot work with what it was given."""


class NotAdmitted(FlyballError):
    """A request was turned away before it began: its time was up, or too many wait already."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:.0f} s")
        self.reason = reason
        self.retry_after_s = retry_after_s


class PipelineError(FlyballError):
    """The pipeline was given something that it cannot work with, or lacks something that it needs."""
