"""Registers the control loops of a node, with their descriptions and the functions that read their state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flyball.admission.admission import Admission
from flyball.admission.state import loop_facts_of
from flyball.broker.core.flow import Flow
from flyball.broker.core.flow_controller import (
    JOURNAL_CERTIFICATE,
    JOURNAL_KI_PER_S,
    JOURNAL_KP,
    MAX_RATE,
    MEMORY_CERTIFICATE,
    MEMORY_KP,
    SAMPLE_S,
)
from flyball.broker.core.loops import Bounds, LoopFacts, Loops, Quantity, Reading, proof_of
from flyball.control.loop import Sample

PROTECTS = "it keeps the node from running out of memory"

RATE = Quantity(what="rate limit of publishers", unit="bytes/s")

COMMIT_QUEUE = LoopFacts(
    title="commit queue",
    about="Throttles publishers to keep the commit queue near its setpoint; idle without pressure.",
    measures=Quantity(what="operations waiting for their commit", unit="bytes"),
    acts=RATE,
    law="pi",
    gains={"kp": JOURNAL_KP, "ki_per_s": JOURNAL_KI_PER_S},
    limits=Bounds(lowest=0.0, highest=MAX_RATE),
    sample_time_s=SAMPLE_S,
    certificate=proof_of(JOURNAL_CERTIFICATE),
)

MEMORY = LoopFacts(
    title="memory",
    about="Throttles publishers as memory fills with messages that cannot be paged out.",
    measures=Quantity(what="memory that cannot be paged out", unit="bytes"),
    acts=RATE,
    law="p",
    gains={"kp": MEMORY_KP},
    limits=Bounds(lowest=0.0, highest=MAX_RATE),
    sample_time_s=SAMPLE_S,
    certificate=proof_of(MEMORY_CERTIFICATE),
)


def add_node_loops(
    loops: Loops, node: str, flow: Flow, listings: Admission, record: Callable[[Sample], None] | None = None
) -> None:
    """Register the loops of a node, with the node's name as a prefix; `record` receives their samples."""
    if record is not None:
        flow.record_with(record, f"{node}.commit_queue", f"{node}.memory")
        listings.record_with(_of_busy_periods(record, f"{node}.listings"))
    loops.add(f"{node}.commit_queue", COMMIT_QUEUE, flow.read_commit_queue, why_fixed=PROTECTS)
    loops.add(f"{node}.memory", MEMORY, flow.read_memory, why_fixed=PROTECTS)

    def read_listings() -> Reading:
        # The loop starts with the first listing.
        action = listings.budget_per_s if listings.is_running else None
        return Reading(listings.reference.value, listings.load_per_s, action)

    loops.add(
        f"{node}.listings",
        LoopFacts.model_validate(loop_facts_of(listings)),
        read_listings,
        switch=listings.set_shadow,
    )


def _of_busy_periods(record: Callable[[Sample], None], name: str) -> Callable[[Sample], None]:
    """Record the samples of a loop that keeps running while idle, except those of idle periods."""
    was_busy = False

    def note(sample: Sample) -> None:
        nonlocal was_busy
        is_busy = sample.measurement != 0.0
        if is_busy or was_busy:
            record(replace(sample, loop=name))
        was_busy = is_busy

    return note
