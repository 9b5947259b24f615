from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.errors import LabError
from flyball.lab.history import KEPT_VIOLATIONS, Checker, Fault, Kind, Operation, Recorder, check, from_lines, to_line

PRODUCERS = ("p", "q")
CONSUMERS = ("a", "b", "c")
QUEUE = "orders"

Message = tuple[str, int]


@dataclass
class Model:
    """A broker without faults, and clients of it: every step is one that could really happen."""

    chance: random.Random
    operations: list[Operation] = field(default_factory=list)
    # In the order of their publishing, each with whether it was delivered before.
    ready: list[tuple[Message, bool]] = field(default_factory=list)
    held: dict[Message, str] = field(default_factory=dict)
    order: dict[Message, int] = field(default_factory=dict)
    removed: list[Message] = field(default_factory=list)
    is_disturbed: bool = False

    def __post_init__(self) -> None:
        ticks = itertools.count()
        self.recorder = Recorder(self.operations.append, lambda: float(next(ticks)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.chance.choice((self.publish, self.deliver, self.deliver, self.acknowledge, self.requeue))
            step() if self.chance.random() < 0.95 else self.crash()

    def publish(self) -> None:
        producer = self.chance.choice(PRODUCERS)
        message = producer, self.recorder.publish(producer, QUEUE)
        self.order[message] = len(self.order)
        answer = self.chance.choice((Kind.CONFIRMED, Kind.CONFIRMED, Kind.CONFIRMED, Kind.REFUSED, Kind.UNKNOWN))
        if answer is Kind.CONFIRMED or self.chance.random() < 0.5:
            self.ready.append((message, False))
        self.recorder.note(answer, *message)

    def deliver(self) -> None:
        if not self.ready:
            return
        message, was_delivered = self.ready.pop(0)
        consumer = self.chance.choice(CONSUMERS)
        self.held[message] = consumer
        # A broker that died has forgotten what it has delivered.
        mark = was_delivered if not self.is_disturbed else False
        self.recorder.note(Kind.DELIVERED, *message, who=consumer, queue=QUEUE, is_redelivered=mark)

    def acknowledge(self) -> None:
        if not self.held:
            return
        message = self.chance.choice(list(self.held))
        consumer = self.held.pop(message)
        self.recorder.note(Kind.ACK, *message, who=consumer)
        fate = self.chance.random()
        if fate < 0.8:
            self.removed.append(message)
            self.recorder.note(Kind.ACKED, *message, who=consumer)
        elif fate < 0.9:
            self.recorder.note(Kind.ACK_REFUSED, *message, who=consumer)
            self.give_back(message)
        elif fate < 0.95:
            self.give_back(message)

    def requeue(self) -> None:
        if self.held:
            message = self.chance.choice(list(self.held))
            del self.held[message]
            self.give_back(message)

    def crash(self) -> None:
        """Everything that is not removed is ready again, in its old place."""
        self.recorder.upheaval(Kind.DISTURBED, "node")
        self.is_disturbed = True
        for message in list(self.held):
            del self.held[message]
            self.give_back(message)
        for _ in range(self.chance.randrange(3)):
            self.deliver()
        self.is_disturbed = False
        # All those that are ready now are known to be older than the crash, so they are marked from here on.
        self.ready = [(message, True) for message, _ in self.ready]
        self.recorder.upheaval(Kind.CALM, "node")

    def give_back(self, message: Message) -> None:
        self.ready.append((message, True))
        self.ready.sort(key=lambda entry: self.order[entry[0]])

    def end(self) -> list[Operation]:
        """See what is left in the queue; return all that has happened."""
        for message in [*(message for message, _ in self.ready), *self.held]:
            self.recorder.note(Kind.FOUND, *message, queue=QUEUE)
        return self.operations

    def confirm_one(self) -> Message:
        """Let a producer publish that the model does not deliver from."""
        message = "victim", self.recorder.publish("victim", QUEUE)
        self.order[message] = len(self.order)
        self.recorder.note(Kind.CONFIRMED, *message)
        return message


def lose_a_confirmed_message(model: Model) -> None:
    model.confirm_one()


def lose_a_delivered_message_whose_consumer_left(model: Model) -> None:
    model.recorder.note(Kind.DELIVERED, *model.confirm_one(), who="a", queue=QUEUE, is_redelivered=False)


def lose_a_message_whose_acknowledgement_was_refused(model: Model) -> None:
    message = model.confirm_one()
    model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE, is_redelivered=False)
    model.recorder.note(Kind.ACK, *message, who="a")
    model.recorder.note(Kind.ACK_REFUSED, *message, who="a")


def remove(model: Model, consumer: str) -> Message:
    message = model.confirm_one()
    model.recorder.note(Kind.DELIVERED, *message, who=consumer, queue=QUEUE, is_redelivered=False)
    model.recorder.note(Kind.ACK, *message, who=consumer)
    model.recorder.note(Kind.ACKED, *message, who=consumer)
    return message


def deliver_after_the_removal(model: Model) -> None:
    model.recorder.note(Kind.DELIVERED, *remove(model, "a"), who="b", queue=QUEUE, is_redelivered=True)


def deliver_after_the_removal_in_an_upheaval(model: Model) -> None:
    message = remove(model, "a")
    model.recorder.upheaval(Kind.DISTURBED, "node")
    model.recorder.note(Kind.DELIVERED, *message, who="b", queue=QUEUE, is_redelivered=False)
    model.recorder.upheaval(Kind.CALM, "node")


def remove_twice(model: Model) -> None:
    message = model.confirm_one()
    for consumer in ("a", "b"):
        model.recorder.note(Kind.DELIVERED, *message, who=consumer, queue=QUEUE, is_redelivered=True)
        model.recorder.note(Kind.ACK, *message, who=consumer)
    for consumer in ("b", "a"):
        model.recorder.note(Kind.ACKED, *message, who=consumer)


def keep_what_was_removed(model: Model) -> None:
    model.recorder.note(Kind.FOUND, *remove(model, "a"), queue=QUEUE)


def deliver_twice_without_a_mark(model: Model) -> None:
    message = model.confirm_one()
    for consumer in ("a", "b"):
        model.recorder.note(Kind.DELIVERED, *message, who=consumer, queue=QUEUE, is_redelivered=False)
    model.recorder.note(Kind.FOUND, *message)


def deliver_in_the_wrong_order(model: Model) -> None:
    first, second = model.confirm_one(), model.confirm_one()
    for message in (second, first):
        model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE, is_redelivered=False)
        model.recorder.note(Kind.FOUND, *message)


def deliver_what_nobody_published(model: Model) -> None:
    model.recorder.note(Kind.DELIVERED, "p", 10**6, who="a", queue=QUEUE, is_redelivered=False)


def deliver_from_an_unknown_producer(model: Model) -> None:
    model.recorder.note(Kind.DELIVERED, "nobody", 0, who="a", queue=QUEUE, is_redelivered=False)


def publish_in_a_transaction(model: Model, transaction: str) -> Message:
    message = "reply", model.recorder.publish("reply", QUEUE, transaction)
    model.order[message] = len(model.order)
    return message


def take_part_in_a_transaction(model: Model) -> tuple[Message, Message]:
    """Acknowledge a message and publish another in a transaction; return both."""
    request = model.confirm_one()
    transaction = f"t{request[1]}"
    model.recorder.note(Kind.DELIVERED, *request, who="a", queue=QUEUE, is_redelivered=False)
    reply = publish_in_a_transaction(model, transaction)
    model.recorder.note(Kind.ACK, *request, who="a", transaction=transaction)
    return request, reply


def lose_request_and_reply_of_a_transaction_without_an_answer(model: Model) -> None:
    take_part_in_a_transaction(model)


def forget_a_taken_acknowledgement_at_a_graceful_stop(model: Model) -> None:
    message = model.confirm_one()
    model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE, is_redelivered=False)
    model.recorder.note(Kind.ACK, *message, who="a")
    model.recorder.note(Kind.ACK_TAKEN, *message, who="a")
    model.recorder.upheaval(Kind.DISTURBED, "stop")
    model.recorder.upheaval(Kind.CALM, "stop")
    model.recorder.note(Kind.FOUND, *message, queue=QUEUE)


def lose_what_was_counted_at_a_graceful_stop(model: Model) -> None:
    model.recorder.count("copies", 1000)
    model.recorder.upheaval(Kind.DISTURBED, "stop")
    model.recorder.upheaval(Kind.CALM, "stop")
    model.recorder.count("copies", 999)


FAULTS: dict[Callable[[Model], None], Fault] = {
    lose_a_confirmed_message: Fault.LOST,
    lose_a_delivered_message_whose_consumer_left: Fault.LOST,
    lose_a_message_whose_acknowledgement_was_refused: Fault.LOST,
    deliver_after_the_removal: Fault.DOUBLED,
    deliver_after_the_removal_in_an_upheaval: Fault.DOUBLED,
    remove_twice: Fault.DOUBLED,
    keep_what_was_removed: Fault.DOUBLED,
    deliver_twice_without_a_mark: Fault.DOUBLED,
    deliver_in_the_wrong_order: Fault.REORDERED,
    deliver_what_nobody_published: Fault.PHANTOM,
    deliver_from_an_unknown_producer: Fault.PHANTOM,
    lose_request_and_reply_of_a_transaction_without_an_answer: Fault.TORN,
    forget_a_taken_acknowledgement_at_a_graceful_stop: Fault.DOUBLED,
    lose_what_was_counted_at_a_graceful_stop: Fault.LOST,
}


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 300))
def test_a_history_of_a_broker_without_faults_is_clean(seed: int, steps: int) -> None:
    model = Model(random.Random(seed))
    model.run(steps)
    verdict = check(model.end())
    assert verdict.is_clean, str(verdict)


@pytest.mark.parametrize("inject", FAULTS, ids=lambda inject: inject.__name__)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), before=st.integers(0, 100), after=st.integers(0, 100))
def test_each_fault_is_found_once_wherever_it_happens(
    inject: Callable[[Model], None], seed: int, before: int, after: int
) -> None:
    model = Model(random.Random(seed))
    model.run(before)
    inject(model)
    model.run(after)
    verdict = check(model.end())
    assert verdict.faults == {FAULTS[inject]: 1}, str(verdict)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_file_of_a_history_gives_the_operations_back(seed: int) -> None:
    model = Model(random.Random(seed))
    model.run(50)
    assert list(from_lines(map(to_line, model.operations))) == model.operations


def test_a_violation_names_the_operations_that_show_it() -> None:
    model = Model(random.Random(1))
    deliver_after_the_removal(model)
    (violation,) = check(model.end()).violations
    assert str(violation).splitlines() == [
        "doubled: it was delivered after its removal was answered",
        "  #4 4.000 s: acked victim/0, consumer a",
        "  #5 5.000 s: delivered victim/0, consumer b, queue orders, marked as redelivered",
    ]


def test_a_lost_message_is_explained_by_all_that_is_known_of_it() -> None:
    model = Model(random.Random(1))
    lose_a_message_whose_acknowledgement_was_refused(model)
    (violation,) = check(model.end()).violations
    assert [operation.kind for operation in violation.operations] == [
        Kind.PUBLISH,
        Kind.CONFIRMED,
        Kind.DELIVERED,
        Kind.ACK,
        Kind.ACK_REFUSED,
    ]


def test_an_unmarked_redelivery_is_excused_only_while_a_fault_may_explain_it() -> None:
    model = Model(random.Random(1))
    message = model.confirm_one()
    model.recorder.upheaval(Kind.DISTURBED, "node")
    model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE, is_redelivered=False)
    model.recorder.upheaval(Kind.CALM, "node")
    model.recorder.note(Kind.DELIVERED, *message, who="b", queue=QUEUE, is_redelivered=False)
    model.recorder.note(Kind.DELIVERED, *message, who="c", queue=QUEUE, is_redelivered=False)
    model.recorder.note(Kind.FOUND, *message)
    (violation,) = check(model.end()).violations
    assert [operation.who for operation in violation.operations] == ["b", "c"]


def test_marks_and_order_are_not_judged_where_redeliveries_are_unmarked() -> None:
    model = Model(random.Random(1))
    first, second = model.confirm_one(), model.confirm_one()
    for message in (second, first, second):
        model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE)
        model.recorder.note(Kind.FOUND, *message)
    assert check(model.end()).is_clean


def test_members_of_a_clustered_queue_have_an_order_each() -> None:
    model = Model(random.Random(1))
    first, second = model.confirm_one(), model.confirm_one()
    for message, member in ((second, "orders on x"), (first, "orders on y")):
        model.recorder.note(Kind.DELIVERED, *message, who="a", queue=member, is_redelivered=False)
        model.recorder.note(Kind.FOUND, *message)
    assert check(model.end()).is_clean


def test_what_was_on_its_way_during_a_fault_may_be_overtaken() -> None:
    model = Model(random.Random(1))
    model.recorder.upheaval(Kind.DISTURBED, "node")
    first = model.confirm_one()
    model.recorder.upheaval(Kind.CALM, "node")
    second, third = model.confirm_one(), model.confirm_one()
    for message in (third, first, second):
        model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE, is_redelivered=False)
        model.recorder.note(Kind.FOUND, *message)
    (violation,) = check(model.end()).violations
    assert [operation.number for operation in violation.operations] == [third[1], second[1]]


def test_what_was_handed_over_may_come_late_and_nothing_is_late_because_of_it() -> None:
    model = Model(random.Random(1))
    late, early, between, last = (model.confirm_one() for _ in range(4))
    for message in (late, last):
        model.recorder.note(Kind.HANDED_OVER, *message)
    for message in (last, early, late, between):
        model.recorder.note(Kind.DELIVERED, *message, who="a", queue=QUEUE, is_redelivered=False)
        model.recorder.note(Kind.FOUND, *message)
    assert check(model.end()).is_clean


def test_what_was_handed_over_is_marked_when_it_comes_again() -> None:
    model = Model(random.Random(1))
    message = model.confirm_one()
    for consumer in ("a", "b"):
        model.recorder.note(Kind.DELIVERED, *message, who=consumer, queue=QUEUE, is_redelivered=False)
        model.recorder.note(Kind.HANDED_OVER, *message)
    model.recorder.note(Kind.FOUND, *message)
    assert check(model.end()).faults == {Fault.DOUBLED: 1}


@pytest.mark.parametrize(("disturbed", "faults"), [(QUEUE, {}), ("another", {Fault.REORDERED: 1})])
def test_a_disturbance_of_one_queue_excuses_nothing_in_another(disturbed: str, faults: dict[Fault, int]) -> None:
    model = Model(random.Random(1))
    first, second = model.confirm_one(), model.confirm_one()
    model.recorder.note(Kind.DELIVERED, *second, who="a", queue=QUEUE, is_redelivered=False)
    model.recorder.upheaval(Kind.DISTURBED, "move", disturbed)
    model.recorder.upheaval(Kind.CALM, "move", disturbed)
    model.recorder.note(Kind.DELIVERED, *first, who="a", queue=QUEUE, is_redelivered=False)
    for message in (first, second):
        model.recorder.note(Kind.FOUND, *message)
    assert check(model.end()).faults == faults


def test_violations_beyond_the_first_are_counted_but_not_kept() -> None:
    model = Model(random.Random(1))
    for _ in range(KEPT_VIOLATIONS + 5):
        model.confirm_one()
    verdict = check(model.end())
    assert (verdict.faults, len(verdict.violations)) == ({Fault.LOST: KEPT_VIOLATIONS + 5}, KEPT_VIOLATIONS)


def test_a_message_that_is_done_with_takes_little_memory() -> None:
    checker = Checker()
    recorder = Recorder(checker.note)
    for _ in range(1000):
        message = "p", recorder.publish("p")
        recorder.note(Kind.DELIVERED, *message, who="a", is_redelivered=False)
        recorder.note(Kind.ACK, *message, who="a")
        recorder.note(Kind.ACKED, *message, who="a")
    producer = checker._producers["p"]
    assert not producer.open
    assert checker.finish().counts[Kind.ACKED] == 1000


def test_a_record_with_a_gap_in_its_numbers_is_refused() -> None:
    with pytest.raises(LabError, match="message 0 of the producer was expected"):
        check([Operation(0, 0.0, Kind.PUBLISH, "p", 1)])


def test_a_record_that_ends_a_fault_that_never_began_is_refused() -> None:
    with pytest.raises(LabError, match="was not disturbed"):
        check([Operation(0, 0.0, Kind.CALM, "upheaval", 0, "node")])


@pytest.mark.parametrize("line", ["", "{}", "[1.0]", '[1.0,"sold","p",1]', '[1.0,"publish"]'])
def test_a_line_that_is_no_operation_is_named(line: str) -> None:
    with pytest.raises(LabError, match="line 1 is not an operation"):
        list(from_lines([line]))


def test_operations_of_several_threads_are_numbered_without_gaps() -> None:
    operations: list[Operation] = []
    recorder = Recorder(operations.append)
    threads = [
        threading.Thread(target=lambda: [recorder.publish("p") for _ in range(500)] and None) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(operation.position, operation.number) for operation in operations] == [(n, n) for n in range(2000)]


def answered(*kinds: Kind) -> Callable[[Model, Message, Message], None]:
    def answer(model: Model, request: Message, reply: Message) -> None:
        for kind in kinds:
            is_of_reply = kind in (Kind.CONFIRMED, Kind.REFUSED)
            model.recorder.note(kind, *(reply if is_of_reply else request), transaction="t0")

    return answer


def found_both(model: Model, request: Message, reply: Message) -> None:
    for message in (request, reply):
        model.recorder.note(Kind.FOUND, *message)


def found_reply(model: Model, request: Message, reply: Message) -> None:
    model.recorder.note(Kind.FOUND, *reply)


def found_request(model: Model, request: Message, reply: Message) -> None:
    model.recorder.note(Kind.FOUND, *request)


@pytest.mark.parametrize(
    ("ends", "faults"),
    [
        ([found_reply], {}),
        ([found_request], {}),
        ([found_both], {}),
        ([], {Fault.TORN: 1}),
        ([answered(Kind.CONFIRMED, Kind.ACKED), found_reply], {}),
        ([answered(Kind.CONFIRMED, Kind.ACKED)], {Fault.LOST: 1}),
        ([answered(Kind.REFUSED, Kind.ACK_REFUSED), found_request], {}),
        ([answered(Kind.REFUSED, Kind.ACK_REFUSED)], {Fault.LOST: 1}),
    ],
)
def test_a_transaction_is_done_as_a_whole_or_not_at_all(
    ends: list[Callable[[Model, Message, Message], None]], faults: dict[Fault, int]
) -> None:
    model = Model(random.Random(1))
    request, reply = take_part_in_a_transaction(model)
    for end in ends:
        end(model, request, reply)
    assert check(model.operations).faults == faults


def test_a_crash_may_take_a_taken_acknowledgement_with_it() -> None:
    model = Model(random.Random(1))
    message = model.confirm_one()
    for kind in (Kind.DELIVERED, Kind.ACK, Kind.ACK_TAKEN):
        model.recorder.note(kind, *message, who="a", queue=QUEUE)
    model.recorder.upheaval(Kind.DISTURBED, "kill -9")
    model.recorder.upheaval(Kind.CALM, "kill -9")
    model.recorder.note(Kind.FOUND, *message, queue=QUEUE)
    assert check(model.operations).is_clean


@pytest.mark.parametrize(("what", "faults"), [("kill -9", {}), ("stop", {Fault.DOUBLED: 2})])
def test_a_dead_letter_may_be_there_twice_after_a_crash_only(what: str, faults: dict[Fault, int]) -> None:
    model = Model(random.Random(1))
    message = model.confirm_one()
    model.recorder.upheaval(Kind.DISTURBED, what)
    model.recorder.upheaval(Kind.CALM, what)
    for _ in range(2):
        model.recorder.note(Kind.DEAD_LETTERED, *message)
        model.recorder.note(Kind.DELIVERED, *message, who="a", queue="dead")
        model.recorder.note(Kind.ACK, *message, who="a")
        model.recorder.note(Kind.ACKED, *message, who="a")
    assert check(model.operations).faults == faults


def test_a_refusal_needs_a_reason_where_the_queue_has_none() -> None:
    def refused(may_refuse: bool, is_disturbed: bool) -> dict[Fault, int]:
        checker = Checker(lambda queue: may_refuse)
        recorder = Recorder(checker.note)
        if is_disturbed:
            recorder.upheaval(Kind.DISTURBED, "node")
        recorder.note(Kind.REFUSED, "p", recorder.publish("p", QUEUE))
        return checker.finish().faults

    assert refused(may_refuse=False, is_disturbed=False) == {Fault.REFUSED: 1}
    assert refused(may_refuse=True, is_disturbed=False) == {}
    assert refused(may_refuse=False, is_disturbed=True) == {}
