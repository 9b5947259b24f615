"""The state of the node that is asked."""

from __future__ import annotations

from starlette.responses import Response

from flyball.broker.management.api.answers import answer
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.management.status import status_of

routes = Routes()


@routes.get("/flyball/status", Right.MONITORING)
async def show_status(call: Call) -> Response:
    """The state of this node: version, memory, store, flow control, background tasks, its queues."""
    return answer(status_of(call.node.hub))
