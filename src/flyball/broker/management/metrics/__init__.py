"""Metrics for Prometheus: of the node as a whole, and of each of its queues, channels and connections.

They are of this node only: Prometheus scrapes every node of a domain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from flyball.broker.management.api.context import ITEM_BYTES, Call, Right, Routes
from flyball.broker.management.metrics import exporter
from flyball.broker.management.metrics.exposition import CONTENT_TYPE

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


routes = Routes("", "text/plain")

_QUERY = {
    "family": "A family of metrics, as queue_coarse_metrics; may be given several times.",
    "vhost": "Only queues of this virtual host; may be given several times.",
}


@routes.get("/metrics", Right.MONITORING)
async def aggregated(call: Call) -> Response:
    """Metrics of the node, for Prometheus."""
    text = "".join([part async for part in exporter.aggregated(call.context)])
    return Response(text, 200, HEADERS, CONTENT_TYPE)


@routes.get("/metrics/per-object", Right.MONITORING, is_long=True)
async def per_object(call: Call) -> Response:
    """Metrics of the node and of each queue, channel and connection, for Prometheus."""
    return _streamed(call, exporter.per_object(call.context))


@routes.get("/metrics/detailed", Right.MONITORING, is_long=True, query=_QUERY)
async def detailed(call: Call) -> Response:
    """Some families of metrics of each queue, channel and connection, for Prometheus."""
    query = call.request.query_params
    return _streamed(call, exporter.detailed(call.context, query.getlist("family"), query.getlist("vhost")))


def _streamed(call: Call, texts: AsyncIterator[str]) -> Response:
    async def encoded() -> AsyncIterator[bytes]:
        async for text in texts:
            # Names may hold octets that are no text: one of them must not cut off all that follows.
            yield text.encode("utf-8", "replace")

    response = StreamingResponse(encoded(), 200, HEADERS, CONTENT_TYPE)
    broker = call.node.hub.broker
    channels = broker.meters.channels_opened - broker.meters.channels_closed
    call.context.bodies.hold(response, ITEM_BYTES * (len(broker.engine.queues) + channels))
    return response
