from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from flyball.broker.cluster import sessions as module
from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.domain_placement import DomainPlacement
from flyball.broker.cluster.names import cluster_key
from flyball.broker.cluster.options import Role
from flyball.broker.cluster.sessions import Rates, Sessions, new_session_id, read_session_id
from flyball.broker.core.placement import PlaceRequest
from flyball.broker.core.placement import Role as WireRole
from flyball.broker.engine.access import Action
from flyball.broker.protocols.amqp.session import AmqpSession
from flyball.model import Queue


def test_a_session_id_tells_its_role_and_its_clustered_queue() -> None:
    cluster = cluster_key("/", "orders.eu")
    assert read_session_id(new_session_id(Role.CONSUMER, cluster, "guest")) == (Role.CONSUMER, cluster)
    assert read_session_id("amqp.1.2.orders") is None


def test_a_rate_is_what_a_counter_gained_since_it_was_looked_at() -> None:
    clock = [0.0]
    rates = Rates(lambda: clock[0])
    assert rates.of("p", 100) is None
    clock[0] = 2.0
    assert rates.of("p", 300) == 100
    clock[0] = 2.1
    assert rates.of("p", 1000) == 100, "too early to say"
    rates.keep([])
    assert rates.of("p", 300) is None


class Client:
    """A client that arrives, and cannot be moved."""

    protocol = "amqp"
    requests = 0

    def __init__(self, vhost: str = "/", *, user_name: str = "guest", action: Action | None = None) -> None:
        self.user_name = user_name
        self._vhost = vhost
        self._action = action

    def may(self, action: Action, vhost: str, queue_name: str) -> bool:
        return vhost == self._vhost and self._action in (None, action)

    def ask_to_move(self, session_id: str, node: str, address: str, queue_id: int, deadline_s: float) -> None:
        raise AssertionError("nobody asks it")


def node_with_a_member(name: str) -> Any:
    state = SimpleNamespace(queue=Queue(7, name, member=True))
    found = {("/", name): state}
    engine = SimpleNamespace(find_queue=lambda name, vhost: found.get((vhost, name)))
    definitions = {"cluster": {cluster_key("/", name): {"vhost": "/", "name": name}}}
    hub = SimpleNamespace(broker=SimpleNamespace(engine=engine), connections=[])
    return SimpleNamespace(hub=hub, definitions=SimpleNamespace(of=definitions.__getitem__))


def test_whatever_clients_call_themselves_others_are_told_of() -> None:
    sessions = Sessions(node_with_a_member("orders"))
    known = new_session_id(Role.PRODUCER, cluster_key("/", "orders"), "guest")
    strange = [new_session_id(Role.PRODUCER, text, "guest") for text in ("garbage", "[[],1]", "5", "", "[" * 100_000)]
    for session_id in [*strange, known]:
        sessions.arrived(session_id, Client())
    assert [(session.id, session.role, session.queue_id) for session in sessions.all()] == [(known, Role.PRODUCER, 7)]


def test_clients_without_permission_are_no_sessions_of_a_clustered_queue() -> None:
    sessions = Sessions(node_with_a_member("orders"))
    clients = [Client("other"), Client(action=Action.READ), Client(action=Action.WRITE)]
    for client in clients:
        sessions.arrived(new_session_id(Role.PRODUCER, cluster_key("/", "orders"), "guest"), client)
    assert [session.role for session in sessions.all()] == [Role.PRODUCER]
    for client in clients:
        sessions.arrived(new_session_id(Role.CONSUMER, cluster_key("/", "orders"), "guest"), client)
    assert [session.role for session in sessions.all()] == [Role.PRODUCER, Role.CONSUMER]


def test_session_of_another_user_is_neither_taken_over_nor_ended() -> None:
    sessions = Sessions(node_with_a_member("orders"))
    session_id = new_session_id(Role.PRODUCER, cluster_key("/", "orders"), "alice")
    asked: list[str] = []
    alice, mallory = Client(user_name="alice"), Client(user_name="mallory")
    alice.ask_to_move = lambda session_id, *_: asked.append(session_id)  # type: ignore[method-assign]
    sessions.arrived(session_id, alice)
    sessions.arrived(session_id, mallory)
    assert asyncio.run(sessions.move(session_id, 8, "south", {"amqp": "127.0.0.1:1"}))
    assert asked == [session_id]
    assert not sessions.left(session_id, mallory)
    assert [session.id for session in sessions.all()] == [session_id]
    assert sessions.left(session_id, alice)
    assert sessions.all() == []


def test_only_the_user_of_a_session_ends_it_or_looks_for_its_place() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    class FakeAgent:
        sessions = Sessions(node_with_a_member("orders"))
        node = SimpleNamespace(definitions=SimpleNamespace(of=lambda kind: {cluster_key("/", "orders"): {}}))

        async def ask_leader(self, command: str, **arguments: Any) -> dict[str, Any]:
            asked.append((command, arguments))
            return {"retry_s": 1.0, "reason": "no room"}

    placement = DomainPlacement(cast("Agent", FakeAgent()))
    session_id = new_session_id(Role.PRODUCER, cluster_key("/", "orders"), "alice")
    asyncio.run(placement.ended(session_id, "mallory"))
    assert asked == []
    asyncio.run(placement.ended(session_id, "alice"))
    assert asked.pop() == ("cluster.left", {"session_id": session_id})
    request = PlaceRequest("/", "orders", WireRole.PRODUCER, "mallory", session_id)
    asyncio.run(placement.place(request))
    assert asked.pop()[1]["user"] == "mallory"


def test_a_producer_whose_member_is_gone_counts_where_its_messages_go() -> None:
    node = node_with_a_member("orders")
    node.membership = SimpleNamespace(node_id=1)
    member = node.hub.broker.engine.find_queue("orders", "/")
    node.amqp = SimpleNamespace(queues=SimpleNamespace(locate=lambda vhost, name, homes: member))
    session = mock.Mock(spec=AmqpSession, homes={("/", "orders"): 99}, channels=[])
    route = SimpleNamespace(targets=[member], elsewhere=[])
    session.routes = SimpleNamespace(entries={b"": route})
    node.hub.connections.append(session)
    assert [(found.role, found.queue_id) for found in Sessions(node).all()] == [(Role.PRODUCER, 7)]


class Channels(list[Any]):
    """The channels of a connection, which count how often they are iterated."""

    looked = 0

    def __iter__(self) -> Iterator[Any]:
        self.looked += 1
        return super().__iter__()


def a_session(count: int) -> Any:
    channel = SimpleNamespace(number=1, placed={}, deliveries=SimpleNamespace(consumers={}))
    return mock.Mock(spec=AmqpSession, routes=SimpleNamespace(entries={}), channels=Channels([channel] * count))


def test_a_connection_of_many_channels_is_not_looked_through_for_each_of_them() -> None:
    node = node_with_a_member("orders")
    node.hub.connections.append(a_session(1000))
    assert Sessions(node).all() == []
    assert node.hub.connections[0].channels.looked <= 3


def test_no_connection_is_looked_through_where_there_are_no_clustered_queues() -> None:
    session = a_session(1000)
    hub = SimpleNamespace(connections=[session])
    assert Sessions(mock.Mock(hub=hub, definitions=SimpleNamespace(of=lambda kind: {}))).all() == []
    assert session.channels.looked == 0


def test_others_are_told_of_sessions_in_parts_and_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS_PER_REPORT", 2)
    sessions = Sessions(node_with_a_member("orders"))
    for role in (Role.PRODUCER, Role.PRODUCER, Role.CONSUMER):
        sessions.arrived(new_session_id(role, cluster_key("/", "orders"), "guest"), Client())
    ids = [session.id for session in sessions.all()]
    assert sessions.counts() == {"7": {"producer": 2, "consumer": 1}}

    async def told(first: int | None) -> list[str]:
        return [session[0] for session in await sessions.rows(first)]

    assert asyncio.run(told(0)) == ids[:2]
    sessions.arrived(new_session_id(Role.CONSUMER, cluster_key("/", "orders"), "guest"), Client())
    assert len(asyncio.run(told(None))) == 2
    assert asyncio.run(told(2)) == ids[2:], "what has come since is told another time"
