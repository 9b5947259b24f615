"""Consumers, as RabbitMQ's API shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import gathering
from flyball.broker.management.api.answers import mapped
from flyball.broker.management.api.context import Call, Routes
from flyball.broker.management.api.statistics import Facts

KEYS: dict[str, Callable[[Facts], Any]] = {
    "consumer_tag": lambda facts: facts["tag"],
}


routes = Routes()


@routes.get("/consumers", is_list=True)
@routes.get("/consumers/{vhost}", is_list=True)
async def list_consumers(call: Call) -> Response:
    """All consumers of queues that the user sees, or those of a virtual host."""
    return await call.many(await gathering.consumers(call, call.vhosts), document, KEYS)


async def of_queue(call: Call, queue: Facts) -> list[Any]:
    """Return the documents of a queue's consumers."""
    if not queue.get("consumers"):
        return []
    return await mapped(await gathering.consumers_of_queue(call, queue["vhost"], queue["name"]), document)


async def of_channel(call: Call, channel: Facts) -> list[Any]:
    """Return the documents of a channel's consumers."""
    if not channel["consumers"]:
        return []
    found = await gathering.consumers(call, [channel["vhost"]])
    return await mapped([facts for facts in found if facts["channel"] == channel["name"]], document)


def document(facts: Facts) -> dict[str, Any]:
    """Return a consumer as RabbitMQ tells it."""
    return {
        "consumer_tag": facts["tag"],
        "queue": {"name": facts["queue"], "vhost": facts["queue_vhost"]},
        "ack_required": facts["ack_required"],
        "exclusive": facts["exclusive"],
        "prefetch_count": facts["prefetch"],
        "arguments": facts["arguments"],
        "active": facts["active"],
        "activity_status": "up" if facts["active"] else "waiting",
        "channel_details": {
            "name": facts["channel"],
            "number": facts["channel_number"],
            "node": facts["node"],
            "user": facts["user"],
            "connection_name": facts["connection"],
            "peer_host": facts["peer_host"],
            "peer_port": facts["peer_port"],
        },
    }
