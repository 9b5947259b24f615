"""Bindings in RabbitMQ's API. A properties_key identifies a binding among those between the same source and
destination.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from starlette.responses import Response

from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import done, json_text, mapped, not_found
from flyball.broker.management.api.context import Body, Call, Routes
from flyball.broker.management.api.direct_client import CHANNEL, DirectChannel, channel, find_queue, perform
from flyball.broker.management.inspection import plain
from flyball.broker.node.node import Node
from flyball.broker.wire import amqp
from flyball.errors import QueueNotFound
from flyball.model import Binding, Destination

KEYS: dict[str, Callable[[Binding], Any]] = {
    "source": lambda binding: binding.source,
    "vhost": lambda binding: binding.vhost,
    "destination": lambda binding: binding.destination,
    "routing_key": lambda binding: binding.routing_key,
}

# Paths of the bindings between a source and a destination.
TO_QUEUE = "/bindings/{vhost}/e/{source}/q/{queue}"
TO_EXCHANGE = "/bindings/{vhost}/e/{source}/e/{destination}"


_BODY = Body({"routing_key": "string", "arguments": "object"})


routes = Routes()


@routes.get("/bindings", is_list=True)
@routes.get("/bindings/{vhost}", is_list=True)
async def list_bindings(call: Call) -> Response:
    """List all visible bindings, or those of a vhost, including the default exchange's binding to every queue."""
    found: list[Binding] = []
    for vhost in call.vhosts:
        found += [*await _default(call.node, vhost), *call.node.topology.router(vhost).bindings()]
    return await listed(call, found)


@routes.get("/exchanges/{vhost}/{exchange}/bindings/source", is_list=True)
async def list_from_exchange(call: Call) -> Response:
    """List the bindings whose source is an exchange."""
    vhost, name = call.vhost, call.part("exchange")
    router = call.node.topology.router(vhost)
    router.get(name)
    found = router.bindings(source=name) if name else await _default(call.node, vhost)
    return await listed(call, found)


@routes.get("/exchanges/{vhost}/{exchange}/bindings/destination", is_list=True)
async def list_to_exchange(call: Call) -> Response:
    """List the bindings whose destination is an exchange."""
    router = call.node.topology.router(call.vhost)
    name = router.get(call.part("exchange")).name
    return await listed(call, router.bindings(destination=name, kind=Destination.EXCHANGE))


@routes.get(TO_QUEUE, is_list=True)
@routes.get(TO_EXCHANGE, is_list=True)
async def list_between(call: Call) -> Response:
    """List the bindings between a source and a destination."""
    return await listed(call, between(call))


@routes.get(TO_QUEUE + "/{props}")
@routes.get(TO_EXCHANGE + "/{props}")
async def show(call: Call) -> Response:
    """Return a binding by source, destination and properties_key."""
    return call.one(document(find(call)))


async def listed(call: Call, found: Sequence[Binding]) -> Response:
    """Return a list of bindings."""
    return await call.many(found, document, KEYS)


def find(call: Call) -> Binding:
    """Return the binding named by source, destination and props in the path. Raises the errors of `between`."""
    key = call.part("props")
    for binding in between(call):
        own = properties_key(binding)
        # Some clients put the key into the path as returned, without encoding its percent signs again.
        if key in (own, unquote_plus(own)):
            return binding
    raise not_found(f"no binding with properties_key {key!r} between these two: list their bindings to see the keys")


def between(call: Call) -> list[Binding]:
    """Return the bindings between source and destination in the path. Raises QueueNotFound, ExchangeNotFound ..."""
    vhost, source = call.vhost, call.part("source")
    router = call.node.topology.router(vhost)
    router.get(source)
    name, kind = destination(call)
    if kind is Destination.EXCHANGE:
        router.get(name)
    else:
        if find_queue(call.node, vhost, name) is None:
            raise QueueNotFound(name, vhost)
        if not source:
            return [_to_queue(vhost, name)]
    return router.bindings(source=source, destination=name, kind=kind)


def destination(call: Call) -> tuple[str, Destination]:
    """Return name and kind of the destination in the path."""
    if "queue" in call.request.path_params:
        return call.part("queue"), Destination.QUEUE
    return call.part("destination"), Destination.EXCHANGE


def to_queue(call: Call, vhost: str, name: str) -> list[Binding]:
    """Return the bindings whose destination is a queue."""
    return [_to_queue(vhost, name), *call.node.topology.router(vhost).bindings(destination=name)]


async def _default(node: Node, vhost: str) -> list[Binding]:
    """Return the default exchange's bindings to every queue."""
    queues = [state.queue for state in node.hub.broker.engine.queues] + node.hub.directory.queues
    names = dict.fromkeys(queue.name for queue in queues if queue.vhost == vhost)
    return await mapped(list(names), lambda name: _to_queue(vhost, name))


def _to_queue(vhost: str, name: str) -> Binding:
    return Binding("", name, Destination.QUEUE, name, {}, vhost)


def document(binding: Binding) -> dict[str, Any]:
    """Return a binding as RabbitMQ's document."""
    return {**declared(binding), "properties_key": properties_key(binding)}


def declared(binding: Binding) -> dict[str, Any]:
    """Return the declaration of a binding."""
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": str(binding.kind),
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
    }


def properties_key(binding: Binding) -> str:
    """Return the properties_key: routing key and a hash of the arguments."""
    key = _quoted(binding.routing_key)
    if not binding.arguments:
        return key or "~"
    digest = hashlib.blake2b(json_text(sorted(plain(binding.arguments).items())).encode(), digest_size=12)
    return f"{key}~{digest.hexdigest()}"


def _quoted(text: str) -> str:
    return quote_plus(text, safe="").replace("~", "%7E")


# Changes


@routes.post(TO_QUEUE, body=_BODY)
@routes.post(TO_EXCHANGE, body=_BODY)
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
    # Relative to the posted URL, as in RabbitMQ.
    response.headers["location"] = f"{quote(name, safe='')}/{quote(properties_key(binding), safe='')}"
    return response


@routes.delete(TO_QUEUE + "/{props}")
@routes.delete(TO_EXCHANGE + "/{props}")
async def remove_binding(call: Call) -> Response:
    """Delete a binding."""
    await call.node.hub.peering.catch_up()
    binding = find(call)
    ends = CHANNEL, binding.destination, binding.source, binding.routing_key
    arguments = dict(binding.arguments)
    if binding.kind is Destination.QUEUE:
        await perform(call, binding.vhost, amqp.QueueUnbind(*ends, arguments), amqp.QueueUnbindOk)
    else:
        await perform(call, binding.vhost, amqp.ExchangeUnbind(*ends, False, arguments), amqp.ExchangeUnbindOk)
    return done()


async def bind(inside: DirectChannel, binding: Binding) -> None:
    """Create a binding. Raises the broker's error, and InvalidArgument for values that AMQP cannot encode."""
    ends = CHANNEL, binding.destination, binding.source, binding.routing_key
    arguments = dict(binding.arguments)
    if binding.kind is Destination.QUEUE:
        await inside.call(amqp.QueueBind(*ends, False, arguments), amqp.QueueBindOk)
    else:
        await inside.call(amqp.ExchangeBind(*ends, False, arguments), amqp.ExchangeBindOk)
