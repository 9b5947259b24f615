"""Admission control on an event loop whose clock leaps."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.admission import (
    Admission,
    AdmissionOptions,
    Admitted,
    Meter,
    OneClass,
    Served,
    Unit,
    Waiting,
    current_use,
)
from flyball.admission.classes import CostClass
from flyball.admission.classifier import Classifier
from flyball.admission.meter import Hold
from flyball.admission.profile import KeyProfile, Profile
from flyball.admission.state import loop_facts_of, state_of
from flyball.control.loop import Sample
from flyball.errors import AdmissionError, NotAdmitted
from tests.control.clock import leaping, run_leaping

SMALL, LARGE, FREE = "GET /small", "GET /large", "GET /free"
PROFILE = Profile(
    unit="ms",
    classes=(CostClass(0, 10.0, 30.0), CostClass(1, 100.0)),
    keys={
        SMALL: KeyProfile(1000, 10.0, 1.0, 0),
        LARGE: KeyProfile(1000, 100.0, 10.0, 1),
        FREE: KeyProfile(1000, 0.0, 0.0, 0),
    },
)


class Pool:
    """A sensor on the clock of the running loop."""

    def __init__(self, size: int | None = None) -> None:
        self.meter = Meter(asyncio.get_running_loop().time)
        if size is not None:
            self.meter.size_of(self, size)

    def take(self, admitted: Admitted | None = None) -> Hold:
        """Take a connection for a request."""
        mark = current_use.set(admitted.use if admitted is not None else None)
        hold = self.meter.ask()
        hold.got()
        current_use.reset(mark)
        return hold


def new_admission(pool: Pool | None = None, **options: Any) -> Admission:
    options = {"reference": 1000.0, "classifier": Classifier(PROFILE), "random": Random(1), **options}
    return Admission(pool or Pool(), options=AdmissionOptions(**options))


async def spend_budget(admission: Admission) -> None:
    """Admit large requests until the next one has to wait, and end them."""
    while isinstance(asked := admission.ask(LARGE), Admitted):
        asked.end()
    with suppress(asyncio.CancelledError):
        await cancelled(asked.wait())


async def cancelled(work: Awaitable[Any]) -> None:
    """Begin to wait, and give up at once."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    await task


@leaping
async def test_a_request_begins_at_once_while_there_is_budget() -> None:
    admission = new_admission()
    admitted = await admission.admit(SMALL)
    assert admitted.admitted_s == admitted.arrived_s
    assert admission.in_flight == 1
    admitted.end()
    assert admission.in_flight == 0
    admission.stop()


@leaping
async def test_without_budget_a_request_waits_until_it_has_flowed_in() -> None:
    admission = new_admission()
    await spend_budget(admission)
    admitted = await admission.admit(SMALL)
    assert 0 < admitted.admitted_s - admitted.arrived_s < 0.2
    admission.stop()


@leaping
async def test_requests_that_take_nothing_of_the_database_never_wait() -> None:
    admission = new_admission()
    await spend_budget(admission)
    assert isinstance(admission.ask(FREE), Admitted)
    admission.stop()


@leaping
async def test_whose_time_is_up_is_refused_and_told_when_to_come_again() -> None:
    notes: list[Served] = []
    pool = Pool(size=4)
    admission = new_admission(pool, deadline_s=2.0, note=notes.append)
    holds = [pool.take() for _ in range(4)]
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(NotAdmitted, match="busy") as caught:
        await admission.admit(LARGE)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(2.0)
    assert 1.0 <= caught.value.retry_after_s <= 60.0
    assert [note.outcome for note in notes] == ["refused"]
    assert notes[0].waited_s == pytest.approx(2.0)
    for hold in holds:
        hold.end()
    admission.stop()


@leaping
async def test_deadline_is_proportional_to_cost_above_a_minimum_share() -> None:
    admission = new_admission(deadline_s=8.0, least_deadline_ratio=0.02)
    small, large = admission.gate.class_costs
    assert (admission.deadline_of(0), admission.deadline_of(1)) == pytest.approx((8.0 * small / large, 8.0))
    assert new_admission(deadline_s=8.0, least_deadline_ratio=0.5).deadline_of(0) == 4.0


@leaping
async def test_when_too_many_wait_the_next_is_refused_at_once() -> None:
    pool = Pool(size=4)
    admission = new_admission(pool, queue_limit=2)
    for _ in range(4):
        pool.take()
    waiting = [admission.ask(SMALL) for _ in range(2)]
    assert all(isinstance(each, Waiting) for each in waiting)
    with pytest.raises(NotAdmitted, match="queue full"):
        admission.ask(SMALL)
    assert isinstance(admission.ask(LARGE), Waiting), "classes have queues of their own"
    admission.stop()


@leaping
async def test_the_longer_the_queue_the_later_to_come_again() -> None:
    pool = Pool(size=4)
    admission = new_admission(pool, queue_limit=2000)
    for _ in range(4):
        pool.take()
    times = []
    for _ in range(3):
        times.append(admission.retry_after_s())
        for _ in range(400):
            admission.ask(LARGE)
    assert times == [1.0, pytest.approx(40.0), 60.0]
    admission.stop()


@leaping
async def test_a_client_that_goes_away_leaves_the_queue_at_once() -> None:
    notes: list[Served] = []
    admission = new_admission(note=notes.append)
    await spend_budget(admission)
    notes.clear()
    with pytest.raises(asyncio.CancelledError):
        await cancelled(admission.admit(SMALL))
    assert sum(admission.gate.waiting) == 0
    assert [note.outcome for note in notes] == ["left"]
    assert admission.counts_of(0).left == 1
    admission.stop()


@leaping
async def test_who_goes_away_in_the_moment_of_its_admission_does_not_count_as_begun() -> None:
    admission = new_admission()
    await spend_budget(admission)
    task = asyncio.ensure_future(admission.admit(SMALL))
    await asyncio.sleep(0)
    admission._gate.set_rate(1e9, asyncio.get_running_loop().time() + 1)
    admission._dispatch()
    assert sum(admission.gate.waiting) == 0, "it was admitted, but does not know yet"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert admission.in_flight == 0
    assert admission.counts_of(0).left == 1
    assert admission.counts_of(0).admitted == 0
    admission.stop()


@leaping
async def test_to_end_twice_is_to_end_once() -> None:
    notes: list[Served] = []
    admission = new_admission(note=notes.append)
    admitted = await admission.admit(SMALL)
    admitted.end()
    admitted.end(is_failure=True)
    assert [note.outcome for note in notes] == ["served"]
    assert admission.in_flight == 0
    admission.stop()


@leaping
async def test_what_a_request_has_taken_is_noted_and_learned() -> None:
    notes: list[Served] = []
    pool = Pool()
    admission = new_admission(pool, note=notes.append)
    admitted = await admission.admit(SMALL)
    hold = pool.take(admitted)
    await asyncio.sleep(0.2)
    hold.end()
    await asyncio.sleep(0.1)
    admitted.end()
    (note,) = notes
    assert (note.key, note.class_number, note.outcome, note.connections) == (SMALL, 0, "served", 1)
    assert (note.waited_s, note.served_s, note.busy_s) == pytest.approx((0.0, 0.3, 0.2))
    assert admission.classifier.keys[SMALL].mean > 10.0
    admission.stop()


@leaping
async def test_a_failure_teaches_nothing_about_cost() -> None:
    pool = Pool()
    admission = new_admission(pool)
    admitted = await admission.admit(SMALL)
    hold = pool.take(admitted)
    await asyncio.sleep(3.0)
    hold.end()
    admitted.end(is_failure=True)
    assert admission.classifier.keys[SMALL].mean == 10.0
    assert admission.counts_of(0).failed == 1
    admission.stop()


@leaping
async def test_nobody_is_admitted_while_the_pool_is_nearly_full() -> None:
    pool = Pool(size=4)
    admission = new_admission(pool, reference=100_000.0)
    holds = [pool.take(await admission.admit(SMALL)) for _ in range(3)]
    task = asyncio.ensure_future(admission.admit(LARGE))
    await asyncio.sleep(1.0)
    assert not task.done()
    assert admission.is_held
    holds.pop().end()
    await asyncio.sleep(0.01)
    assert task.done()
    admission.stop()


@leaping
async def test_a_burst_does_not_pass_before_its_connections_are_counted() -> None:
    pool = Pool(size=4)
    admission = new_admission(pool, reference=100_000.0)
    asked = [admission.ask(SMALL) for _ in range(20)]
    assert [isinstance(each, Admitted) for each in asked].count(True) == 3
    admission.stop()


@leaping
async def test_who_has_gone_when_it_is_admitted_makes_no_room_for_others() -> None:
    pool = Pool(size=4)
    admission = new_admission(pool, reference=100_000.0)
    holds = [pool.take(await admission.admit(SMALL)) for _ in range(3)]
    task = asyncio.ensure_future(admission.admit(LARGE))
    await asyncio.sleep(0)
    task.cancel()
    for hold in holds:
        hold.end()
    admission.end_period(asyncio.get_running_loop().time() + 0.1)
    with pytest.raises(asyncio.CancelledError):
        await task
    asked = [admission.ask(SMALL) for _ in range(20)]
    assert [isinstance(each, Admitted) for each in asked].count(True) == 3
    admission.stop()


@leaping
async def test_the_reference_bounds_busy_connections_in_every_moment() -> None:
    pool = Pool(size=100)
    admission = new_admission(pool, reference=2000.0)
    for _ in range(2):
        pool.take(await admission.admit(SMALL))
    assert isinstance(admission.ask(SMALL), Waiting)
    admission.stop()


@leaping
async def test_when_cost_is_counted_in_connections_only_the_pool_bounds_them() -> None:
    pool = Pool(size=100)
    admission = new_admission(pool, reference=2000.0, unit=Unit.CONNECTIONS, classifier=OneClass())
    for _ in range(60):
        pool.take()
    assert isinstance(admission.ask(SMALL), Admitted)
    admission.stop()


@leaping
async def test_long_request_becomes_a_stream_and_is_not_counted() -> None:
    notes: list[Served] = []
    pool = Pool()
    admission = new_admission(pool, stream_after_s=5.0, note=notes.append)
    admitted = await admission.admit(SMALL)
    hold = pool.take(admitted)
    await asyncio.sleep(5.3)
    assert (admission.in_flight, admission.streams) == (0, 1)
    assert admission.load_per_s == pytest.approx(1000.0), "what it takes shows in the load"
    hold.end()
    admitted.end()
    assert (admission.in_flight, admission.streams) == (0, 0)
    assert admission.classifier.keys[SMALL].mean == 10.0
    assert notes[0].outcome == "served"
    admission.stop()


@leaping
async def test_a_websocket_is_a_stream_from_its_beginning() -> None:
    admission = new_admission()
    admitted = await admission.admit(SMALL)
    admitted.stream()
    admitted.stream()
    assert (admission.in_flight, admission.streams) == (0, 1)
    admitted.end()
    admitted.stream()
    assert (admission.in_flight, admission.streams) == (0, 0)
    admission.stop()


@leaping
async def test_a_websocket_that_keeps_a_connection_does_not_shut_others_out() -> None:
    pool = Pool(size=10)
    admission = new_admission(pool, reference=None)
    admitted = await admission.admit(SMALL)
    admitted.stream()
    pool.take(admitted)
    await asyncio.sleep(1.0)
    for _ in range(20):
        request = await admission.admit(SMALL)
        hold = pool.take(request)
        await asyncio.sleep(0.01)
        hold.end()
        request.end()
    admission.stop()


@leaping
async def test_each_period_is_recorded_with_reference_load_and_budget() -> None:
    samples: list[Sample] = []
    pool = Pool()
    admission = new_admission(pool, record=samples.append, name="site")
    admission.start()
    pool.take()
    pool.take()
    await asyncio.sleep(1.1)
    assert [sample.sequence for sample in samples] == [0, 1, 2, 3]
    assert {(sample.loop, sample.setpoint) for sample in samples} == {("site", 1000.0)}
    assert [sample.measurement for sample in samples] == [pytest.approx(2000.0)] * 4
    actions = [sample.action for sample in samples]
    assert actions == sorted(actions, reverse=True), "the load is too high, so less and less is admitted"
    admission.stop()


@leaping
async def test_under_overload_the_load_is_held_near_the_reference() -> None:
    samples: list[Sample] = []
    pool = Pool(size=20)
    admission = new_admission(pool, record=samples.append, reference=4000.0, deadline_s=1.0)
    loop = asyncio.get_running_loop()

    def serve(admitted: Admitted, cost_s: float) -> None:
        hold = pool.take(admitted)

        def end() -> None:
            hold.end()
            admitted.end()

        loop.call_later(cost_s, end)

    async def visit(key: str, cost_s: float) -> None:
        with suppress(NotAdmitted):
            serve(await admission.admit(key), cost_s)

    async with asyncio.TaskGroup() as tasks:
        for number in range(2000):
            key, cost_s = (LARGE, 0.1) if number % 4 == 0 else (SMALL, 0.01)
            tasks.create_task(visit(key, cost_s))
            await asyncio.sleep(0.005)
    loads = [sample.measurement for sample in samples[8:-8]]
    assert sum(loads) / len(loads) == pytest.approx(4000.0, rel=0.1)
    assert admission.counts_of(0).admitted > 0.9 * admission.counts_of(0).arrived
    assert 0.2 < admission.counts_of(1).admitted / admission.counts_of(1).arrived < 0.9
    admission.stop()


@leaping
async def test_to_start_and_stop_twice_is_to_do_it_once_and_who_waits_is_refused() -> None:
    samples: list[Sample] = []
    admission = new_admission(record=samples.append)
    admission.stop()
    admission.start()
    admission.start()
    await asyncio.sleep(0.3)
    assert len(samples) == 1
    await spend_budget(admission)
    task = asyncio.ensure_future(admission.admit(LARGE))
    await asyncio.sleep(0)
    admission.stop()
    admission.stop()
    with pytest.raises(NotAdmitted, match="shutting down"):
        await task
    await asyncio.sleep(1.0)
    assert len(samples) == 1


def test_on_another_event_loop_it_begins_anew() -> None:
    meter = Meter(lambda: 0.0)

    class Sensor:
        def __init__(self) -> None:
            self.meter = meter

    admission = Admission(Sensor(), options=AdmissionOptions(reference=1000.0, classifier=Classifier(PROFILE)))

    async def leave_things_behind() -> None:
        await admission.admit(SMALL)
        while not isinstance(admission.ask(LARGE), Waiting):
            pass

    async def come_later() -> None:
        await asyncio.sleep(1000.0)
        assert (await admission.admit(SMALL)).admitted_s >= 1000.0
        assert admission.in_flight == 1
        admission.stop()

    run_leaping(leave_things_behind())
    run_leaping(come_later())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_was_left_on_another_event_loop_is_not_counted_again_when_it_ends(is_stopped: bool) -> None:
    meter = Meter(lambda: 0.0)
    meter.size_of(meter, 4)

    class Sensor:
        def __init__(self) -> None:
            self.meter = meter

    admission = Admission(Sensor(), options=AdmissionOptions(reference=100_000.0, classifier=Classifier(PROFILE)))
    left: list[Admitted] = []

    async def leave_things_behind() -> None:
        left.extend([await admission.admit(SMALL) for _ in range(3)])
        left[0].stream()
        if is_stopped:
            admission.stop()

    async def come_later() -> None:
        admission.start()
        assert (admission.in_flight, admission.streams) == (0, 0)
        for each in left:
            each.end()
        assert (admission.in_flight, admission.streams) == (0, 0)
        admission.stop()

    run_leaping(leave_things_behind())
    run_leaping(come_later())


@leaping
async def test_the_state_is_a_json_document() -> None:
    pool = Pool(size=8)
    admission = new_admission(pool)
    (await admission.admit(SMALL)).end()
    state = json.loads(json.dumps(state_of(admission), allow_nan=False))
    assert state["unit"] == "ms"
    assert state["reference"] == {"value": 1000.0, "state": "fixed"}
    assert state["pool"]["size"] == 8
    assert [each["cost"] for each in state["classes"]] == [each.mean for each in admission.classifier.classes]
    assert state["classes"][0]["served"] == 1
    assert set(state["keys"]) == {SMALL, LARGE, FREE}
    admission.stop()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"period_s": 0.0}, "invalid period_s 0.0"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"deadline_s": "5"}, "invalid deadline_s '5'"),
        ({"reference": "4000"}, "invalid reference '4000'"),
        ({"unit": "s"}, "invalid unit 's': use one of ms, connections"),
        ({"full_ratio": math.nan}, "full_ratio"),
        ({"queue_limit": 0}, "queue_limit"),
        ({"stream_after_s": math.inf}, "stream_after_s"),
        ({"reference": 0.0}, "reference"),
        ({"gain": 0.0}, "gain"),
        ({"scheduler": "nonsense"}, "nonsense"),
        ({"unit": Unit.CONNECTIONS}, "profile"),
    ],
)
def test_options_that_cannot_work_are_refused(option: dict[str, Any], message: str) -> None:
    @leaping
    async def attempt() -> None:
        new_admission(**option)

    with pytest.raises(AdmissionError, match=message):
        attempt()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([SMALL, LARGE, FREE, "GET /new"])),
        st.tuples(st.sampled_from(["cancel", "end", "fail", "stream", "take", "give"]), st.integers(0, 5)),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 0.001, 0.05, 0.3, 1.2])),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.sampled_from(["dps", "memoryless", "static", "round_robin", "strict", "fifo"]))
def test_counts_balance_and_no_request_starts_twice_or_after_leaving(
    actions: list[tuple[str, Any]], scheduler: str
) -> None:
    run_leaping(_go_through(actions, scheduler))


async def _go_through(actions: list[tuple[str, Any]], scheduler: str) -> None:
    notes: list[Served] = []
    pool = Pool(size=6)
    admission = new_admission(
        pool,
        scheduler=scheduler,
        deadline_s=1.0,
        stream_after_s=1.0,
        queue_limit=5,
        note=notes.append,
        reference=None,
    )
    tasks: list[asyncio.Future[Admitted]] = []
    gone: set[asyncio.Future[Admitted]] = set()
    holds: list[Hold] = []
    for name, value in actions:
        await asyncio.sleep(0)
        begun = [task.result() for task in tasks if task.done() and not (task.cancelled() or task.exception())]
        open_requests = [each for each in begun if not each.has_ended]
        if name == "ask":
            tasks.append(asyncio.ensure_future(admission.admit(value)))
        elif name == "pass":
            await asyncio.sleep(value)
        elif name == "cancel" and (pending := [task for task in tasks if not task.done()]):
            gone.add(pending[value % len(pending)])
            pending[value % len(pending)].cancel()
        elif name in ("end", "fail") and open_requests:
            open_requests[value % len(open_requests)].end(is_failure=name == "fail")
        elif name == "stream" and open_requests:
            open_requests[value % len(open_requests)].stream()
        elif name == "take" and open_requests and len(holds) < 6:
            holds.append(pool.take(open_requests[value % len(open_requests)]))
        elif name == "give" and holds:
            holds.pop(value % len(holds)).end()
        assert math.isfinite(admission.budget_per_s)
        assert math.isfinite(admission.gate.budget)
        assert admission.budget_per_s > 0
    for hold in holds:
        hold.end()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    begun = [each for each in results if isinstance(each, Admitted)]
    assert len(set(begun)) == len(begun)
    assert all(task.cancelled() for task in gone)
    for each in begun:
        each.end()
    assert (admission.in_flight, admission.streams, sum(admission.gate.waiting)) == (0, 0, 0)
    # A task that was cancelled before it ran never reached the gate.
    came = len(tasks) - sum(task.cancelled() for task in tasks) + sum(counts.left for counts in admission.counts)
    assert sum(counts.arrived for counts in admission.counts) == came == len(notes)
    for counts in admission.counts:
        assert counts.arrived == counts.admitted + counts.refused + counts.left
        assert counts.admitted == counts.served + counts.failed == sum(counts.waits)
    admission.stop()


@leaping
async def test_another_deadline_holds_for_whoever_comes_then() -> None:
    pool = Pool(size=4)
    admission = new_admission(pool, deadline_s=3600.0)
    for _ in range(4):
        pool.take()
    patient = asyncio.ensure_future(admission.admit(LARGE))
    await asyncio.sleep(0)
    admission.deadline_s = 2.0
    assert state_of(admission)["classes"][1]["deadline_s"] == 2.0
    with pytest.raises(NotAdmitted):
        await admission.admit(LARGE)
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)
    assert not patient.done()
    admission.stop()
    with pytest.raises(NotAdmitted):
        await patient


# Shadow


@leaping
async def test_in_shadow_everybody_begins_at_once_and_the_budget_is_still_decided() -> None:
    samples: list[Sample] = []
    admission = new_admission(record=samples.append)
    admission.set_shadow(True)
    begun = [await admission.admit(LARGE) for _ in range(50)]
    assert admission.in_flight == 50
    assert state_of(admission)["is_shadow"]
    await asyncio.sleep(1)
    assert len(samples) >= 3
    for admitted in begun:
        admitted.end()
    admission.stop()


@leaping
async def test_shadow_mode_admits_waiting_requests_until_it_ends() -> None:
    admission = new_admission()
    await spend_budget(admission)
    waiting = admission.ask(LARGE)
    assert isinstance(waiting, Waiting)
    admission.set_shadow(True)
    (await waiting.wait()).end()
    assert sum(admission.gate.waiting) == 0
    admission.set_shadow(False)
    last = [admission.ask(LARGE) for _ in range(5)][-1]
    assert isinstance(last, Waiting)
    admission.stop()
    with suppress(NotAdmitted):
        await last.wait()


@leaping
async def test_admission_loop_is_certified_for_stable_gains() -> None:
    assert loop_facts_of(new_admission())["certificate"]["is_sound"]
    shaky = loop_facts_of(new_admission(gain=1.5))["certificate"]
    assert not shaky["is_sound"]
    assert "gain margin" in shaky["reasons"][0]
