"""The control loops inside a node, as people see them: what each measures and does, and how it stands.

Only describes and reads; what they do is decided where they are.
"""

from __future__ import annotations

from flyball.admission.admission import Admission
from flyball.admission.state import loop_facts_of
from flyball.broker.core.flow import Flow
from flyball.broker.core.governor import (
    JOURNAL_CERTIFICATE,
    JOURNAL_KI_PER_S,
    JOURNAL_KP,
    MAX_RATE,
    MEMORY_CERTIFICATE,
    MEMORY_KP,
    SAMPLE_S,
)
from flyball.broker.core.loops import Bounds, LoopFacts, Loops, Quantity, Reading, proof_of

PROTECTS = "it keeps the node from running out of memory; switch the node off instead"

RATE = Quantity(what="what publishers may send", unit="bytes/s")

COMMIT_QUEUE = LoopFacts(
    title="commit queue",
    about="Slows publishers so that what waits for the store stays near its setpoint; rests while nothing is scarce.",
    measures=Quantity(what="changes that wait for the store", unit="bytes"),
    acts=RATE,
    law="pi",
    gains={"kp": JOURNAL_KP, "ki_per_s": JOURNAL_KI_PER_S},
    limits=Bounds(lowest=0.0, highest=MAX_RATE),
    sample_time_s=SAMPLE_S,
    certificate=proof_of(JOURNAL_CERTIFICATE),
)

MEMORY = LoopFacts(
    title="memory",
    about="Slows publishers as the memory fills with messages that the store cannot take over.",
    measures=Quantity(what="messages that must stay in memory", unit="bytes"),
    acts=RATE,
    law="p",
    gains={"kp": MEMORY_KP},
    limits=Bounds(lowest=0.0, highest=MAX_RATE),
    sample_time_s=SAMPLE_S,
    certificate=proof_of(MEMORY_CERTIFICATE),
)


def add_node_loops(loops: Loops, node: str, flow: Flow, listings: Admission) -> None:
    """Let the loops of a node be seen, each under the node's name and its own."""
    loops.add(f"{node}.commit_queue", COMMIT_QUEUE, flow.read_commit_queue, why_fixed=PROTECTS)
    loops.add(f"{node}.memory", MEMORY, flow.read_memory, why_fixed=PROTECTS)

    def read_listings() -> Reading:
        # Until somebody lists something it does not run.
        action = listings.budget_per_s if listings.is_running else None
        return Reading(listings.reference.value, listings.load_per_s, action)

    loops.add(
        f"{node}.listings",
        LoopFacts.model_validate(loop_facts_of(listings)),
        read_listings,
        switch=listings.set_shadow,
    )
