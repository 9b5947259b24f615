"""The control loops of all nodes and of those who report to them: seen, switched, and told of."""

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
    """Raises LoopNotFound, NotSwitchable."""
    loop = context.node.hub.loops.get(name)
    loop.switch(mode)
    return loop.document(context.name, time.time())


@routes.get("/flyball/loops", Right.MONITORING)
async def list_loops(call: Call) -> Response:
    """The control loops of all nodes and of those who report to them."""
    found = await call.context.domain_nodes.list_all("loops")
    return stream(sorted(found, key=lambda loop: str(loop["name"])), lambda loop: loop)


@routes.get("/flyball/loops/{name}", Right.MONITORING)
async def show_loop(call: Call) -> Response:
    """A control loop with its last samples."""
    return answer(await _find(call))


@routes.put("/flyball/loops/{name}/mode", Right.ADMINISTRATOR, Body({"mode": "string"}, ("mode",)))
async def switch_loop(call: Call) -> Response:
    """Let a loop act, or only compute."""
    mode = (await call.document()).get("mode")
    if mode not in (SHADOW, ACTIVE):
        raise InvalidArgument(f"the mode of a loop is {SHADOW!r} or {ACTIVE!r}, not {mode!r}")
    found = await _find(call)
    wanted = {"name": found["name"], "mode": mode}
    return answer(await call.context.domain_nodes.ask_node(found["node"], "switch_loop", wanted))


@routes.post(
    "/flyball/loops/{name}/samples",
    Right.MANAGEMENT,
    Body({"facts": "object", "is_shadow": "boolean", "refusal": "string", "samples": "array"}),
)
async def report_loop(call: Call) -> Response:
    """Tell of a loop that runs elsewhere; the answer says in which mode somebody wants it."""
    name = name_in(call)
    report = validated(LoopReport, await call.document(MAX_REPORT_BYTES))
    is_trusted = call.has(Right.ADMINISTRATOR)
    loops = call.node.hub.loops
    loop = loops.report(name, report, call.user.name, time.time(), is_trusted=is_trusted)
    return answer({"mode": None if loop is None else loop.wanted_mode, "needs_facts": loop is None})


async def _find(call: Call) -> dict[str, Any]:
    """Return the loop that is asked for with its samples, wherever it is known. Raises LoopNotFound."""
    name = call.part("name")
    answers = await call.context.domain_nodes.ask_all("loop", {"name": name})
    found: list[dict[str, Any]] = [loop for loop in answers.values() if loop is not None]
    if not found:
        raise LoopNotFound(name)
    # Somebody may have reported to one node first and then to another.
    return max(found, key=lambda loop: loop["reported_at"] or 0.0)


def name_in(call: Call) -> str:
    """Return the name in the path of what somebody tells about. Raises InvalidArgument."""
    name = call.part("name")
    if not (1 <= len(name) <= MAX_LOOP_NAME and name.isprintable()):
        raise InvalidArgument(f"a name has 1 to {MAX_LOOP_NAME} characters that can be printed")
    return name


def validated(kind: type[ReportBody], document: dict[str, Any]) -> ReportBody:
    """Return what somebody tells. Raises InvalidArgument, which names the first thing that is wrong."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(f"{place or 'the document'}: {first['msg']}") from None
