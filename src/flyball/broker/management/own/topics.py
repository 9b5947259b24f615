"""Topics: created, moved and deleted, and who has subscribed to them.

A topic is a topic exchange and a subscription a queue, so permissions apply to those names.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from flyball.broker.core.topics import Topic
from flyball.broker.engine.access import Action
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import answer, done
from flyball.broker.management.api.context import ApiContext, ApiRoute, Body, Call

_BODY = Body({"parent": "string"})


def routes(context: ApiContext) -> list[ApiRoute]:
    topic = "/flyball/topics/{vhost}/{name}"
    return [
        context.get("/flyball/topics", list_topics, is_list=True),
        context.get("/flyball/topics/{vhost}", list_topics_of_vhost, is_list=True),
        context.get(topic, show_topic),
        context.put(topic, create_topic, body=_BODY),
        context.delete(topic, delete_topic),
        context.put(topic + "/parent", move_topic, body=_BODY),
        context.get(topic + "/subscriptions", list_subscriptions),
        context.delete(topic + "/subscriptions/{subscription}", end_subscription),
    ]


async def list_topics(call: Call) -> Response:
    """List the topics of all virtual hosts that the user sees."""
    return await _listed(call, call.visible_vhosts())


async def list_topics_of_vhost(call: Call) -> Response:
    """List the topics of a virtual host."""
    return await _listed(call, [call.vhost])


async def show_topic(call: Call) -> Response:
    """Show a topic."""
    return call.one(_document(call.node.hub.topics.get(call.part("name"), call.vhost)))


async def create_topic(call: Call) -> Response:
    """Create a topic, below a parent if one is given; it may be there already with the same parent."""
    vhost, name, topics = call.vhost, call.part("name"), call.node.hub.topics
    parent = _parent(await call.document())
    _check(call, vhost, name, parent)
    is_new = name not in [topic.name for topic in topics.all(vhost)]
    await topics.create(name, parent, vhost)
    await call.followed()
    return done(201 if is_new else 204)


async def move_topic(call: Call) -> Response:
    """Give a topic another parent, or none."""
    vhost, name = call.vhost, call.part("name")
    parent = _parent(await call.document())
    _check(call, vhost, name, parent)
    await call.node.hub.topics.set_parent(name, parent, vhost)
    await call.followed()
    return done()


async def delete_topic(call: Call) -> Response:
    """Delete a topic that has neither children nor durable subscriptions."""
    vhost, name = call.vhost, call.part("name")
    _check(call, vhost, name)
    await call.node.hub.topics.delete(name, vhost)
    await call.followed()
    return done()


async def list_subscriptions(call: Call) -> Response:
    """List the queues that get what is published to a topic, durable subscriptions by their names."""
    return answer(await call.node.hub.topics.list_subscriptions(call.part("name"), call.vhost))


async def end_subscription(call: Call) -> Response:
    """End a durable subscription that nobody consumes, with the messages that wait for it."""
    vhost, name, subscription = call.vhost, call.part("name"), call.part("subscription")
    call.check(vhost, Action.CONFIGURE, f"{name}/{subscription}", f"subscription '{subscription}' of topic '{name}'")
    await call.node.hub.topics.unsubscribe(name, subscription, vhost)
    await call.followed()
    return done()


def _parent(document: fields.Document) -> str | None:
    return None if document.get("parent") is None else fields.text(document, "parent")


def _check(call: Call, vhost: str, name: str, parent: str | None = None) -> None:
    """Raise NotPermitted unless the user may have a topic of that name, which sends to its parent."""
    call.check(vhost, Action.CONFIGURE, name, f"topic '{name}'")
    if parent is not None:
        call.check(vhost, Action.WRITE, parent, f"topic '{parent}'")


async def _listed(call: Call, vhosts: list[str]) -> Response:
    found = [topic for vhost in vhosts for topic in call.node.hub.topics.all(vhost)]
    return await call.many(found, _document, {"name": lambda topic: topic.name})


def _document(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "vhost": topic.vhost, "parent": topic.parent}
