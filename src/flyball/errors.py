"""One hierarchy of errors. The engine and the store raise facts; each protocol maps them to its own codes.

FlyballError
├── RequestError               a request cannot be served; the connection stays open
│   ├── QueueNotFound
│   ├── QueueNameTaken
│   ├── QueueNotEmpty
│   ├── QueueFull
│   ├── QueueLimitReached      the virtual host's limit of queues
│   ├── RoutingTooCostly       the message's routing keys match too many topic patterns
│   ├── ConnectionLimitReached the limit of connections of a virtual host or user
│   ├── QueueInUse
│   ├── ConsumerRefused        the queue has an exclusive consumer, or consumers and an exclusive one is requested
│   ├── QueueLocked            exclusive to another connection
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
│   ├── InvalidPattern         not a valid regular expression
│   ├── UnlikeDeclared         redeclared with other properties
│   ├── MemoryLimitReached     no memory for another queue, exchange, binding or model
│   ├── InvalidArgument
│   ├── ReservedName
│   ├── ClientNotFound
│   ├── ClientNameTaken
│   ├── ClientInUse
│   ├── LeaseNotFound
│   ├── InvalidName
│   ├── InvalidBody
│   ├── LoopNotFound
│   ├── ModelNotFound
│   ├── ModelConflict          the version of a model cannot get the requested state
│   ├── NotSwitchable          the loop does not support the requested mode
│   ├── TooManyLoops
│   ├── NotPermitted
│   └── NotIdentified
├── ProtocolError              the peer violated its protocol; the connection is closed
├── StoreError                 the store failed
│   ├── StoreUnavailable       no response in time; the outcome may be unknown
│   │   └── StoreStarting      its server is starting, stopping or recovering
│   ├── StoreMismatch          its data is of another version, or not Flyball's
│   ├── StoreInUse             another process uses it as this node
│   └── Fenced                 the node's lease expired: it must not write
│       └── StoreRewound       the store was restored to an earlier state: the node rejoins
├── SettingsError              a setting is invalid; the field names it
├── LabError                   an experiment is invalid or failed
├── ControlError               a model, design or loop is not usable
├── ClusterError               a change of the domain, or a join, failed
│   └── PeerLost               another node is unreachable or does not respond
├── AdmissionError             admission control is misconfigured
├── NotAdmitted                a request was rejected; the client may retry later
└── PipelineError              the pipeline's input is invalid, or a dependency is missing
"""

from __future__ import annotations


class FlyballError(Exception):
    """The root of all errors that Flyball raises on purpose."""


class RequestError(FlyballError):
    """The request cannot be served. The connection stays open."""


class QueueNotFound(RequestError):
    """An operation named a queue that does not exist."""

    def __init__(self, queue: int | str, vhost: str | None = None) -> None:
        super().__init__(f"no queue {queue!r}" if vhost is None else f"no queue '{queue}' in vhost '{vhost}'")
        self.queue = queue


class QueueNameTaken(RequestError):
    """A queue with this name already exists."""

    def __init__(self, queue_name: str) -> None:
        super().__init__(f"there is already a queue named {queue_name!r}")
        self.queue_name = queue_name


class QueueNotEmpty(RequestError):
    """A conditional delete (if-empty) found messages in the queue."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' not empty")
        self.queue_name = queue_name


class ConsumerRefused(RequestError):
    """The queue has an exclusive consumer, or has consumers and the new one is exclusive."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' in exclusive use")
        self.queue_name = queue_name


class QueueFull(RequestError):
    """The queue is at its length limit and rejects new messages."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' is full")
        self.queue_name = queue_name


class QueueLimitReached(RequestError):
    """The virtual host is at its limit of queues."""

    def __init__(self, queue_name: str, vhost: str, limit: int) -> None:
        super().__init__(f"cannot declare queue '{queue_name}': queue limit in vhost '{vhost}' ({limit}) is reached")
        self.queue_name = queue_name
        self.vhost = vhost
        self.limit = limit


class RoutingTooCostly(RequestError):
    """Routing this message would block the event loop for too long."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the routing keys of this message match more than {limit} nodes of topic patterns: publish it with"
            " fewer routing keys"
        )
        self.limit = limit


class ConnectionLimitReached(RequestError):
    """The virtual host or user is at its limit of connections."""


class QueueInUse(RequestError):
    """A conditional delete (if-unused) found consumers on the queue."""

    def __init__(self, queue_name: str, vhost: str) -> None:
        super().__init__(f"queue '{queue_name}' in vhost '{vhost}' in use")
        self.queue_name = queue_name


class QueueLocked(RequestError):
    """The queue is exclusive to another connection."""

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
    """A conditional delete (if-unused) found bindings on the exchange."""

    def __init__(self, exchange_name: str, vhost: str) -> None:
        super().__init__(f"exchange '{exchange_name}' in vhost '{vhost}' in use")
        self.exchange_name = exchange_name


class UnknownExchangeType(RequestError):
    """The declared exchange type does not exist."""

    def __init__(self, exchange_type: str) -> None:
        super().__init__(f"{'unknown' if exchange_type else 'invalid'} exchange type '{exchange_type}'")
        self.exchange_type = exchange_type


class TopicNotFound(RequestError):
    """An operation named a topic that does not exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no topic {topic!r}; create it first")
        self.topic = topic


class TopicInUse(RequestError):
    """The topic cannot be deleted: it has children or durable subscriptions."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic!r} cannot be deleted: {reason}")
        self.topic = topic


class VhostNotFound(RequestError):
    """An operation named a virtual host that does not exist."""

    def __init__(self, vhost: str) -> None:
        super().__init__(f"no vhost '{vhost}'")
        self.vhost = vhost


class VhostNameTaken(RequestError):
    """A virtual host with this name already exists."""

    def __init__(self, vhost: str) -> None:
        super().__init__(f"there is already a vhost named {vhost!r}")
        self.vhost = vhost


class UserNotFound(RequestError):
    """An operation named a user that does not exist."""

    def __init__(self, user: str) -> None:
        super().__init__(f"no user {user!r}")
        self.user = user


class UserNameTaken(RequestError):
    """A user with this name already exists."""

    def __init__(self, user: str) -> None:
        super().__init__(f"there is already a user named {user!r}")
        self.user = user


class PolicyNotFound(RequestError):
    """An operation named a policy that does not exist."""

    def __init__(self, policy: str, vhost: str) -> None:
        super().__init__(f"no policy {policy!r} in vhost '{vhost}'")
        self.policy = policy


class InvalidPattern(RequestError):
    """The pattern is not a valid regular expression."""

    def __init__(self, pattern: str, problem: str) -> None:
        super().__init__(f"{pattern!r} is not a regular expression: {problem}")
        self.pattern = pattern


class UnlikeDeclared(RequestError):
    """A queue or exchange is redeclared with other properties than it has."""

    def __init__(self, field: str, what: str, vhost: str, received: str, current: str) -> None:
        super().__init__(
            f"inequivalent arg '{field}' for {what} in vhost '{vhost}': received {received} but current is {current}"
        )
        self.field = field


class MemoryLimitReached(RequestError):
    """The memory budget for queues, exchanges, bindings, clients and models is used up."""

    def __init__(self, held_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"queues, exchanges, bindings, clients and models use {held_bytes} bytes of memory, the limit is"
            f" {limit_bytes}: delete some, or raise --memory-bytes"
        )
        self.held_bytes = held_bytes
        self.limit_bytes = limit_bytes


class InvalidArgument(RequestError):
    """An argument of a declaration has an invalid value."""


class ReservedName(RequestError):
    """The name is reserved for the broker, or the object cannot be changed."""


class ClientNotFound(RequestError):
    """An operation named a client that does not exist."""

    def __init__(self, client: int | str) -> None:
        super().__init__(f"no client {client!r}")
        self.client = client


class ClientNameTaken(RequestError):
    """A client with this name already exists."""

    def __init__(self, client_name: str) -> None:
        super().__init__(f"there is already a client named {client_name!r}")
        self.client_name = client_name


class ClientInUse(RequestError):
    """A conditional delete found stored messages sent by the client."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} is the sender of stored messages")
        self.client = client


class LeaseNotFound(RequestError):
    """The consumer acked or rejected a message that is not leased to it, or no longer."""

    def __init__(self, message_id: int) -> None:
        super().__init__(f"message {message_id} is not leased by this consumer")
        self.message_id = message_id


class InvalidName(RequestError):
    """A name is too long or contains a character that is not allowed."""


class InvalidBody(RequestError):
    """A message body is too long or not valid for its protocol."""


class LoopNotFound(RequestError):
    """An operation named a control loop that the node does not know."""

    def __init__(self, loop_name: str) -> None:
        super().__init__(f"no loop {loop_name!r}")
        self.loop_name = loop_name


class ModelNotFound(RequestError):
    """An operation named a model or version that the registry does not have."""

    def __init__(self, kind: str, scope: str, version: int | None = None) -> None:
        which = "" if version is None else f"version {version} of "
        super().__init__(f"no {which}{kind} model for scope '{scope}'")
        self.kind = kind
        self.scope = scope
        self.version = version


class ModelConflict(RequestError):
    """The version of a model cannot get the requested state: unsound, pinned, or changed meanwhile."""


class NotSwitchable(RequestError):
    """The control loop does not support the requested mode."""

    def __init__(self, loop_name: str, reason: str) -> None:
        super().__init__(f"loop {loop_name!r} cannot be switched: {reason}")
        self.loop_name = loop_name


class TooManyLoops(RequestError):
    """The node is at its limit of reported loops."""

    def __init__(self, maximum: int, user: str = "") -> None:
        whose = f" of user '{user}'" if user else ""
        super().__init__(f"{maximum} loops{whose} are registered already, the maximum: stop one to add another")


class NotPermitted(RequestError):
    """The client's mode forbids the operation."""


class NotIdentified(RequestError):
    """The operation requires a client identity, and the connection has none."""


class ProtocolError(FlyballError):
    """The peer violated its protocol. The connection is closed."""


class StoreError(FlyballError):
    """The store failed."""


class StoreUnavailable(StoreError):
    """The store did not respond within its timeout. The outcome of the request is unknown."""


class StoreStarting(StoreUnavailable):
    """The store's server is starting, stopping or recovering: connections succeed soon, or after a restart."""


class StoreMismatch(StoreError):
    """The store's data is of another version, or not Flyball's."""


class StoreInUse(StoreError):
    """Another process uses the store under this node's name, or its data folder. An operator has to stop one."""


class Fenced(StoreError):
    """The node's lease expired and others serve its queues. It must not write, and has to join again."""


class StoreRewound(Fenced):
    """The store was restored to an earlier state and lacks writes of this node."""


class SettingsError(FlyballError):
    """A setting has an invalid value."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


class LabError(FlyballError):
    """An experiment's description is invalid, or its run failed."""


class ControlError(FlyballError):
    """A model, a design or a control loop is not usable."""


class ClusterError(FlyballError):
    """A change of the domain, or a node's join, failed."""


class PeerLost(ClusterError):
    """Another node is gone, unreachable or does not respond. The outcome of the request is unknown."""

    def __init__(self, node_id: int, problem: str) -> None:
        super().__init__(f"node {node_id} {problem}")
        self.node_id = node_id


class AdmissionError(FlyballError):
    """Admission control is misconfigured."""


class NotAdmitted(FlyballError):
    """The request was rejected before it was executed: it timed out in the queue, or the queue is full."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:.0f} s")
        self.reason = reason
        self.retry_after_s = retry_after_s


class PipelineError(FlyballError):
    """The pipeline's input is invalid, or a dependency is missing."""
