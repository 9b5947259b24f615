"""The registry of control loops of a node, its own and reported ones, and its bounds."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest
from pydantic import ValidationError

from flyball.broker.core.loops import (
    FORGOTTEN_AFTER_S,
    KEPT_SAMPLES,
    MAX_LOOPS,
    MAX_LOOPS_OF_USER,
    Bounds,
    LoopFacts,
    LoopReport,
    Loops,
    LoopSample,
    Quantity,
    Reading,
    Ring,
    proof_of,
)
from flyball.control.certificate import Certificate
from flyball.errors import LoopNotFound, NotPermitted, NotSwitchable, TooManyLoops

SOUND = Certificate({"kind": "i"}, "y = 2 u", (0.5 + 0j,), 0.5, 4.0, math.inf)
SHAKY = Certificate({"kind": "i"}, "y = 2 u", (0.5 + 0j,), 0.5, 1.3, 3.0)


def facts(certificate: Certificate | None = SOUND, sample_time_s: float = 1.0) -> LoopFacts:
    return LoopFacts(
        title="orders",
        about="Holds 400 messages a second.",
        measures=Quantity(what="messages", unit="messages/s"),
        acts=Quantity(what="window", unit="messages"),
        law="i",
        gains={"ki": 0.25},
        limits=Bounds(lowest=1.0, highest=100.0),
        sample_time_s=sample_time_s,
        certificate=None if certificate is None else proof_of(certificate),
    )


def sample(at: float, value: float = 1.0) -> LoopSample:
    return LoopSample(at=at, setpoint=400.0, measurement=value, action=2.0)


def report(loops: Loops, name: str = "orders", at: float = 100.0, user: str = "anna", **options: Any) -> Any:
    return loops.report(name, LoopReport(**{"facts": facts(), "samples": [sample(at)], **options}), user, at)


def test_a_loop_of_the_node_is_sampled_with_every_tick() -> None:
    loops = Loops()
    readings = [Reading(10.0, 4.0, None), Reading(10.0, 9.0, 3.5)]
    loops.add("north.memory", facts(), lambda: readings.pop(0), why_fixed="it protects the node")
    loops.tick(100.0)
    assert loops.get("north.memory").state(100.0) == "idle", "it has nothing to control"
    loops.tick(101.0)
    found = loops.get("north.memory").document("north", 101.0, with_samples=True)
    assert (found["place"], found["state"], found["setpoint"]) == ("node", "running", 10.0)
    assert found["samples"] == [
        {"at": 100.0, "setpoint": 10.0, "measurement": 4.0, "action": None},
        {"at": 101.0, "setpoint": 10.0, "measurement": 9.0, "action": 3.5},
    ]
    assert found["certificate"]["margins"] == {"gain": 4.0, "delay_samples": None, "largest_pole": 0.5}
    with pytest.raises(NotSwitchable, match="it protects the node"):
        loops.get("north.memory").switch("shadow")


def test_a_loop_of_the_node_that_can_be_switched_is_switched_at_once() -> None:
    loops, modes = Loops(), list[bool]()
    loop = loops.add("north.listings", facts(), lambda: Reading(1.0, 1.0, 1.0), switch=modes.append)
    loop.switch("shadow")
    assert loop.is_shadow
    loop.switch("active")
    assert modes == [True, False]


def test_a_reported_loop_needs_its_facts_once() -> None:
    loops = Loops()
    assert report(loops, facts=None) is None, "whoever restarted has to be told again"
    assert report(loops, at=100.0) is not None
    loop = report(loops, facts=None, at=101.0)
    assert [row["at"] for row in loop.samples.all()] == [100.0, 101.0]
    assert loop.document("north", 101.0)["place"] == "client"


def test_a_loop_that_is_not_reported_any_more_is_gone_and_at_last_forgotten() -> None:
    loops = Loops()
    loop = report(loops, at=100.0)
    assert loop.state(110.0) == "running"
    assert loop.state(110.1) == "gone"
    loops.tick(700.0)
    assert loops.find("orders") is loop
    loops.tick(700.1)
    with pytest.raises(LoopNotFound, match="no loop 'orders'"):
        loops.get("orders")


def test_a_loop_is_that_of_the_user_who_reported_it_first() -> None:
    loops = Loops()
    report(loops, user="anna")
    with pytest.raises(NotPermitted, match="another user"):
        report(loops, user="bert")
    trusted = LoopReport(samples=[sample(101.0)])
    assert loops.report("orders", trusted, "root", 101.0, is_trusted=True) is not None
    loops.add("north.memory", facts(), lambda: None)
    with pytest.raises(NotPermitted):
        loops.report("north.memory", trusted, "root", 101.0, is_trusted=True)


def test_the_one_who_reports_hears_what_somebody_wants() -> None:
    loops = Loops()
    loop = report(loops, is_shadow=True)
    loop.switch("active")
    assert (loop.wanted_mode, loop.is_shadow) == ("active", True), "it obeys with its next report"
    assert report(loops, is_shadow=False, at=101.0).is_shadow is False


@pytest.mark.parametrize(
    ("certificate", "reason"), [(None, "has no certificate"), (SHAKY, "its gain margin on y = 2 u is 1.3, below 2")]
)
def test_no_loop_without_a_sound_certificate_leaves_shadow_mode(certificate: Certificate | None, reason: str) -> None:
    loop = report(Loops(), facts=facts(certificate), is_shadow=True)
    with pytest.raises(NotSwitchable, match=reason):
        loop.switch("active")
    assert loop.wanted_mode is None
    loop.switch("shadow")


def test_of_too_many_loops_those_make_way_that_are_gone() -> None:
    loops = Loops()
    for number in range(MAX_LOOPS):
        report(loops, f"loop-{number}", at=100.0, user=f"user-{number % 3}")
    with pytest.raises(TooManyLoops):
        report(loops, "one more", at=101.0)
    assert report(loops, "one more", at=200.0) is not None
    assert len(loops.all()) == 1


def test_a_user_with_too_many_loops_does_not_keep_others_from_theirs() -> None:
    loops = Loops()
    for number in range(MAX_LOOPS_OF_USER):
        report(loops, f"loop-{number}")
    with pytest.raises(TooManyLoops, match="of user 'anna'"):
        report(loops, "one more")
    assert report(loops, "another", user="bert") is not None


def test_a_slow_loop_is_forgotten_as_others_are() -> None:
    loops = Loops()
    report(loops, facts=facts(sample_time_s=3600.0), at=100.0)
    loops.tick(100.0 + FORGOTTEN_AFTER_S)
    assert loops.all()
    loops.tick(101.0 + FORGOTTEN_AFTER_S)
    assert not loops.all()


@pytest.mark.parametrize("change", [{"sample_time_s": 1e300}, {"gains": {"k": [1.0] * 21}}])
def test_facts_of_a_loop_have_bounds(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LoopFacts(**{**facts().model_dump(), **change})


def test_a_stream_of_samples_does_not_grow_memory() -> None:
    loops = Loops()
    report(loops)
    batch = [sample(float(number)) for number in range(KEPT_SAMPLES)]

    def tell(times: int) -> None:
        for number in range(times):
            report(loops, facts=None, samples=batch, at=100.0 + number)

    tell(2)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tell(20)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000
    assert loops.get("orders").samples.count == KEPT_SAMPLES


def test_a_ring_keeps_the_last_rows_in_their_order() -> None:
    ring = Ring(("at", "value"), 3)
    assert ring.last() is None
    for number in range(5):
        ring.append(float(number), None if number == 3 else math.inf)
    assert ring.all() == [{"at": float(number), "value": None} for number in (2, 3, 4)]
    assert ring.last() == {"at": 4.0, "value": None}


@pytest.mark.parametrize(
    "document",
    [
        {"samples": [{"at": float("nan")}]},
        {"samples": [{"at": 1.0}] * (KEPT_SAMPLES + 1)},
        {"samples": [{"at": 1.0, "colour": 3}]},
        {"is_shadow": "yes"},
        {"facts": {**facts().model_dump(), "sample_time_s": 0}},
    ],
)
def test_a_report_that_is_none_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LoopReport.model_validate(document)
