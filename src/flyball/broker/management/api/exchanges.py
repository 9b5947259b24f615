"""Exchanges, as RabbitMQ's API shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import gathering
from flyball.broker.management.api.context import ApiContext, ApiRoute, Call
from flyball.broker.management.api.statistics import detailed, rates_of
from flyball.broker.management.inspection import plain
from flyball.model import Exchange

KEYS: dict[str, Callable[[Exchange], Any]] = {
    "name": lambda exchange: exchange.name,
    "vhost": lambda exchange: exchange.vhost,
    "type": lambda exchange: exchange.type,
}

OF_EXCHANGE = {"publish_in": "published"}

Published = Mapping[tuple[str, str], int]
"""How many messages came to each exchange, by virtual host and name."""


def routes(context: ApiContext) -> list[ApiRoute]:
    return [
        context.get("/exchanges", list_all, is_list=True),
        context.get("/exchanges/{vhost}", list_of_vhost, is_list=True),
        context.get("/exchanges/{vhost}/{exchange}", show),
    ]


async def list_all(call: Call) -> Response:
    """All exchanges that the user sees."""
    return await _listed(call, call.visible_vhosts())


async def list_of_vhost(call: Call) -> Response:
    """The exchanges of a virtual host."""
    return await _listed(call, [call.vhost])


async def show(call: Call) -> Response:
    """An exchange; `amq.default` stands for the one without a name."""
    exchange = call.node.topology.router(call.vhost).get(call.part("exchange"))
    return call.one(document(call.context, exchange, await gathering.published_by_exchange(call)))


async def _listed(call: Call, vhosts: list[str]) -> Response:
    topology = call.node.topology
    found = [
        exchange
        for vhost in vhosts
        for exchange in sorted(topology.router(vhost).exchanges, key=lambda exchange: exchange.name)
    ]
    published = await gathering.published_by_exchange(call)
    return await call.many(found, lambda exchange: document(call.context, exchange, published), KEYS)


def document(context: ApiContext, exchange: Exchange, published: Published) -> dict[str, Any]:
    """Return an exchange as RabbitMQ tells it."""
    found = {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
    }
    policy = context.node.hub.authority.policies.for_exchange(exchange.vhost, exchange.name)
    if policy is not None:
        found["policy"] = policy.name
    counts = {"published": published.get((exchange.vhost, exchange.name), 0)}
    rates = rates_of(context.sampler, "exchange", (exchange.vhost, exchange.name), counts, OF_EXCHANGE)
    found["message_stats"] = detailed(OF_EXCHANGE, counts, rates)
    return found
