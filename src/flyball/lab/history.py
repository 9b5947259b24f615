"""Decides from the requests and answers of clients whether messages were lost, doubled or put out of order.

One pass over the operations, as they happen or from a file; some twenty bytes are kept for each message that is done
with. Knows neither protocols nor brokers, only what was asked and what was answered.
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

# The producer in whose name faults are noted.
UPHEAVAL = "upheaval"

# A node that is stopped gracefully writes down all that it has taken first: such a stop excuses less than a crash.
GRACEFUL = frozenset({"stop"})


class Kind(StrEnum):
    """Kinds of operations."""

    # A producer sends a message.
    PUBLISH = "publish"
    # The broker has promised to keep it.
    CONFIRMED = "confirmed"
    # The broker has said that it could not promise it: it may have the message or not.
    REFUSED = "refused"
    # The answer will never come, since the connection broke.
    UNKNOWN = "unknown"
    # A consumer was given the message.
    DELIVERED = "delivered"
    # The consumer asks that the message be removed.
    ACK = "ack"
    # The broker has answered that it is.
    ACKED = "acked"
    # The broker has answered that the message is no longer the consumer's.
    ACK_REFUSED = "ack refused"
    # The broker has read an acknowledgement that has no answer: it has answered what was asked after it.
    ACK_TAKEN = "ack taken"
    # The message was dead-lettered: a crash in the midst of that may leave two of it.
    DEAD_LETTERED = "dead-lettered"
    # Another member of its clustered queue has it now, or was to have it: it comes when it comes.
    HANDED_OVER = "handed over"
    # The message was seen in its queue when all was over.
    FOUND = "found"
    # The number of messages in a queue without clients: the operation's number, in the name of UPHEAVAL.
    COUNTED = "counted"
    # From here on a node or its store is out of order, and may forget its deliveries. If a queue is
    # named, it is about that one only.
    DISTURBED = "disturbed"
    # That is over.
    CALM = "calm"


class Operation(NamedTuple):
    """One thing that was asked or answered. Operations are numbered in the order in which they were noted."""

    position: int
    at_s: float
    kind: Kind
    producer: str
    # Messages of a producer are numbered from 0 on, each number once.
    number: int
    # The consumer, or what was disturbed.
    who: str = ""
    # The queue, or the member of a clustered one: within it a consumer gets a producer's messages in order.
    queue: str = ""
    # The broker's mark; None where its protocol has none.
    is_redelivered: bool | None = None
    # The transaction that a message is published or acknowledged in.
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
    """A promise that was broken."""

    # Confirmed, and neither removed on a consumer's request nor in the queue at the end.
    LOST = "lost"
    # Delivered again after its removal was answered, removed twice, or delivered again without a mark.
    DOUBLED = "doubled"
    # Delivered after a later message of its producer, although it was neither a redelivery nor handed over.
    REORDERED = "reordered"
    # Delivered or answered although it was never published.
    PHANTOM = "phantom"
    # Acknowledged in a transaction and gone, while what was published in the same transaction is not there.
    TORN = "torn"
    # Refused although nothing was out of order and its queue had room.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise and the operations that show it."""

    fault: Fault
    says: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n  ".join([f"{self.fault}: {self.says}", *map(str, self.operations)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check of a history."""

    # How many operations of each kind there were.
    counts: dict[Kind, int]
    # How many promises of each kind were broken; empty if all was well.
    faults: dict[Fault, int]
    # The first of them, explained.
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
    """Takes the operations of a history in their order; `finish` says what they have shown."""

    def __init__(self, may_refuse: Callable[[str], bool] = lambda queue: True) -> None:
        """`may_refuse` says of a queue whether it refuses messages for reasons of its own, as a full one does."""
        self._may_refuse = may_refuse
        self._producers: dict[str, _Producer] = {}
        # Those whose outcome is unknown.
        self._transactions: dict[str, _Transaction] = {}
        # By queue: how many messages were in it, unless something has happened to them since.
        self._counted: dict[str, Operation] = {}
        # By producer, queue and consumer: the latest message that came for the first time.
        self._last: dict[tuple[str, str, str], Operation] = {}
        self._counts: Counter[Kind] = Counter()
        self._faults: Counter[Fault] = Counter()
        self._violations: list[Violation] = []
        # By what they are and the queue that they are about, "" for all.
        self._disturbances: Counter[tuple[str, str]] = Counter()
        # By queue, "" for all: where the last of its disturbances has ended.
        self._calm_since: dict[str, int] = {}
        # Where the last disturbance that was not a graceful stop was noted.
        self._last_crash = -1

    def note(self, operation: Operation) -> None:
        """Take the next operation. Raises LabError if the record itself makes no sense."""
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
        """Return what the history has shown, taken that it ends here."""
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
            # The broker has said what became of it.
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
        """A message whose acknowledgement was read does not come again after a graceful stop."""
        for earlier in producer.open.get(operation.number, ()):
            if earlier.kind is Kind.ACK_TAKEN and self._last_crash < earlier.position and not self._is_crashed():
                self._report(Fault.DOUBLED, "it came again after its acknowledgement was read", earlier, operation)
                return

    def _is_crashed(self) -> bool:
        return any(what not in GRACEFUL for what, _ in self._disturbances)

    def _may_be_two(self, producer: _Producer, operation: Operation) -> bool:
        """Return whether a crash may have left a message both in its queue and where it was dead-lettered to."""
        number = operation.number
        return number in producer.dead_lettered and (
            self._last_crash > producer.published_at[number] or self._is_crashed()
        )

    def _check_transaction(self, transaction: _Transaction) -> None:
        """All or nothing: nothing that it has removed is gone while something that it has published is not there."""
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
        """Return whether the broker may have forgotten this delivery, or let this message be overtaken on its way."""
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
    """The messages of one producer: in full while they are open, in a few bytes when they are removed."""

    def __init__(self) -> None:
        self.published = 0
        self.open: dict[int, list[Operation]] = {}
        # By number: the position of its publish.
        self.published_at = array("q")
        self.dead_lettered: set[int] = set()
        # By number: the position of the answer that it was removed; -1 before.
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
        """Keep the operation for as long as its message is open."""
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
        """Return whether a confirmed message was not seen again after it was acknowledged."""
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
        """Return the answer that the operation's message was removed, if there was one."""
        number = operation.number
        position = self._removed_at[number]
        if position < 0:
            return None
        who = self._consumers[self._removed_by[number]]
        return Operation(position, self._removed_s[number], Kind.ACKED, operation.producer, number, who)


def _is_lost(operations: Iterable[Operation]) -> bool:
    """Return whether a message without a confirmed removal should be somewhere, and is not."""
    kinds = Counter(operation.kind for operation in operations)
    perhaps_removed = kinds[Kind.ACK] > kinds[Kind.ACK_REFUSED]
    return bool(kinds[Kind.CONFIRMED]) and not perhaps_removed and not kinds[Kind.FOUND]


def check(operations: Iterable[Operation]) -> Verdict:
    """Return what a whole history shows."""
    checker = Checker()
    for operation in operations:
        checker.note(operation)
    return checker.finish()


@dataclass(slots=True)
class Recorder:
    """Numbers operations in the order in which the clients of this process note them, from any thread."""

    sink: Callable[[Operation], None]
    clock: Callable[[], float] = time.monotonic
    _position: int = 0
    _began_s: float | None = None
    _published: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, producer: str, queue: str = "", transaction: str = "") -> int:
        """Note that the producer sends its next message; return the number that it has to carry."""
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
        """Note anything else about a message."""
        with self._lock:
            self._note(kind, producer, number, who, queue, is_redelivered, transaction)

    def count(self, queue: str, messages: int) -> None:
        """Note the number of messages in a queue without clients."""
        with self._lock:
            self._note(Kind.COUNTED, UPHEAVAL, messages, queue=queue)

    def upheaval(self, kind: Kind, what: str, queue: str = "") -> None:
        """Note that a fault begins (DISTURBED) or is over (CALM), of one queue or of all."""
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
    """Yield the operations of a file. Raises LabError at a line that is none."""
    for position, line in enumerate(lines):
        try:
            at_s, kind, *rest = json.loads(line)
            yield Operation(position, at_s, Kind(kind), *rest)
        except (ValueError, TypeError) as error:
            raise LabError(f"line {position + 1} is not an operation of a history: {error}") from error
