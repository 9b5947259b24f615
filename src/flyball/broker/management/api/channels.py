"""Channels, as RabbitMQ's API shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import consumers, gathering
from flyball.broker.management.api.answers import not_found
from flyball.broker.management.api.context import ApiContext, Call, Routes
from flyball.broker.management.api.statistics import OF_CHANNEL, Facts, message_stats, rates_of

KEYS: dict[str, Callable[[Facts], Any]] = {
    "name": lambda facts: facts["name"],
    "user": lambda facts: facts["user"],
    "vhost": lambda facts: facts["vhost"],
    "node": lambda facts: facts["node"],
    "number": lambda facts: facts["number"],
    "messages_unacknowledged": lambda facts: facts["unacked"],
}


routes = Routes()


@routes.get("/channels", is_list=True)
async def list_all(call: Call) -> Response:
    """All channels of all nodes; without the tag monitoring, the user's own."""
    return await listed(call, await gathering.channels(call))


@routes.get("/vhosts/{vhost}/channels", is_list=True)
async def list_of_vhost(call: Call) -> Response:
    """The channels in a virtual host."""
    vhost = call.vhost
    return await listed(call, [facts for facts in await gathering.channels(call) if facts["vhost"] == vhost])


@routes.get("/channels/{name}")
async def show(call: Call) -> Response:
    """A channel, with its consumers."""
    name = call.part("name")
    for facts in await gathering.channels(call):
        if facts["name"] == name:
            shown = document(call.context, facts)
            shown["consumer_details"] = await consumers.of_channel(call, facts)
            return call.one(shown)
    raise not_found(f"no channel {name!r}")


async def listed(call: Call, found: Sequence[Facts]) -> Response:
    """Answer with a list of channels."""
    return await call.many(found, lambda facts: document(call.context, facts), KEYS)


def document(context: ApiContext, facts: Facts) -> dict[str, Any]:
    """Return a channel as RabbitMQ tells it."""
    rates = rates_of(context.sampler, "channel", (facts["node"], facts["name"]), facts, OF_CHANNEL)
    return {
        "name": facts["name"],
        "number": facts["number"],
        "node": facts["node"],
        "user": facts["user"],
        "user_who_performed_action": facts["user"],
        "vhost": facts["vhost"],
        "state": facts["state"],
        "connection_details": {
            "name": facts["connection"],
            "peer_host": facts["peer_host"],
            "peer_port": facts["peer_port"],
        },
        "confirm": facts["confirms"],
        "transactional": facts["transactional"],
        "prefetch_count": facts["prefetch"],
        "global_prefetch_count": facts["shared_prefetch"],
        "consumer_count": facts["consumers"],
        "messages_unacknowledged": facts["unacked"],
        "messages_unconfirmed": facts["unconfirmed"],
        "messages_uncommitted": facts["uncommitted"],
        "acks_uncommitted": facts["uncommitted_acks"],
        "message_stats": message_stats(OF_CHANNEL, facts, rates),
    }
