"""Topics: created, moved and deleted, with their subscriptions.

A topic is a topic exchange and a subscription a queue, so permissions apply to these names.
"""

from __future__ import annotations

from dataclasses import asdict
from operator import attrgetter

from starlette.responses import Response

from flyball.broker.engine.access import Action
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import stream
from flyball.broker.management.api.context import Body, Call, Routes

# Memory of a subscription in a list until it is sent.
SUBSCRIPTION_BYTES = 500

_BODY = Body({"parent": "string"})


_TOPIC = "/flyball/topics/{vhost}/{name}"

routes = Routes()


@routes.get("/flyball/topics", is_list=True)
@routes.get("/flyball/topics/{vhost}", is_list=True)
async def list_topics(call: Call) -> Response:
    """List the topics of all visible vhosts, or of one."""
    found = [topic for vhost in call.vhosts for topic in call.node.hub.topics.all(vhost)]
    return await call.many(found, asdict, {"name": attrgetter("name")})


@routes.get(_TOPIC)
async def show_topic(call: Call) -> Response:
    """Return a topic."""
    return call.one(asdict(call.node.hub.topics.get(call.part("name"), call.vhost)))


@routes.put(_TOPIC, body=_BODY)
async def create_topic(call: Call) -> Response:
    """Create a topic, optionally below a parent; an existing one with the same parent is unchanged."""
    vhost, name, topics = call.vhost, call.part("name"), call.node.hub.topics
    parent = _parent(await call.document())
    _check(call, vhost, name, parent)
    is_new = name not in [topic.name for topic in topics.all(vhost)]
    await topics.create(name, parent, vhost)
    return await call.changed(is_new=is_new)


@routes.put(_TOPIC + "/parent", body=_BODY)
async def move_topic(call: Call) -> Response:
    """Move a topic below another parent, or to the top."""
    vhost, name = call.vhost, call.part("name")
    parent = _parent(await call.document())
    topics = call.node.hub.topics
    _check(call, vhost, name, parent, topics.get(name, vhost).parent)
    await topics.set_parent(name, parent, vhost)
    return await call.changed()


@routes.delete(_TOPIC)
async def delete_topic(call: Call) -> Response:
    """Delete a topic without children and durable subscriptions."""
    vhost, name = call.vhost, call.part("name")
    _check(call, vhost, name)
    await call.node.hub.topics.delete(name, vhost)
    return await call.changed()


@routes.get(_TOPIC + "/subscriptions", is_long=True)
async def list_subscriptions(call: Call) -> Response:
    """List the queues subscribed to a topic, durable subscriptions by name."""
    found = await call.node.hub.topics.list_subscriptions(call.part("name"), call.vhost)
    response = stream(found, dict)
    call.context.bodies.hold(response, len(found) * SUBSCRIPTION_BYTES)
    return response


@routes.delete(_TOPIC + "/subscriptions/{subscription}")
async def end_subscription(call: Call) -> Response:
    """Delete a durable subscription without consumers, with its messages."""
    vhost, name, subscription = call.vhost, call.part("name"), call.part("subscription")
    call.check(vhost, Action.CONFIGURE, f"{name}/{subscription}", f"subscription '{subscription}' of topic '{name}'")
    await call.node.hub.topics.unsubscribe(name, subscription, vhost)
    return await call.changed()


def _parent(document: fields.Document) -> str | None:
    return None if document.get("parent") is None else fields.text(document, "parent")


def _check(call: Call, vhost: str, name: str, *parents: str | None) -> None:
    """Raise NotPermitted unless the user may configure the topic, and bind or unbind it to these parents."""
    call.check(vhost, Action.CONFIGURE, name, f"topic '{name}'")
    for parent in parents:
        if parent is not None:
            # As AMQP checks a binding: otherwise a user without read access could read the topic through a parent.
            call.check(vhost, Action.READ, name, f"topic '{name}'")
            call.check(vhost, Action.WRITE, parent, f"topic '{parent}'")
