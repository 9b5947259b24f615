"""Checks the requests and answers of clients for messages that were lost, duplicated or reordered.

One pass over the operations, live or from a file; about twenty bytes are kept per completed message. Independent of
protocols and brokers: it sees only requests and answers.
"""

from __future__ import annotations

import json
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from flyball.errors import LabError

# Violations that are explained; further ones are only counted.
KEPT_VIOLATIONS = 100

# The pseudo-producer of operations that record faults.
UPHEAVAL = "upheaval"

# A node that is stopped gracefully first stores everything that it has accepted: such a stop excuses less than a
# crash.
GRACEFUL = frozenset({"stop"})


class Kind(StrEnum):
    """Kinds of operations."""

    # A producer sends a message.
    PUBLISH = "publish"
    # The broker has confirmed it: it must not lose the message.
    CONFIRMED = "confirmed"
    # The broker has refused it: it may have the message or not.
    REFUSED = "refused"
    # The outcome is unknown because the connection broke.
    UNKNOWN = "unknown"
    # A consumer received the message.
    DELIVERED = "delivered"
    # The consumer sends an ack.
    ACK = "ack"
    # The broker has confirmed the ack.
    ACKED = "acked"
    # The broker has answered that the message is no longer the consumer's.
    ACK_REFUSED = "ack refused"
    # The broker has read an ack that has no answer of its own: it has answered a later request.
    ACK_TAKEN = "ack taken"
    # The message was dead-lettered: a crash during that may leave two copies.
    DEAD_LETTERED = "dead-lettered"
    # It was handed over to another member of its clustered queue, or was about to be: its order is not guaranteed.
    HANDED_OVER = "handed over"
    # The message was in its queue at the end.
    FOUND = "found"
    # The number of messages in a queue without clients, as the operation's number; the producer is UPHEAVAL.
    COUNTED = "counted"
    # From here on a node or its store is faulty, and may forget its deliveries. If a queue is named, only that one is
    # affected.
    DISTURBED = "disturbed"
    # The fault is over.
    CALM = "calm"


class Operation(NamedTuple):
    """A request or an answer. Operations are numbered in the order in which they were recorded."""

    position: int
    at_s: float
    kind: Kind
    producer: str
    # Messages of a producer are numbered from 0, each number once.
    number: int
    # The consumer, or the fault.
    who: str = ""
    # The queue, or the member of a clustered one: within it a consumer gets a producer's messages in order.
    queue: str = ""
    # The broker's redelivered flag; None where its protocol has none.
    is_redelivered: bool | None = None
    # The transaction in which a message is published or acknowledged.
    transaction: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.COUNTED:
            return f"#{self.position} {self.at_s:.3f} s: {self.kind} {self.number} in queue {self.queue}"
        if self.producer == UPHEAVAL:
            place = f", queue {self.queue}" if self.queue else ""
            return f"#{self.position} {self.at_s:.3f} s: {self.kind} {self.who}{place}"
        text = f"#{self.position} {self.at_s:.3f} s: {self.kind} {self.producer}/{self.number}"
        if self.who:
            text += f", consumer {self.who}"
        if self.queue:
            text += f", queue {self.queue}"
        if self.is_redelivered:
            text += ", marked as redelivered"
        if self.transaction:
            text += f", transaction {self.transaction}"
        return text


class Fault(StrEnum):
    """A kind of broken guarantee."""

    # Confirmed, but neither acked by a consumer nor in the queue at the end.
    LOST = "lost"
    # Delivered again after its ack was confirmed, acked twice, or redelivered without the flag.
    DOUBLED = "doubled"
    # Delivered after a later message of its producer, although it was neither redelivered nor handed over.
    REORDERED = "reordered"
    # Delivered or answered although it was never published.
    PHANTOM = "phantom"
    # A transaction acked a message, which is gone, but its publishes are missing.
    TORN = "torn"
    # Refused although there was no fault and its queue was not full.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken guarantee and the operations that show it."""

    fault: Fault
    says: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n  ".join([f"{self.fault}: {self.says}", *map(str, self.operations)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check of a history."""

    # Number of operations of each kind.
    counts: dict[Kind, int]
    # Number of violations of each kind; empty if there were none.
    faults: dict[Fault, int]
    # The first violations, explained.
    violations: tuple[Violation, ...]

    @property
    def is_clean(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        seen = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        if self.is_clean:
            return f"nothing lost, doubled or reordered ({seen})"
        broken = ", ".join(f"{count} {fault}" for fault, count in self.faults.items())
        return "\n".join([f"{broken} ({seen})", *map(str, self.violations)])


class Checker:
    """Processes the operations of a history in order; `finish` returns the verdict."""

    def __init__(self, may_refuse: Callable[[str], bool] = lambda queue: True) -> None:
        """`may_refuse` returns whether a queue refuses messages for reasons of its own, for instance because it is
        full.
        """
        self._may_refuse = may_refuse
        self._producers: dict[str, _Producer] = {}
        # Transactions with unknown outcome.
        self._transactions: dict[str, _Transaction] = {}
        # Last count by queue, unless its messages have changed since.
        self._counted: dict[str, Operation] = {}
        # By producer, queue and consumer: the latest message that was delivered for the first time.
        self._last: dict[tuple[str, str, str], Operation] = {}
        self._counts: Counter[Kind] = Counter()
        self._faults: Counter[Fault] = Counter()
        self._violations: list[Violation] = []
        # Active faults by description and affected queue, "" for all.
        self._disturbances: Counter[tuple[str, str]] = Counter()
        # By queue, "" for all: position of the end of its last fault.
        self._calm_since: dict[str, int] = {}
        # Position of the last fault that was not a graceful stop.
        self._last_crash = -1

    def note(self, operation: Operation) -> None:
        """Process the next operation. Raises LabError if the history itself is inconsistent."""
        self._counts[operation.kind] += 1
        if operation.kind in (Kind.DISTURBED, Kind.CALM):
            self._note_upheaval(operation)
        elif operation.kind is Kind.COUNTED:
            self._note_count(operation)
        elif operation.kind is Kind.PUBLISH:
            self._note_publish(operation)
        else:
            producer = self._producers.get(operation.producer)
            if producer is None or operation.number >= producer.published:
                self._report(Fault.PHANTOM, "it was never published", operation)
            else:
                self._note_answer(producer, operation)

    def finish(self) -> Verdict:
        """Return the verdict, provided that the history ends here."""
        for producer in self._producers.values():
            for operations in producer.open.values():
                if _is_lost(operations):
                    self._report(Fault.LOST, "it was confirmed, and is gone without an acknowledgement", *operations)
        for transaction in self._transactions.values():
            self._check_transaction(transaction)
        return Verdict(dict(self._counts), dict(self._faults), tuple(self._violations))

    def _note_count(self, operation: Operation) -> None:
        earlier = self._counted.get(operation.queue)
        if earlier is not None and earlier.number != operation.number and self._last_crash < earlier.position:
            fault = Fault.LOST if operation.number < earlier.number else Fault.DOUBLED
            self._report(fault, "untouched messages are fewer or more", earlier, operation)
        self._counted[operation.queue] = operation

    def _note_upheaval(self, operation: Operation) -> None:
        key = operation.who, operation.queue
        if operation.who not in GRACEFUL:
            self._last_crash = operation.position
        if operation.kind is Kind.DISTURBED:
            self._disturbances[key] += 1
            return
        if not self._disturbances[key]:
            raise LabError(f"the history calms {operation.who!r}, which was not disturbed: {operation}")
        self._disturbances[key] -= 1
        if not self._disturbances[key]:
            del self._disturbances[key]
        self._calm_since[operation.queue] = operation.position

    def _note_publish(self, operation: Operation) -> None:
        producer = self._producers.get(operation.producer)
        if producer is None:
            producer = self._producers[operation.producer] = _Producer()
        if operation.number != producer.published:
            raise LabError(f"message {producer.published} of the producer was expected: {operation}")
        producer.publish(operation)
        self._counted.pop(operation.queue, None)
        if operation.transaction:
            self._of_transaction(operation).published.append(operation)

    def _of_transaction(self, operation: Operation) -> _Transaction:
        found = self._transactions.get(operation.transaction)
        if found is None:
            found = self._transactions[operation.transaction] = _Transaction()
        return found

    def _note_answer(self, producer: _Producer, operation: Operation) -> None:
        kind = operation.kind
        if kind in (Kind.ACK, Kind.ACKED, Kind.ACK_TAKEN):
            self._counted.clear()
        if kind is Kind.ACK and operation.transaction:
            self._of_transaction(operation).acked.append(operation)
        elif kind in (Kind.ACKED, Kind.ACK_REFUSED, Kind.CONFIRMED, Kind.REFUSED) and operation.transaction:
            # The broker has reported the outcome.
            self._transactions.pop(operation.transaction, None)
        if kind is Kind.DELIVERED:
            self._note_delivery(producer, operation)
        elif kind is Kind.ACKED:
            self._note_acked(producer, operation)
        elif kind is Kind.FOUND:
            self._note_found(producer, operation)
        elif kind is Kind.REFUSED:
            self._check_refusal(producer, operation)
        elif kind is Kind.DEAD_LETTERED:
            producer.dead_lettered.add(operation.number)
        producer.keep(operation)

    def _note_found(self, producer: _Producer, operation: Operation) -> None:
        removal = producer.removal(operation)
        if removal is None:
            self._check_taken(producer, operation)
        elif not self._may_be_two(producer, operation):
            self._report(Fault.DOUBLED, "it is in its queue after its removal was answered", removal, operation)

    def _check_refusal(self, producer: _Producer, operation: Operation) -> None:
        operations = producer.open.get(operation.number)
        if operations and not self._may_refuse(operations[0].queue) and not self._was_disturbed_since(operations[0]):
            self._report(Fault.REFUSED, "nothing was out of order", operations[0], operation)

    def _check_taken(self, producer: _Producer, operation: Operation) -> None:
        """After a graceful stop, a message whose ack was read must not be delivered again."""
        for earlier in producer.open.get(operation.number, ()):
            if earlier.kind is Kind.ACK_TAKEN and self._last_crash < earlier.position and not self._is_crashed():
                self._report(Fault.DOUBLED, "it came again after its acknowledgement was read", earlier, operation)
                return

    def _is_crashed(self) -> bool:
        return any(what not in GRACEFUL for what, _ in self._disturbances)

    def _may_be_two(self, producer: _Producer, operation: Operation) -> bool:
        """Return whether a crash may have left copies of a message both in its queue and at its dead-letter
        target.
        """
        number = operation.number
        return number in producer.dead_lettered and (
            self._last_crash > producer.published_at[number] or self._is_crashed()
        )

    def _check_transaction(self, transaction: _Transaction) -> None:
        """Check atomicity: no message that a transaction acked may be gone while one that it published is missing."""
        missing = [one for one in transaction.published if not self._producers[one.producer].was_seen(one.number)]
        if not missing:
            return
        for ack in transaction.acked:
            producer = self._producers[ack.producer]
            if producer.is_gone_since(ack):
                self._report(Fault.TORN, "it is gone, and what was published with it is not there", ack, missing[0])

    def _note_acked(self, producer: _Producer, operation: Operation) -> None:
        removal = producer.removal(operation)
        if removal is not None and not self._may_be_two(producer, operation):
            self._report(Fault.DOUBLED, "its removal was answered twice", removal, operation)
        producer.remove(operation)

    def _note_delivery(self, producer: _Producer, operation: Operation) -> None:
        removal = producer.removal(operation)
        if removal is not None:
            if not self._may_be_two(producer, operation):
                self._report(Fault.DOUBLED, "it was delivered after its removal was answered", removal, operation)
            return
        self._check_taken(producer, operation)
        earlier = producer.latest_delivery(operation.number)
        if earlier is None:
            if not producer.was_handed_over(operation.number):
                self._check_order(operation, producer.open[operation.number][0])
        elif operation.is_redelivered is False and not self._was_disturbed_since(earlier):
            self._report(Fault.DOUBLED, "it was delivered again without a mark", earlier, operation)

    def _check_order(self, operation: Operation, published: Operation) -> None:
        if operation.is_redelivered is not False:
            return
        key = (operation.producer, operation.queue, operation.who)
        latest = self._last.get(key)
        if latest is None or operation.number > latest.number:
            self._last[key] = operation
        elif not self._was_disturbed_since(latest) and not self._was_disturbed_since(published):
            self._report(Fault.REORDERED, "a later message of the same producer came first", latest, operation)

    def _was_disturbed_since(self, operation: Operation) -> bool:
        """Return whether the broker may have forgotten this delivery, or reordered the message, since the
        operation.
        """
        concerned = "", operation.queue
        return any(self._calm_since.get(queue, -1) > operation.position for queue in concerned) or any(
            queue in concerned for _, queue in self._disturbances
        )

    def _report(self, fault: Fault, says: str, *operations: Operation) -> None:
        self._faults[fault] += 1
        if len(self._violations) < KEPT_VIOLATIONS:
            self._violations.append(Violation(fault, says, operations))


@dataclass(slots=True)
class _Transaction:
    """Requests of a transaction."""

    published: list[Operation] = field(default_factory=list)
    acked: list[Operation] = field(default_factory=list)


class _Producer:
    """The messages of one producer: complete while they are open, a few bytes each once they are removed."""

    def __init__(self) -> None:
        self.published = 0
        self.open: dict[int, list[Operation]] = {}
        # By number: the position of its publish.
        self.published_at = array("q")
        self.dead_lettered: set[int] = set()
        # By number: the position of the confirmed ack; -1 before.
        self._removed_at = array("q")
        self._removed_s = array("d")
        self._removed_by = array("l")
        self._consumers: list[str] = []
        self._consumer_indexes: dict[str, int] = {}

    def publish(self, operation: Operation) -> None:
        self.published += 1
        self.open[operation.number] = [operation]
        self.published_at.append(operation.position)
        self._removed_at.append(-1)
        self._removed_s.append(0.0)
        self._removed_by.append(0)

    def keep(self, operation: Operation) -> None:
        """Keep the operation as long as its message is open."""
        operations = self.open.get(operation.number)
        if operations is not None:
            operations.append(operation)

    def latest_delivery(self, number: int) -> Operation | None:
        for operation in reversed(self.open[number]):
            if operation.kind is Kind.DELIVERED:
                return operation
        return None

    def was_seen(self, number: int) -> bool:
        """Return whether a message was ever in a queue, as far as clients know."""
        operations = self.open.get(number)
        return operations is None or any(one.kind in (Kind.DELIVERED, Kind.FOUND) for one in operations)

    def is_gone_since(self, ack: Operation) -> bool:
        """Return whether a confirmed message was not seen again after this ack."""
        operations = self.open.get(ack.number, ())
        return any(one.kind is Kind.CONFIRMED for one in operations) and not any(
            one.position > ack.position and one.kind in (Kind.DELIVERED, Kind.FOUND, Kind.ACKED) for one in operations
        )

    def was_handed_over(self, number: int) -> bool:
        return any(operation.kind is Kind.HANDED_OVER for operation in self.open[number])

    def remove(self, operation: Operation) -> None:
        number = operation.number
        index = self._consumer_indexes.get(operation.who)
        if index is None:
            index = self._consumer_indexes[operation.who] = len(self._consumers)
            self._consumers.append(operation.who)
        self._removed_at[number] = operation.position
        self._removed_s[number] = operation.at_s
        self._removed_by[number] = index
        self.open.pop(number, None)

    def removal(self, operation: Operation) -> Operation | None:
        """Return the confirmed ack of the operation's message, None without one."""
        number = operation.number
        position = self._removed_at[number]
        if position < 0:
            return None
        who = self._consumers[self._removed_by[number]]
        return Operation(position, self._removed_s[number], Kind.ACKED, operation.producer, number, who)


def _is_lost(operations: Iterable[Operation]) -> bool:
    """Return whether a message without a confirmed ack should exist, but was not found."""
    kinds = Counter(operation.kind for operation in operations)
    perhaps_removed = kinds[Kind.ACK] > kinds[Kind.ACK_REFUSED]
    return bool(kinds[Kind.CONFIRMED]) and not perhaps_removed and not kinds[Kind.FOUND]


def check(operations: Iterable[Operation]) -> Verdict:
    """Return the verdict on a complete history."""
    checker = Checker()
    for operation in operations:
        checker.note(operation)
    return checker.finish()


@dataclass(slots=True)
class Recorder:
    """Numbers operations in the order in which the clients of this process record them. Thread-safe."""

    sink: Callable[[Operation], None]
    clock: Callable[[], float] = time.monotonic
    _position: int = 0
    _began_s: float | None = None
    _published: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, producer: str, queue: str = "", transaction: str = "") -> int:
        """Record that the producer sends its next message; return the number to put into it."""
        with self._lock:
            number = self._published.get(producer, 0)
            self._published[producer] = number + 1
            self._note(Kind.PUBLISH, producer, number, queue=queue, transaction=transaction)
        return number

    def note(
        self,
        kind: Kind,
        producer: str,
        number: int,
        *,
        who: str = "",
        queue: str = "",
        is_redelivered: bool | None = None,
        transaction: str = "",
    ) -> None:
        """Record any other operation on a message."""
        with self._lock:
            self._note(kind, producer, number, who, queue, is_redelivered, transaction)

    def count(self, queue: str, messages: int) -> None:
        """Record the number of messages in a queue without clients."""
        with self._lock:
            self._note(Kind.COUNTED, UPHEAVAL, messages, queue=queue)

    def upheaval(self, kind: Kind, what: str, queue: str = "") -> None:
        """Record the start (DISTURBED) or the end (CALM) of a fault of one queue, or of all."""
        with self._lock:
            self._note(kind, UPHEAVAL, 0, what, queue)

    def _note(
        self,
        kind: Kind,
        producer: str,
        number: int,
        who: str = "",
        queue: str = "",
        is_redelivered: bool | None = None,
        transaction: str = "",
    ) -> None:
        now = self.clock()
        if self._began_s is None:
            self._began_s = now
        at_s = now - self._began_s
        self.sink(Operation(self._position, at_s, kind, producer, number, who, queue, is_redelivered, transaction))
        self._position += 1


def to_line(operation: Operation) -> str:
    """Return an operation as a line of a file."""
    return json.dumps([*operation[1:2], str(operation.kind), *operation[3:]], separators=(",", ":")) + "\n"


def from_lines(lines: Iterable[str]) -> Iterator[Operation]:
    """Yield the operations of a file. Raises LabError at an invalid line."""
    for position, line in enumerate(lines):
        try:
            at_s, kind, *rest = json.loads(line)
            yield Operation(position, at_s, Kind(kind), *rest)
        except (ValueError, TypeError) as error:
            raise LabError(f"line {position + 1} is not an operation of a history: {error}") from error
