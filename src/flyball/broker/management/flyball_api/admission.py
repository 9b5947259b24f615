"""State of admission control: of each node's own listings, and of applications that report theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response

from flyball.admission.state import state_of
from flyball.broker.core.loops import (
    FORGOTTEN_AFTER_S,
    MIN_ABSENCE_S,
    LoopFacts,
    LoopReport,
    LoopSample,
    Name,
    Number,
    Ring,
)
from flyball.broker.management.api.answers import answer, not_found
from flyball.broker.management.api.context import ApiContext, Body, Call, Right, Routes
from flyball.broker.management.flyball_api.loops import name_in, validated
from flyball.broker.node.node import Node
from flyball.errors import NotPermitted, TooManyLoops

MAX_ADMISSIONS = 100
MAX_REPORT_BYTES = 128 * 1024
HISTORY_FIELDS = ("at", "reference", "load", "budget", "in_flight", "waiting")

Count = Annotated[int, Field(ge=0, le=2**53)]


class _Report(BaseModel):
    """A report of an application: unknown fields are refused, and it is immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReferenceReport(_Report):
    """The reference load and its state."""

    value: Number
    state: Name


class PoolReport(_Report):
    """The pool behind the requests; None is unbounded."""

    size: Count | None
    busy: Count
    waiting: Count
    connections: Count
    busy_s: Number
    waiting_s: Number


class ClassReport(_Report):
    """Requests of similar cost; None is unknown or infinite."""

    number: Count = Field(alias="class")
    cost: Number
    deadline_s: Number | None
    below: Number | None
    waiting: Count
    arrivals_per_s: Number
    arrived: Count
    admitted: Count
    refused: Count
    left: Count
    served: Count
    failed: Count
    probability: Number
    odds: Number | None


class KeyReport(_Report):
    """A kind of requests."""

    number: Count = Field(alias="class")
    cost: Number
    base_cost: Number | None
    requests: Count


def _numbers_differ(classes: list[ClassReport]) -> list[ClassReport]:
    if len({each.number for each in classes}) < len(classes):
        raise ValueError("two classes have the same number")
    return classes


class AdmissionReport(_Report):
    """An application's report, about once a second: `state_of` of `flyball.admission`, and its loop."""

    facts: LoopFacts
    name: Name
    unit: Name
    reference: ReferenceReport
    load: Number
    budget: Number
    period_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    deadline_s: Number
    in_flight: Count
    streams: Count
    is_held: bool
    is_shadow: bool
    pool: PoolReport
    classes: Annotated[list[ClassReport], Field(max_length=100), AfterValidator(_numbers_differ)]
    keys: Annotated[dict[Annotated[str, Field(max_length=500)], KeyReport], Field(max_length=200)]


class KnownAdmission:
    """The latest and earlier states of an admission control."""

    def __init__(self, name: str, user: str | None, state: Callable[[], dict[str, Any]]) -> None:
        self.name = name
        self.user = user
        self.client: str | None = None
        self.reported_at = 0.0
        self.state = state
        self.history = Ring(HISTORY_FIELDS)

    def note(self, now: float) -> None:
        """Add the current state to the history."""
        state = self.state()
        waiting = sum(each["waiting"] for each in state["classes"])
        row = (state["reference"]["value"], state["load"], state["budget"], state["in_flight"], waiting)
        self.history.append(now, *row)
        self.reported_at = now

    def is_gone(self, now: float) -> bool:
        return now - self.reported_at > MIN_ABSENCE_S

    def document(self, node: str, now: float, *, is_whole: bool = False) -> dict[str, Any]:
        """Return the state; with `is_whole` also the kinds of requests and the history."""
        found = {
            **self.state(),
            "name": self.name,
            "node": node,
            "place": "node" if self.user is None else "client",
            "client": self.client,
            "user": self.user,
            "reported_at": self.reported_at,
            "state": "gone" if self.is_gone(now) else "running",
        }
        if is_whole:
            return {**found, "history": self.history.all()}
        del found["keys"]
        return found


class Admissions:
    """All admission controls that a node knows, by name."""

    def __init__(self, node: Node) -> None:
        self._node_name = node.hub.peering.name
        self._loops = node.hub.loops
        own = KnownAdmission(
            f"{self._node_name}.listings", None, partial(state_of, node.hub.broker.listing_limiter.admission)
        )
        self._known: dict[str, KnownAdmission] = {own.name: own}
        self._own = own

    def tick(self) -> None:
        """Record the node's own state, and drop those that stopped reporting. About once a second."""
        now = time.time()
        self._own.note(now)
        for name in [name for name, known in self._known.items() if now - known.reported_at > FORGOTTEN_AFTER_S]:
            del self._known[name]

    def report(self, name: str, report: AdmissionReport, user: str, *, is_trusted: bool) -> str | None:
        """Store a report; return the mode that an operator has requested.

        Raises NotPermitted, TooManyLoops.
        """
        now = time.time()
        known = self._known.get(name)
        if known is not None and (known is self._own or (known.user != user and not is_trusted)):
            raise NotPermitted(f"admission control {name!r} is reported by another user: choose another name")
        if known is None and len(self._known) >= MAX_ADMISSIONS:
            raise TooManyLoops(MAX_ADMISSIONS)
        sample = LoopSample(at=now, setpoint=report.reference.value, measurement=report.load, action=report.budget)
        loop_from_report = LoopReport(facts=report.facts, is_shadow=report.is_shadow, samples=[sample])
        loop = self._loops.report(f"admission.{name}", loop_from_report, user, now, is_trusted=is_trusted)
        state = report.model_dump(exclude={"facts"}, by_alias=True)
        if known is None:
            known = self._known[name] = KnownAdmission(name, user, lambda: state)
        known.state = lambda: state
        known.client = report.facts.client
        known.note(now)
        return None if loop is None else loop.wanted_mode

    async def list(self) -> list[dict[str, Any]]:
        now = time.time()
        return [self._known[name].document(self._node_name, now) for name in sorted(self._known)]

    async def show(self, name: str) -> dict[str, Any] | None:
        known = self._known.get(name)
        return None if known is None else known.document(self._node_name, time.time(), is_whole=True)


def routes(context: ApiContext, admissions: Admissions) -> Routes:
    """Return the routes that read and accept states, and register the answers for peers."""
    context.domain_nodes.provide("admissions", admissions.list)
    context.domain_nodes.provide("admission", admissions.show)
    routes = Routes()

    @routes.get("/flyball/admission", Right.MONITORING)
    async def list_admissions(call: Call) -> Response:
        """List the admission controls of all nodes and of the applications that report to them."""
        found = await call.context.domain_nodes.list_all("admissions")
        return answer(sorted(found, key=lambda each: str(each["name"])))

    @routes.get("/flyball/admission/{name}", Right.MONITORING)
    async def show_admission(call: Call) -> Response:
        """Return an admission control with its kinds of requests and its recent history."""
        name = call.part("name")
        answers = await call.context.domain_nodes.ask_all("admission", {"name": name})
        found = next((each for each in answers.values() if each is not None), None)
        if found is None:
            raise not_found(f"no admission control {name!r}")
        return answer(found)

    @routes.post("/flyball/admission/{name}", body=Body({"facts": "object"}))
    async def report_admission(call: Call) -> Response:
        """Report the state of admission control; the response has the mode requested by an operator."""
        name = name_in(call)
        report = validated(AdmissionReport, await call.document(MAX_REPORT_BYTES))
        mode = admissions.report(name, report, call.user.name, is_trusted=call.has(Right.ADMINISTRATOR))
        return answer({"mode": mode})

    return routes
