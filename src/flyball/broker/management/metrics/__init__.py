"""Prometheus metrics of this node, aggregated or per queue, channel and connection.

They cover this node only: Prometheus scrapes every node of a domain.
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
    "family": "Metric family, such as queue_coarse_metrics; repeatable.",
    "vhost": "Only queues of this vhost; repeatable.",
}


@routes.get("/metrics", Right.MONITORING)
async def aggregated(call: Call) -> Response:
    """Return the aggregated Prometheus metrics of the node."""
    text = "".join([part async for part in exporter.aggregated(call.context)])
    return Response(text, 200, HEADERS, CONTENT_TYPE)


@routes.get("/metrics/per-object", Right.MONITORING, is_long=True)
async def per_object(call: Call) -> Response:
    """Return the Prometheus metrics of the node and of each queue, channel and connection."""
    return _streamed(call, exporter.per_object(call.context))


@routes.get("/metrics/detailed", Right.MONITORING, is_long=True, query=_QUERY)
async def detailed(call: Call) -> Response:
    """Return selected families of per-object Prometheus metrics."""
    query = call.request.query_params
    return _streamed(call, exporter.detailed(call.context, query.getlist("family"), query.getlist("vhost")))


def _streamed(call: Call, texts: AsyncIterator[str]) -> Response:
    async def encoded() -> AsyncIterator[bytes]:
        async for text in texts:
            # Names may contain bytes that are not UTF-8: replace them instead of breaking the response.
            yield text.encode("utf-8", "replace")

    response = StreamingResponse(encoded(), 200, HEADERS, CONTENT_TYPE)
    broker = call.node.hub.broker
    channels = broker.meters.channels_opened - broker.meters.channels_closed
    call.context.bodies.hold(response, ITEM_BYTES * (len(broker.engine.queues) + channels))
    return response
