"""Control loops of all nodes and of clients that report theirs: listed, switched, reported."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from flyball.broker.core.loops import ACTIVE, SHADOW, LoopReport, Mode
from flyball.broker.management.api.answers import answer, mapped, stream
from flyball.broker.management.api.context import ApiContext, Body, Call, Right, Routes
from flyball.errors import InvalidArgument, LoopNotFound

MAX_LOOP_NAME = 500
MAX_REPORT_BYTES = 128 * 1024

ReportBody = TypeVar("ReportBody", bound=BaseModel)


routes = Routes()


@routes.peer("loops")
async def list_here(context: ApiContext) -> list[dict[str, Any]]:
    now = time.time()
    return await mapped(context.node.hub.loops.all(), lambda loop: loop.document(context.name, now))


@routes.peer("loop")
async def show_here(context: ApiContext, name: str) -> dict[str, Any] | None:
    loop = context.node.hub.loops.find(name)
    return None if loop is None else loop.document(context.name, time.time(), with_samples=True)


@routes.peer("switch_loop")
async def switch_here(context: ApiContext, name: str, mode: Mode) -> dict[str, Any]:
    """Switch a loop of this node, and return its document. Raises LoopNotFound, NotSwitchable."""
    loop = context.node.hub.loops.get(name)
    loop.switch(mode)
    return loop.document(context.name, time.time())


@routes.get("/flyball/loops", Right.MONITORING)
async def list_loops(call: Call) -> Response:
    """List the control loops of all nodes and of clients that report to them."""
    found = await call.context.domain_nodes.list_all("loops")
    return stream(sorted(found, key=lambda loop: str(loop["name"])), lambda loop: loop)


@routes.get("/flyball/loops/{name}", Right.MONITORING)
async def show_loop(call: Call) -> Response:
    """Return a control loop with its recent samples."""
    return answer(await _find(call))


@routes.put("/flyball/loops/{name}/mode", Right.ADMINISTRATOR, Body({"mode": "string"}, ("mode",)))
async def switch_loop(call: Call) -> Response:
    """Switch a loop between active and shadow mode."""
    mode = (await call.document()).get("mode")
    if mode not in (SHADOW, ACTIVE):
        raise InvalidArgument(f"unknown loop mode {mode!r}: use {SHADOW!r} or {ACTIVE!r}")
    found = await _find(call)
    wanted = {"name": found["name"], "mode": mode}
    return answer(await call.context.domain_nodes.ask_node(found["node"], "switch_loop", wanted))


@routes.post(
    "/flyball/loops/{name}/samples",
    Right.MANAGEMENT,
    Body({"facts": "object", "is_shadow": "boolean", "refusal": "string", "samples": "array"}),
)
async def report_loop(call: Call) -> Response:
    """Report a loop that runs elsewhere; the response has the mode requested by an operator."""
    name = name_in(call)
    report = validated(LoopReport, await call.document(MAX_REPORT_BYTES))
    is_trusted = call.has(Right.ADMINISTRATOR)
    loops = call.node.hub.loops
    loop = loops.report(name, report, call.user.name, time.time(), is_trusted=is_trusted)
    return answer({"mode": None if loop is None else loop.wanted_mode, "needs_facts": loop is None})


async def _find(call: Call) -> dict[str, Any]:
    """Return the requested loop with its samples, from any node. Raises LoopNotFound."""
    name = call.part("name")
    answers = await call.context.domain_nodes.ask_all("loop", {"name": name})
    found: list[dict[str, Any]] = [loop for loop in answers.values() if loop is not None]
    if not found:
        raise LoopNotFound(name)
    # A client may have reported to one node first and then to another.
    return max(found, key=lambda loop: loop["reported_at"] or 0.0)


def name_in(call: Call) -> str:
    """Return the name in the path. Raises InvalidArgument."""
    name = call.part("name")
    if not (1 <= len(name) <= MAX_LOOP_NAME and name.isprintable()):
        raise InvalidArgument(f"invalid name: use 1 to {MAX_LOOP_NAME} printable characters")
    return name


def validated(kind: type[ReportBody], document: dict[str, Any]) -> ReportBody:
    """Return the validated report. Raises InvalidArgument that names the first problem."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(f"{place or 'the document'}: {first['msg']}") from None
