"""Exchanges in RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api import domain_view, fields
from flyball.broker.management.api.answers import done
from flyball.broker.management.api.context import ApiContext, Body, Call, Routes
from flyball.broker.management.api.direct_client import CHANNEL, has_exchange, perform
from flyball.broker.management.api.statistics import detailed, rates_of
from flyball.broker.management.inspection import plain
from flyball.broker.wire import amqp
from flyball.errors import ExchangeNotFound
from flyball.model import Exchange

KEYS: dict[str, Callable[[Exchange], Any]] = {
    "name": lambda exchange: exchange.name,
    "vhost": lambda exchange: exchange.vhost,
    "type": lambda exchange: exchange.type,
}

OF_EXCHANGE = {"publish_in": "published"}

# Messages published to each exchange, by vhost and name.
Published = Mapping[tuple[str, str], int]


_BODY = Body(
    {
        "type": "string",
        "durable": "boolean",
        "auto_delete": "boolean",
        "internal": "boolean",
        "arguments": "object",
    },
)


routes = Routes()


@routes.get("/exchanges", is_list=True)
@routes.get("/exchanges/{vhost}", is_list=True)
async def list_exchanges(call: Call) -> Response:
    """List all visible exchanges, or those of a vhost."""
    topology = call.node.topology
    found = [
        exchange
        for vhost in call.vhosts
        for exchange in sorted(topology.router(vhost).exchanges, key=lambda exchange: exchange.name)
    ]
    published = await domain_view.published_by_exchange(call)
    return await call.many(found, lambda exchange: document(call.context, exchange, published), KEYS)


@routes.get("/exchanges/{vhost}/{exchange}")
async def show(call: Call) -> Response:
    """Return an exchange; `amq.default` stands for the default exchange."""
    exchange = call.node.topology.router(call.vhost).get(call.part("exchange"))
    return call.one(document(call.context, exchange, await domain_view.published_by_exchange(call)))


def document(context: ApiContext, exchange: Exchange, published: Published) -> dict[str, Any]:
    """Return an exchange as RabbitMQ's document."""
    found = declared(exchange)
    policy = context.node.hub.authority.policies.for_exchange(exchange.vhost, exchange.name)
    if policy is not None:
        found["policy"] = policy.name
    counts = {"published": published.get((exchange.vhost, exchange.name), 0)}
    rates = rates_of(context.sampler, "exchange", (exchange.vhost, exchange.name), counts, OF_EXCHANGE)
    found["message_stats"] = detailed(OF_EXCHANGE, counts, rates)
    return found


def declared(exchange: Exchange) -> dict[str, Any]:
    """Return the declaration of an exchange."""
    return {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
    }


# Changes


@routes.put("/exchanges/{vhost}/{exchange}", body=_BODY)
async def declare_exchange(call: Call) -> Response:
    """Declare an exchange, or check that it exists with these properties."""
    vhost, name = call.vhost, call.part("exchange")
    document = await call.document()
    method = declaration(name, document)
    is_new = not await has_exchange(call.node, vhost, name)
    await perform(call, vhost, method, amqp.ExchangeDeclareOk)
    return done(201 if is_new else 204)


@routes.delete("/exchanges/{vhost}/{exchange}", query={"if-unused": "true: only if it has no bindings"})
async def delete_exchange(call: Call) -> Response:
    """Delete an exchange and its bindings."""
    vhost, name = call.vhost, call.part("exchange")
    if not await has_exchange(call.node, vhost, name):
        raise ExchangeNotFound(name, vhost)
    if_unused = fields.flag(call.request.query_params, "if-unused", False)
    await perform(call, vhost, amqp.ExchangeDelete(CHANNEL, name, if_unused, False), amqp.ExchangeDeleteOk)
    return done()


def declaration(name: str, document: fields.Document) -> amqp.ExchangeDeclare:
    """Return the declaration in a document, with AMQP's defaults. Raises InvalidArgument."""
    return amqp.ExchangeDeclare(
        CHANNEL,
        name,
        fields.text(document, "type", "direct"),
        False,
        fields.flag(document, "durable", False),
        fields.flag(document, "auto_delete", False),
        fields.flag(document, "internal", False),
        False,
        fields.table(document, "arguments"),
    )
