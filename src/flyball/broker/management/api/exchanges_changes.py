"""Exchanges declared and deleted. What there are is told in `exchanges`."""

from __future__ import annotations

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import done
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call
from flyball.broker.management.api.inside import CHANNEL, channel, has_exchange
from flyball.broker.wire import amqp
from flyball.errors import ExchangeNotFound

_BODY = Body(
    {
        "type": "string",
        "durable": "boolean",
        "auto_delete": "boolean",
        "internal": "boolean",
        "arguments": "object",
    },
)


def routes(context: ApiContext) -> list[ApiRoute]:
    return [
        context.put("/exchanges/{vhost}/{exchange}", declare_exchange, body=_BODY),
        context.delete(
            "/exchanges/{vhost}/{exchange}",
            delete_exchange,
            query={"if-unused": "true: only if nothing is bound to it"},
        ),
    ]


async def declare_exchange(call: Call) -> Response:
    """Declare an exchange, or see that it is as declared."""
    vhost, name = call.vhost, call.part("exchange")
    document = await call.document()
    method = declaration(name, document)
    is_new = not await has_exchange(call.node, vhost, name)
    async with channel(call, vhost) as inside:
        await inside.call(method, amqp.ExchangeDeclareOk)
    return done(201 if is_new else 204)


async def delete_exchange(call: Call) -> Response:
    """Delete an exchange and its bindings."""
    vhost, name = call.vhost, call.part("exchange")
    if not await has_exchange(call.node, vhost, name):
        raise ExchangeNotFound(name, vhost)
    if_unused = fields.flag(call.request.query_params, "if-unused", False)
    async with channel(call, vhost) as inside:
        await inside.call(amqp.ExchangeDelete(CHANNEL, name, if_unused, False), amqp.ExchangeDeleteOk)
    return done()


def declaration(name: str, document: fields.Document) -> amqp.ExchangeDeclare:
    """Return the declaration that a document makes; what it does not say is as in AMQP. Raises InvalidArgument."""
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
