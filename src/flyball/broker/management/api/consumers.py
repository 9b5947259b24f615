"""Consumers, as RabbitMQ's API shows them."""

from __future__ import annotations

from operator import itemgetter

from starlette.responses import Response

from flyball.broker.management.api import gathering
from flyball.broker.management.api.context import Call, Routes

KEYS = {"consumer_tag": itemgetter("consumer_tag")}

routes = Routes()


@routes.get("/consumers", is_list=True)
@routes.get("/consumers/{vhost}", is_list=True)
async def list_consumers(call: Call) -> Response:
    """All consumers of queues that the user sees, or those of a virtual host."""
    return await call.many(await gathering.consumers(call, call.vhosts), dict, KEYS)
