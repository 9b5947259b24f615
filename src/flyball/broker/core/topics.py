"""Topics: a message published to a topic reaches the subscribers of the topic and of its ancestors.

A topic is a topic exchange of the same name, its parent an exchange that it is bound to, and a subscription a queue,
so AMQP clients can use all of them. Independent of protocols.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from flyball.broker.core.definitions import Definitions
from flyball.broker.core.pending import outcome, result
from flyball.broker.core.queues import Queues
from flyball.broker.engine.patterns import check_name
from flyball.broker.engine.routing import RESERVED_PREFIX
from flyball.errors import (
    FlyballError,
    InvalidArgument,
    InvalidName,
    QueueNotFound,
    ReservedName,
    TopicInUse,
    TopicNotFound,
)
from flyball.model import DEFAULT_VHOST, Binding, Definition, Destination, Exchange, Queue

# Subscriptions listed per turn of the event loop, and names of queues sorted per turn.
SLICE = 250
NAMES_SLICE = 5000

# Maximum number of durable subscriptions named in the error of a topic that cannot be deleted.
MAX_NAMED = 10

# The kind of a topic's definition.
KIND = "topic"

# Timeout of requests to other nodes for the counts of subscriptions' queues.
COUNT_LIMIT_S = 3.0

# The pattern that matches every routing key.
ALL = "#"

_EXCHANGE_TYPE = "topic"
# Maximum length of the name of an exchange and of a routing key in AMQP.
_MAX_BYTES = 255


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic and its place in the hierarchy."""

    name: str
    vhost: str = DEFAULT_VHOST
    # The topic whose subscribers receive the messages as well.
    parent: str | None = None


class Topics:
    """The topics of all virtual hosts. A change is durable when its method returns."""

    def __init__(self, queues: Queues, definitions: Definitions) -> None:
        self.queues = queues
        topology = self._topology = queues.topology
        self._definitions = definitions
        self._kept = definitions.of(KIND)
        topology.exchange_deleted.subscribe(self._exchange_deleted)

    # Listings

    def all(self, vhost: str | None = None) -> list[Topic]:
        """Return the topics of all virtual hosts, or of one, sorted by name."""
        topics = [_topic_of(value) for value in self._kept.values()]
        found = [topic for topic in topics if vhost in (None, topic.vhost)]
        return sorted(found, key=lambda topic: (topic.vhost, topic.name))

    def get(self, name: str, vhost: str = DEFAULT_VHOST) -> Topic:
        """Return a topic. Raises TopicNotFound."""
        topic = self._find(name, vhost)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def _find(self, name: str, vhost: str) -> Topic | None:
        value = self._kept.get(_key(vhost, name))
        return None if value is None else _topic_of(value)

    def subscriptions(self, name: str, vhost: str = DEFAULT_VHOST) -> list[dict[str, Any]]:
        """Return the queues bound to the topic itself, including those bound by AMQP clients.

        The counts of remote queues are None.
        """
        return list(map(self._subscription, self._bindings_of(name, vhost)))

    async def queue_names(self, name: str, vhost: str = DEFAULT_VHOST) -> list[str]:
        """Return the names of the queues bound to the topic itself, sorted."""
        found: list[str] = []
        bindings = self._bindings_of(name, vhost)
        for begin in range(0, len(bindings), NAMES_SLICE):
            found += [binding.destination for binding in bindings[begin : begin + NAMES_SLICE]]
            # Timsort only merges the sorted part.
            found.sort()
            await asyncio.sleep(0)
        return found

    def _bindings_of(self, name: str, vhost: str) -> list[Binding]:
        self._check_exchange(name, vhost)
        bindings = self._topology.router(vhost).bindings(source=name)
        return [binding for binding in bindings if binding.kind is Destination.QUEUE]

    def _durable_subscriptions(self, name: str, vhost: str) -> Iterator[str]:
        for binding in self._bindings_of(name, vhost):
            # Skip the lookup for the thousands of queues that are not durable subscriptions.
            if binding.destination.startswith(f"{name}/"):
                subscription = self._subscription(binding)["subscription"]
                if subscription:
                    yield subscription

    def _subscription(self, binding: Binding) -> dict[str, Any]:
        state = self._topology.engine.find_queue(binding.destination, binding.vhost)
        remote = self._topology.directory.find(binding.vhost, binding.destination) if state is None else state
        queue = None if remote is None else remote.queue
        return {
            "subscription": _subscription_of(binding.source, binding.destination, queue),
            "queue": binding.destination,
            "pattern": binding.routing_key,
            "durable": queue is None or queue.durable,
            "messages": None if state is None else len(state),
            "consumers": None if state is None else len(state.consumers),
        }

    async def list_subscriptions(self, name: str, vhost: str = DEFAULT_VHOST) -> list[dict[str, Any]]:
        """Return the subscriptions, with the counts of remote queues whose nodes respond in time."""
        found: list[dict[str, Any]] = []
        for place, binding in enumerate(self._bindings_of(name, vhost), start=1):
            found.append(self._subscription(binding))
            if place % SLICE == 0:
                await asyncio.sleep(0)
        remotes = [self._topology.directory.find(vhost, entry["queue"]) for entry in found]
        wanted = [remote.queue.id for remote in remotes if remote is not None]
        if wanted:
            answers, _ = await self.queues.peering.ask_owners("queue.list", {"queue_ids": wanted}, COUNT_LIMIT_S)
            by_id = {report["id"]: report for reports in answers.values() for report in reports}
            for entry, remote in zip(found, remotes, strict=True):
                report = None if remote is None else by_id.get(remote.queue.id)
                if report is not None and entry["messages"] is None:
                    entry["messages"], entry["consumers"] = report["ready"], report["consumers"]
        return found

    # Changes

    async def create(self, name: str, parent: str | None = None, vhost: str = DEFAULT_VHOST) -> None:
        """Create a topic, or check that it exists with this parent."""
        check_name("topic", name)
        if len(name.encode()) > _MAX_BYTES:
            raise InvalidName(f"the name of a topic has {len(name.encode())} bytes, the maximum is {_MAX_BYTES}")
        if name.startswith(RESERVED_PREFIX):
            # A built-in exchange would be taken for the topic's, and cannot be deleted.
            raise ReservedName(f"topic name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")
        topic = Topic(name, vhost, parent)
        known = self._find(name, vhost)
        if known is not None:
            if known != topic:
                raise InvalidArgument(
                    f"topic {name!r} exists already, with the parent {known.parent!r}; change it with topic.parent"
                )
            return
        if parent is not None:
            if parent == name:
                raise InvalidArgument(f"topic {name!r} cannot be its own parent")
            self.get(parent, vhost)
        await outcome(lambda done: self._topology.declare_exchange(Exchange(name, _EXCHANGE_TYPE, vhost), done))
        if parent is not None:
            await outcome(lambda done: self._topology.bind(_to_parent(topic, parent), done))
        await self._keep(topic)

    async def set_parent(self, name: str, parent: str | None, vhost: str = DEFAULT_VHOST) -> None:
        """Change or remove the topic's parent. Raises InvalidArgument if that makes a cycle."""
        before = self.get(name, vhost)
        above = parent
        while above is not None:
            if above == name:
                raise InvalidArgument(f"topic {parent!r} cannot be the parent of {name!r}: it would be a cycle")
            above = self.get(above, vhost).parent
        if parent == before.parent:
            return
        topic = Topic(name, vhost, parent)
        # Stored first: a concurrent change could otherwise complete a cycle.
        await self._keep(topic)
        if before.parent is not None:
            old = _to_parent(before, before.parent)
            await outcome(lambda done: self._topology.unbind(old, done))
        if parent is not None:
            await outcome(lambda done: self._topology.bind(_to_parent(topic, parent), done))

    async def delete(self, name: str, vhost: str = DEFAULT_VHOST) -> None:
        """Delete a topic. Raises TopicInUse while it has children or durable subscriptions."""
        self.get(name, vhost)
        children = [topic.name for topic in self.all(vhost) if topic.parent == name]
        if children:
            raise TopicInUse(name, f"it is the parent of {', '.join(children)}")
        durable = list(islice(self._durable_subscriptions(name, vhost), MAX_NAMED + 1))
        if durable:
            more = " and more" if len(durable) > MAX_NAMED else ""
            named = ", ".join(durable[:MAX_NAMED])
            raise TopicInUse(name, f"it has the durable subscriptions {named}{more}; end them first")
        await outcome(lambda done: self._topology.delete_exchange(vhost, name, done, if_unused=False))

    async def unsubscribe(self, name: str, subscription: str, vhost: str = DEFAULT_VHOST) -> None:
        """Delete a durable subscription with its messages. Raises QueueInUse while it has consumers."""
        self._check_exchange(name, vhost)
        queue_name = _queue_name(name, subscription)
        if self.queues.locate(vhost, queue_name) is None:
            await self.queues.peering.catch_up()
        queue = self.queues.find(vhost, queue_name)
        if queue is None:
            raise QueueNotFound(queue_name, vhost)
        # No connection requests this, so every exclusive queue belongs to another one.
        queue.check_access(None)
        await result(partial(queue.delete, if_unused=True))

    # Internals

    def _check_exchange(self, name: str, vhost: str) -> None:
        """Raise TopicNotFound unless a topic exchange of this name exists."""
        exchange = self._topology.router(vhost).find(name)
        if exchange is None or exchange.type != _EXCHANGE_TYPE or exchange.internal:
            raise TopicNotFound(name)

    async def _keep(self, topic: Topic) -> None:
        await outcome(lambda done: self._definitions.put(_definition_of(topic), done))

    def _exchange_deleted(self, exchange: Exchange) -> None:
        """Delete the topic of a deleted exchange; its children lose their parent."""
        if self._find(exchange.name, exchange.vhost) is None:
            return
        self._definitions.delete(KIND, _key(exchange.vhost, exchange.name), _ignore)
        for child in self.all(exchange.vhost):
            if child.parent == exchange.name:
                self._definitions.put(_definition_of(Topic(child.name, child.vhost)), _ignore)


def _ignore(error: FlyballError | None) -> None:
    """Ignore the outcome of a dependent deletion, which is retried while the store is unavailable."""


def _topic_of(value: Mapping[str, Any]) -> Topic:
    return Topic(value["name"], value["vhost"], value["parent"])


def _definition_of(topic: Topic) -> Definition:
    value = {"name": topic.name, "vhost": topic.vhost, "parent": topic.parent}
    return Definition(KIND, _key(topic.vhost, topic.name), value)


def _to_parent(topic: Topic, parent: str) -> Binding:
    return Binding(topic.name, parent, Destination.EXCHANGE, ALL, vhost=topic.vhost)


def _key(vhost: str, name: str) -> str:
    return json.dumps([vhost, name], ensure_ascii=False)


def _queue_name(topic: str, subscription: str) -> str:
    check_name("subscription", subscription)
    if subscription.startswith("~"):
        raise InvalidName(f"subscription name {subscription!r} is not valid: it must not begin with '~'")
    return f"{topic}/{subscription}"


def _subscription_of(topic: str, queue_name: str, queue: Queue | None) -> str | None:
    """Return the name of a durable subscription, None for any other queue."""
    prefix = f"{topic}/"
    is_durable = queue is None or (queue.durable and not queue.exclusive)
    return queue_name[len(prefix) :] if queue_name.startswith(prefix) and is_durable else None
