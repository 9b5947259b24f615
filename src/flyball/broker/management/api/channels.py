"""Channels and consumers in RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import domain_view
from flyball.broker.management.api.answers import not_found
from flyball.broker.management.api.context import ApiContext, Call, Routes
from flyball.broker.management.api.statistics import OF_CHANNEL, Facts, detailed, rates_of

KEYS = {name: itemgetter(name) for name in ("name", "user", "vhost", "node", "number", "messages_unacknowledged")}

routes = Routes()


@routes.get("/channels", is_list=True)
async def list_all(call: Call) -> Response:
    """List the channels of all nodes; without the tag monitoring, the user's own."""
    return await listed(call, await domain_view.channels(call))


@routes.get("/vhosts/{vhost}/channels", is_list=True)
async def list_of_vhost(call: Call) -> Response:
    """List the channels in a vhost."""
    vhost = call.vhost
    return await listed(call, [facts for facts in await domain_view.channels(call) if facts["vhost"] == vhost])


@routes.get("/channels/{name}")
async def show(call: Call) -> Response:
    """Return a channel with its consumers."""
    name = call.part("name")
    for facts in await domain_view.channels(call):
        if facts["name"] == name:
            shown = document(call.context, facts)
            found = await domain_view.consumers(call, [facts["vhost"]]) if facts["consumer_count"] else []
            shown["consumer_details"] = [each for each in found if each["channel_details"]["name"] == name]
            return call.one(shown)
    raise not_found(f"no channel {name!r}")


@routes.get("/consumers", is_list=True)
@routes.get("/consumers/{vhost}", is_list=True)
async def list_consumers(call: Call) -> Response:
    """List the consumers of all visible queues, or those of a vhost."""
    found = await domain_view.consumers(call, call.vhosts)
    return await call.many(found, dict, {"consumer_tag": itemgetter("consumer_tag")})


async def listed(call: Call, found: Sequence[Facts]) -> Response:
    """Return a list of channels."""
    return await call.many(found, lambda facts: document(call.context, facts), KEYS)


def document(context: ApiContext, reported: Facts) -> dict[str, Any]:
    """Return a channel's document with rates."""
    counts = reported["message_stats"]
    rates = rates_of(context.sampler, "channel", (reported["node"], reported["name"]), counts, OF_CHANNEL)
    return {**reported, "message_stats": detailed(OF_CHANNEL, counts, rates)}
