"""Metrics without a RabbitMQ counterpart: request phases, control loops, admission control, the domain."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import flyball
from flyball.broker.core.loops import KnownLoop
from flyball.broker.management.api.context import ApiContext
from flyball.broker.management.api.domain_view import nodes
from flyball.broker.management.inspection import latencies
from flyball.broker.management.metrics.exposition import COUNTER, GAUGE, HISTOGRAM, Family, Sample, labels
from flyball.broker.management.slices import next_slice
from flyball.broker.node.node import Node
from flyball.trace.latencies import BOUNDS_S

SLICE = 100

INFO = Family("flyball_info", GAUGE, "Name, version and store of the node")

PHASES = Family("flyball_phase_seconds", HISTOGRAM, "Duration of request phases, by kind of request")

LOOP_SHADOW = Family("flyball_loop_shadow", GAUGE, "Whether the loop is in shadow mode: it computes but does not act")
LOOP_RUNNING = Family("flyball_loop_running", GAUGE, "Whether the loop has something to control and reports")
LOOP_CERTIFIED = Family("flyball_loop_certified", GAUGE, "Whether the loop has a sound stability certificate")
LOOP_VALUES = {
    "setpoint": Family("flyball_loop_setpoint", GAUGE, "Setpoint of the loop"),
    "measurement": Family("flyball_loop_measurement", GAUGE, "Measurement of the loop"),
    "action": Family(
        "flyball_loop_action", GAUGE, "Control action of the loop; none while it has nothing to control"
    ),
}

ADMISSION_LOADS = {
    "reference": Family("flyball_admission_reference", GAUGE, "Reference load, in cost per second."),
    "load": Family("flyball_admission_load", GAUGE, "Load of the last period, in cost per second."),
    "budget": Family("flyball_admission_budget", GAUGE, "Admission budget, in cost per second."),
}
ADMISSION_STATES = {
    "in_flight": Family("flyball_admission_in_flight", GAUGE, "Requests in flight."),
    "streams": Family("flyball_admission_streams", GAUGE, "Open WebSockets and other long-lived requests."),
    "is_held": Family("flyball_admission_held", GAUGE, "Whether admission is stopped at present."),
}
ADMISSION_CLASSES = {
    "waiting": Family("flyball_admission_waiting", GAUGE, "Requests waiting for admission."),
    "cost": Family("flyball_admission_class_cost", GAUGE, "Average cost of a request."),
    "probability": Family(
        "flyball_admission_probability", GAUGE, "Probability of admission ahead of cheaper requests."
    ),
}
ADMISSION_REQUESTS = Family(
    "flyball_admission_requests_total", COUNTER, "Requests by outcome: served, failed, refused, left."
)
OUTCOMES = ("served", "failed", "refused", "left")

NODES = Family("flyball_domain_nodes", GAUGE, "Nodes of the domain by state")
LEASES = Family("flyball_node_lease_seconds", GAUGE, "Remaining lease of each node, as seen by this node")
LEADS = Family("flyball_node_leads", GAUGE, "Whether the node leads the domain")
MEMBERS_HERE = {
    "ready": Family("flyball_cluster_member_ready", GAUGE, "Ready messages of the node's member"),
    "unacked": Family("flyball_cluster_member_unacked", GAUGE, "Unacked messages of the node's member"),
    "given": Family("flyball_cluster_member_given_total", COUNTER, "Messages transferred to other members"),
}
SESSIONS = Family("flyball_cluster_sessions", GAUGE, "Clients on this node, by role and by the node of their member")
MEMBERS = Family("flyball_cluster_members", GAUGE, "Members of clustered queues; reported by the leader only")
LOADS = Family("flyball_cluster_member_load", GAUGE, "Load of a member; reported by the leader only")
DECISIONS = Family(
    "flyball_cluster_decisions_total",
    COUNTER,
    "Decisions of the node as leader, by kind: Move, AddMember, Provision, ...",
)


async def texts(context: ApiContext) -> AsyncIterator[str]:
    """Write all metrics of this module."""
    node = context.node
    yield INFO.text([(labels(version=flyball.__version__, node=context.name, store=node.settings.store.kind), 1)])
    async for text in _phases(node):
        yield text
    async for text in _loops(node):
        yield text
    yield _admission(await context.domain_nodes.ask_node(context.name, "admissions"))
    await next_slice()
    yield _domain(node)


# Phases


async def _phases(node: Node) -> AsyncIterator[str]:
    """Write the histograms, one kind of request per slice."""
    head = PHASES.head
    for kind, found in latencies(node).items():
        # Phases that a kind of request does not have are left out: a delivery is not parsed.
        lines = [_histogram(kind, phase, found) for phase, sum_ns in found["sum_ns"].items() if sum_ns]
        yield head + "".join(lines)
        head = ""
        await next_slice()


def _histogram(kind: str, phase: str, found: Mapping[str, Any]) -> str:
    counts = [*accumulate(found["buckets"][phase])]
    texts, sum_text, count_text = _names_of_histogram(kind, phase)
    lines = [f"{text}{count}\n" for text, count in zip(texts, counts, strict=True)]
    lines.append(f"{sum_text}{found['sum_ns'][phase] / 1e9}\n{count_text}{counts[-1]}\n")
    return "".join(lines)


@functools.cache
def _names_of_histogram(kind: str, phase: str) -> tuple[Sequence[str], str, str]:
    """Return the name and labels of each line of a histogram: they never change, and there are many."""
    bounds = [*map(repr, BOUNDS_S), "+Inf"]
    buckets = [f"{PHASES.name}_bucket{labels(kind=kind, phase=phase, le=bound)} " for bound in bounds]
    which = labels(kind=kind, phase=phase)
    return buckets, f"{PHASES.name}_sum{which} ", f"{PHASES.name}_count{which} "


# Loops


async def _loops(node: Node) -> AsyncIterator[str]:
    """Write the state of all known loops; of lost ones only that they are not running."""
    now = time.time()
    known = [(labels(loop=loop.name), loop, loop.state(now)) for loop in node.hub.loops.all()]
    yield LOOP_RUNNING.text([(which, state == "running") for which, _, state in known])
    present = [(which, loop) for which, loop, state in known if state != "gone"]
    yield LOOP_SHADOW.text([(which, loop.is_shadow) for which, loop in present])
    yield LOOP_CERTIFIED.text([(which, _is_certified(loop)) for which, loop in present])
    await next_slice()
    values: dict[str, list[Sample]] = {name: [] for name in LOOP_VALUES}
    for place, (which, loop) in enumerate(present, 1):
        last = loop.samples.last() or {}
        for name, samples in values.items():
            samples.append((which, last.get(name)))
        if place % SLICE == 0:
            await next_slice()
    for name, family in LOOP_VALUES.items():
        yield family.text(values[name])


def _is_certified(loop: KnownLoop) -> bool:
    certificate = loop.facts.certificate
    return certificate is not None and certificate.is_sound


# Admission control


def _admission(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the state of admission control: the node's own, and those of applications."""
    running = [found for found in documents if found["state"] == "running"]
    names = [labels(admission=found["name"]) for found in running]
    units = [labels(admission=found["name"], unit=found["unit"]) for found in running]
    loads = [{**found, "reference": found["reference"]["value"]} for found in running]
    classes = [(found["name"], str(each["class"]), each) for found in running for each in found["classes"]]
    of_class = [labels(admission=name, class_=number) for name, number, _ in classes]
    written = [
        family.text([(unit, each[name]) for unit, each in zip(units, loads, strict=True)])
        for name, family in ADMISSION_LOADS.items()
    ]
    written += [
        family.text([(which, found[name]) for which, found in zip(names, running, strict=True)])
        for name, family in ADMISSION_STATES.items()
    ]
    written += [
        family.text([(which, each[name]) for which, (_, _, each) in zip(of_class, classes, strict=True)])
        for name, family in ADMISSION_CLASSES.items()
    ]
    written.append(
        ADMISSION_REQUESTS.text(
            [
                (labels(admission=name, class_=number, outcome=outcome), each[outcome])
                for name, number, each in classes
                for outcome in OUTCOMES
            ]
        )
    )
    return "".join(written)


# The domain


def _domain(node: Node) -> str:
    """Return the state of the domain, as of the node's last renewal."""
    membership = node.membership
    states = Counter(str(record.state) if record.is_live else "dead" for record in membership.nodes)
    own = membership.node(membership.node_id)
    report: Mapping[str, Any] = {} if own is None else own.report
    return "".join(
        [
            NODES.text([(labels(state=state), count) for state, count in states.items()]),
            LEASES.text([(labels(node=name), record.lease_left_s) for name, record in nodes(node).items()]),
            _members_here(node, report.get("members", {})),
            SESSIONS.text(_sessions(node, report.get("clients", {}))),
            _leading(node),
        ]
    )


def _members_here(node: Node, reported: Mapping[str, Mapping[str, int]]) -> str:
    """Return the state of the members that the node serves."""
    places = [(_place_of(node, int(queue_id)), member) for queue_id, member in reported.items()]
    found = [(labels(vhost=place[0], queue=place[1]), member) for place, member in places if place is not None]
    return "".join(
        [family.text([(which, member[name]) for which, member in found]) for name, family in MEMBERS_HERE.items()]
    )


def _sessions(node: Node, reported: Mapping[str, Mapping[str, int]]) -> list[Sample]:
    found: list[Sample] = []
    for queue_id, counts in reported.items():
        place = _place_of(node, int(queue_id))
        if place is not None:
            vhost, name, member = place
            found += [
                (labels(vhost=vhost, queue=name, node=member, role=role), count) for role, count in counts.items()
            ]
    return found


def _place_of(node: Node, queue_id: int) -> tuple[str, str, str] | None:
    """Return vhost and name of a queue and its owner's name; None if it is gone."""
    state = node.hub.broker.engine.find_queue_by_id(queue_id)
    if state is not None:
        return state.queue.vhost, state.queue.name, node.hub.peering.name
    remote = node.hub.directory.get(queue_id)
    return None if remote is None else (remote.queue.vhost, remote.queue.name, node.hub.peering.name_of(remote.owner))


def _leading(node: Node) -> str:
    """Return the metrics of the leader; empty without a domain."""
    report = node.hub.reports.get("domain")
    if report is None:
        return ""
    reported = report()
    clusters = Counter((member["vhost"], member["name"]) for member in reported["members"])
    loads: list[Sample] = [
        (labels(vhost=member["vhost"], queue=member["name"], node=member["node"]), member["load"])
        for member in reported["members"]
    ]
    return "".join(
        [
            LEADS.text([("", reported["leads"])]),
            MEMBERS.text([(labels(vhost=vhost, queue=name), count) for (vhost, name), count in clusters.items()]),
            LOADS.text(loads),
            DECISIONS.text([(labels(kind=kind), count) for kind, count in reported["decisions"].items()]),
        ]
    )
