"""Bindings made and removed. What there are is told in `bindings`."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import done
from flyball.broker.management.api.bindings import TO_EXCHANGE, TO_QUEUE, destination, find, properties_key
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call
from flyball.broker.management.api.inside import CHANNEL, DirectChannel, channel
from flyball.broker.wire import amqp
from flyball.model import Binding, Destination

_BODY = Body({"routing_key": "string", "arguments": "object"})


def routes(context: ApiContext) -> list[ApiRoute]:
    return [
        route
        for ends in (TO_QUEUE, TO_EXCHANGE)
        for route in (context.post(ends, make_binding, body=_BODY), context.delete(ends + "/{props}", remove_binding))
    ]


async def make_binding(call: Call) -> Response:
    """Bind a queue or an exchange to an exchange."""
    vhost = call.vhost
    document = await call.document()
    name, kind = destination(call)
    key, arguments = fields.text(document, "routing_key", ""), fields.table(document, "arguments")
    binding = Binding(call.part("source"), name, kind, key, arguments, vhost)
    async with channel(call, vhost) as inside:
        await bind(inside, binding)
    response = done(201)
    # The place relative to where it was posted, as RabbitMQ tells it.
    response.headers["location"] = f"{quote(name, safe='')}/{quote(properties_key(binding), safe='')}"
    return response


async def remove_binding(call: Call) -> Response:
    """Remove a binding."""
    await call.node.hub.company.catch_up()
    binding = find(call)
    async with channel(call, binding.vhost) as inside:
        await unbind(inside, binding)
    return done()


async def bind(inside: DirectChannel, binding: Binding) -> None:
    """Make a binding. Raises what AMQP refuses it with, and InvalidArgument for what AMQP cannot say."""
    ends = binding.destination, binding.source, binding.routing_key
    arguments = dict(binding.arguments)
    if binding.kind is Destination.QUEUE:
        await inside.call(amqp.QueueBind(CHANNEL, *ends, False, arguments), amqp.QueueBindOk)
    else:
        await inside.call(amqp.ExchangeBind(CHANNEL, *ends, False, arguments), amqp.ExchangeBindOk)


async def unbind(inside: DirectChannel, binding: Binding) -> None:
    """Remove a binding."""
    ends = binding.destination, binding.source, binding.routing_key
    arguments = dict(binding.arguments)
    if binding.kind is Destination.QUEUE:
        await inside.call(amqp.QueueUnbind(CHANNEL, *ends, arguments), amqp.QueueUnbindOk)
    else:
        await inside.call(amqp.ExchangeUnbind(CHANNEL, *ends, False, arguments), amqp.ExchangeUnbindOk)
