"""Connection factories: producers and consumers go where they are sent, move when asked, and outlive their nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flyball.broker.core.placement import Movable, NoPlaceYet, Place, PlaceRequest, Role
from flyball.broker.management.part import console_part
from flyball.client import (
    Backoff,
    Client,
    ClientClosed,
    ConnectionFactory,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    LeaseLost,
    Outcome,
    QueueConsumer,
    QueueProducer,
    RequestTimeout,
    placement,
    sync,
)
from flyball.client.consumer import Consumer
from flyball.client.placement import PlacedConnection
from flyball.errors import QueueNotFound
from tests.client.servers import proxy
from tests.nodes import RunningNode

QUICK = Backoff(first_s=0.01, max_s=0.05)
PATIENCE_S = 30.0
NOBODY = "127.0.0.1:1"


class Manager:
    """Places every client at the site that the test has chosen, and records which come and leave."""

    def __init__(self) -> None:
        self.site: Site | None = None
        self.later: list[NoPlaceYet] = []
        self.requests: list[PlaceRequest] = []
        self.log: list[str] = []

    def at(self, site: Site) -> SitePlacement:
        return SitePlacement(self, site)


class SitePlacement:
    """The manager's view of one node."""

    def __init__(self, manager: Manager, site: Site) -> None:
        self._manager = manager
        self._site = site

    async def place(self, request: PlaceRequest) -> Place | NoPlaceYet:
        manager = self._manager
        manager.requests.append(request)
        if manager.later:
            return manager.later.pop()
        site = manager.site
        assert site is not None
        return Place(site.name, site.queue_id, request.session_id or "session-1", {"amqp": site.address})

    def arrived(self, session_id: str, connection: Movable) -> None:
        self._manager.log.append(f"{session_id} at {self._site.name}")
        self._site.connection = connection

    def left(self, session_id: str, connection: Movable, *, orderly: bool) -> None:
        self._manager.log.append(f"{session_id} {'left' if orderly else 'gone from'} {self._site.name}")


class Site:
    """A node with a member of the clustered queue `orders`."""

    def __init__(self, name: str, node: RunningNode, manager: Manager) -> None:
        self.name = name
        self.node = node
        self.address = str(node.address("amqp"))
        self.connection: Movable | None = None
        self.queue_id = node.call(lambda node: node.topology.create_queue("orders", lambda error: None).id)
        placement = manager.at(self)
        node.call(lambda node: setattr(node.hub, "placement", placement))

    def ask_to_move(self, there: Site, deadline_s: float = PATIENCE_S, address: str | None = None) -> None:
        """Ask the client that came last to go to the other site."""

        def ask(node: object) -> None:
            assert self.connection is not None
            self.connection.ask_to_move("session-1", there.name, address or there.address, there.queue_id, deadline_s)

        self.node.call(ask)

    def texts(self) -> list[str]:
        with sync.Client.connect(self.address) as client:
            return [message.text for message in client.read_messages("orders")]

    def put(self, *texts: str) -> None:
        with sync.Client.connect(self.address) as client:
            client.put_many("orders", texts)


def node_at(folder: Path) -> RunningNode:
    return RunningNode(folder, parts=[console_part()], store="memory", http="127.0.0.1:0", thorbang="off")


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture(autouse=True)
def time_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_LEAVE_TIME_S", PATIENCE_S)
    monkeypatch.setattr(placement, "_RETRY_S", 0.01)


@pytest.fixture
def sites(tmp_path: Path, manager: Manager) -> Iterator[tuple[Site, Site]]:
    with (
        node_at(tmp_path / "a") as first,
        node_at(tmp_path / "b") as second,
    ):
        # Numbers of queues differ, so that they cannot be mistaken for each other.
        second.call(lambda node: node.topology.create_queue("other", lambda error: None))
        made = Site("a", first, manager), Site("b", second, manager)
        manager.site = made[0]
        yield made


def factory(*sites: Site | str, resend: bool = True) -> ConnectionFactory:
    addresses = [site if isinstance(site, str) else site.address for site in sites]
    return ConnectionFactory(
        *addresses,
        backoff=QUICK,
        silence_limit_s=PATIENCE_S,
        resend=resend,
        time_limit_s=PATIENCE_S,
    )


async def eventually(condition: Callable[[], bool]) -> None:
    # No event says when just any condition comes true.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


# Placing


async def test_a_client_goes_to_the_node_that_was_elected_whomever_it_asks(
    sites: tuple[Site, Site], manager: Manager
) -> None:
    first, second = sites
    manager.site = second
    async with await factory(first).connect(role="producer", queue="orders") as producer:
        await producer.send("two coffees", priority=3)
        assert (producer.node, producer.address) == ("b", second.address)
        assert manager.requests == [PlaceRequest("/", "orders", Role.PRODUCER, "guest")]
    assert (first.texts(), second.texts()) == ([], ["two coffees"])


async def test_coming_and_leaving_is_told_at_once(sites: tuple[Site, Site], manager: Manager) -> None:
    consumer = await factory(sites[0]).connect("consumer", "orders")
    assert (consumer.session_id, manager.log) == ("session-1", ["session-1 at a"])
    await consumer.close()
    await consumer.close()
    assert manager.log == ["session-1 at a", "session-1 left a"]
    assert manager.requests[0].role is Role.CONSUMER


async def test_the_next_address_is_asked_if_one_does_not_answer(sites: tuple[Site, Site]) -> None:
    async with await factory(NOBODY, sites[1]).connect("producer", "orders") as producer:
        assert producer.node == "a"


async def test_if_nobody_answers_connecting_fails_at_once() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        await factory(NOBODY, "127.0.0.1:2").connect("producer", "orders")


async def test_a_client_that_is_told_to_wait_asks_again(sites: tuple[Site, Site], manager: Manager) -> None:
    manager.later = [NoPlaceYet(0.01, "a node is being started")] * 2
    async with await factory(sites[0]).connect("producer", "orders") as producer:
        assert producer.node == "a"
    assert len(manager.requests) == 3


async def test_a_client_for_which_no_place_comes_gives_up_in_time(sites: tuple[Site, Site], manager: Manager) -> None:
    manager.later = [NoPlaceYet(0.01, "no node has room")] * 1000
    hasty = ConnectionFactory(sites[0].address, time_limit_s=0.1)
    with pytest.raises(RequestTimeout):
        await hasty.connect("producer", "orders")


async def test_a_missing_queue_and_a_wrong_role_are_told(address: str) -> None:
    with pytest.raises(QueueNotFound):
        await factory(address).connect("producer", "nowhere")
    with pytest.raises(InvalidValue, match="role"):
        await factory(address).connect("both", "orders")  # type: ignore[call-overload]
    with pytest.raises(InvalidValue, match="address"):
        ConnectionFactory()


async def test_a_node_without_a_manager_serves_whoever_asks(address: str, unique: Callable[[str], str]) -> None:
    name = unique("orders")
    async with Client.connect(address) as client:
        await client.create_queue(name)
    shop = factory(address)
    async with await shop.connect("producer", name) as producer, await shop.connect("consumer", name) as consumer:
        assert await producer.send_many(["one", "two"]) == 2
        assert [producer.address, consumer.address] == [address, address]
        first, second = await consumer.receive(), await consumer.receive(wait_s=20)
        assert first is not None
        assert second is not None
        assert [first.message.text, second.message.text] == ["one", "two"]
        await consumer.settle([first, second], Outcome.ACKNOWLEDGE)
        assert await consumer.receive(wait_s=0) is None


async def test_unclustered_factory_stays_with_the_first_answering_address(
    sites: tuple[Site, Site], manager: Manager
) -> None:
    bound = ConnectionFactory(NOBODY, sites[1].address, clustered=False)
    async with await bound.connect("producer", "orders") as producer:
        await producer.send("here")
        assert (producer.address, producer.session_id) == (sites[1].address, "")
    assert (sites[1].texts(), manager.requests, manager.log) == (["here"], [], [])


# Moving


async def test_a_producer_that_moves_loses_and_doubles_nothing(sites: tuple[Site, Site], manager: Manager) -> None:
    first, second = sites
    async with await factory(first).connect("producer", "orders") as producer:
        sent = 0

        async def send() -> None:
            nonlocal sent
            while producer.moves < 4:
                sent += 1
                await producer.send(str(sent))

        async def move() -> None:
            for moves, (here, there) in enumerate([(first, second), (second, first)] * 2, 1):
                here.ask_to_move(there)
                await eventually(lambda moves=moves: producer.moves == moves)  # type: ignore[misc]

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(send())
            await asyncio.to_thread(lambda: None)
            tasks.create_task(move())
        assert producer.node == "a"
    stored = [int(text) for text in first.texts() + second.texts()]
    assert sorted(stored) == list(range(1, sent + 1))
    assert first.texts()
    assert second.texts()
    assert manager.log[:2] == ["session-1 at a", "session-1 at b"]
    assert "session-1 gone from a" in manager.log


async def test_a_producer_stays_if_the_other_node_cannot_be_reached(sites: tuple[Site, Site]) -> None:
    first, second = sites
    async with await factory(first).connect("producer", "orders") as producer:
        first.ask_to_move(second, address=NOBODY)
        await producer.send("it stays")
        # It takes no other move before it has given up that one.
        while producer.moves == 0:
            first.ask_to_move(second)
            await producer.send("x")
        await producer.send("it has moved")
        assert (producer.moves, producer.node) == (1, "b")
    assert (first.texts()[0], second.texts()[-1]) == ("it stays", "it has moved")


async def test_a_consumer_moves_when_what_it_has_handed_out_is_settled(sites: tuple[Site, Site]) -> None:
    first, second = sites
    first.put("one", "two", "three")
    second.put("four")
    async with await factory(first).connect("consumer", "orders", prefetch=3) as consumer:
        one = await consumer.receive()
        assert one is not None
        first.ask_to_move(second)
        # Those that it had not handed out go back; the one that it has stays its own.
        await asyncio.to_thread(first.node.wait_until, lambda node: has_leased(first, 1))
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        assert (consumer.node, waiting.done()) == ("a", False)
        await one.ack()
        four = await waiting
        assert four is not None
        assert (four.message.text, consumer.node, consumer.moves) == ("four", "b", 1)
        await four.ack()
    assert (first.texts(), second.texts()) == (["two", "three"], [])


def has_leased(site: Site, count: int) -> bool:
    return len(site.node.node.hub.broker.engine.queue(site.queue_id).unacked) == count


async def test_what_is_not_settled_in_time_goes_back_when_a_consumer_moves(sites: tuple[Site, Site]) -> None:
    first, second = sites
    first.put("one")
    async with await factory(first).connect("consumer", "orders") as consumer:
        one = await consumer.receive()
        assert one is not None
        first.ask_to_move(second, deadline_s=0.05)
        await eventually(lambda: consumer.moves == 1)
        with pytest.raises(LeaseLost):
            await one.ack()
        assert first.texts() == ["one"]
        second.put("two")
        two = await consumer.receive()
        assert two is not None
        assert two.message.text == "two"
        await consumer.set_prefetch(2)
        await two.ack()


async def test_a_consumer_that_stays_after_all_consumes_on(sites: tuple[Site, Site]) -> None:
    first, second = sites
    async with (
        proxy(second.address) as between,
        await factory(first).connect("consumer", "orders") as consumer,
    ):
        # The node that it has come to may be silent for long, the next one may not.
        consumer._options = replace(consumer._options, silence_limit_s=0.2)
        between.swallows_answers = True
        first.ask_to_move(second, address=between.address)
        await eventually(lambda: between.accepted == 1)
        first.put("one")
        one = await consumer.receive()
        assert one is not None
        assert one.message.text == "one"
        await one.ack()
        assert (consumer.node, consumer.moves) == ("a", 0)


async def test_a_consumer_that_cannot_say_that_it_goes_subscribes_again(
    sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sites
    close, sit = Consumer.close, QueueConsumer._connected
    refused = asyncio.Event()
    looks = 0

    async def refuse_once(consumer: Consumer) -> None:
        await close(consumer)
        if not refused.is_set():
            refused.set()
            raise RequestTimeout("close", 1.0)

    async def counted(consumer: QueueConsumer) -> PlacedConnection:
        nonlocal looks
        looks += 1
        assert looks < 100, "it goes round and round"
        return await sit(consumer)

    monkeypatch.setattr(Consumer, "close", refuse_once)
    monkeypatch.setattr(QueueConsumer, "_connected", counted)
    async with await factory(first).connect("consumer", "orders") as consumer:
        receiving = asyncio.ensure_future(consumer.receive())
        first.ask_to_move(second)
        await refused.wait()
        await asyncio.to_thread(first.put, "one")
        one = await receiving
        assert one is not None
        await one.ack()
        assert (consumer.node, consumer.moves) == ("a", 0)


# Lost nodes


async def test_when_its_node_is_gone_a_client_is_placed_again(sites: tuple[Site, Site], manager: Manager) -> None:
    first, second = sites
    shop = factory(first, second)
    async with (
        await shop.connect("producer", "orders") as producer,
        await shop.connect("consumer", "orders") as consumer,
    ):
        await producer.send("one")
        one = await consumer.receive()
        assert one is not None
        waiting = asyncio.ensure_future(consumer.receive())
        manager.site = second
        await asyncio.to_thread(first.node.stop)
        await producer.send("two")
        two = await waiting
        assert two is not None
        assert (two.message.text, producer.node, consumer.node) == ("two", "b", "b")
        with pytest.raises(LeaseLost):
            await one.ack()
        await two.ack()
    assert manager.requests[-1] == PlaceRequest(
        "/", "orders", manager.requests[-1].role, "guest", session_id="session-1", avoid="a"
    )


async def test_a_message_whose_answer_was_lost_is_sent_again(sites: tuple[Site, Site]) -> None:
    site = sites[0]
    async with proxy(site.address) as between:
        real, site.address = site.address, between.address
        async with await factory(real).connect("producer", "orders") as producer:
            # The first message opens its channel.
            await producer.send("before")
            between.swallows_answers = True
            sending = asyncio.ensure_future(producer.send("once"))
            await asyncio.to_thread(site.node.wait_until, lambda node: has_messages(site, 2))
            site.address = real
            between.cut()
            await sending
        assert site.texts() == ["before", "once", "once"]


def has_messages(site: Site, count: int) -> bool:
    return len(site.node.node.hub.broker.engine.queue(site.queue_id)) == count


async def test_a_factory_that_does_not_resend_says_that_the_outcome_is_unknown(sites: tuple[Site, Site]) -> None:
    site = sites[0]
    async with proxy(site.address) as between:
        real, site.address = site.address, between.address
        async with await factory(real, resend=False).connect("producer", "orders") as producer:
            # The first message opens its channel.
            await producer.send("before")
            between.swallows_answers = True
            sending = asyncio.ensure_future(producer.send("once"))
            await asyncio.to_thread(site.node.wait_until, lambda node: has_messages(site, 2))
            site.address = real
            between.cut()
            with pytest.raises(ConnectionLost):
                await sending
            await producer.send("afterwards")
        assert site.texts() == ["before", "once", "afterwards"]


async def test_a_node_that_falls_silent_is_given_up(sites: tuple[Site, Site], manager: Manager) -> None:
    first, second = sites
    async with proxy(first.address) as between:
        first.address = between.address
        shop = ConnectionFactory(second.address, backoff=QUICK, silence_limit_s=2)
        async with await shop.connect("consumer", "orders") as consumer:
            between.swallows_answers = True
            manager.site = second
            await asyncio.to_thread(second.put, "one")
            one = await consumer.receive()
            assert one is not None
            assert consumer.node == "b"
            await one.ack()


async def test_closing_ends_waiting_and_searching(sites: tuple[Site, Site], manager: Manager) -> None:
    shop = factory(sites[0])
    consumer = await shop.connect("consumer", "orders")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    assert await waiting is None
    producer = await shop.connect("producer", "orders")
    manager.later = [NoPlaceYet(1000, "no node has room")]
    await asyncio.to_thread(sites[0].node.call, lambda node: [c.disconnect() for c in node.hub.connections])
    sending = asyncio.ensure_future(producer.send("x"))
    await eventually(lambda: not manager.later)
    await producer.close()
    with pytest.raises(ClientClosed):
        await sending


async def test_a_queue_that_is_deleted_ends_its_clients(address: str, unique: Callable[[str], str]) -> None:
    name = unique("orders")
    async with Client.connect(address) as client:
        await client.create_queue(name)
        async with (
            await factory(address).connect("producer", name) as producer,
            await factory(address).connect("consumer", name) as consumer,
        ):
            await client.delete_queue(name)
            with pytest.raises(QueueNotFound):
                await producer.send("x")
            with pytest.raises(QueueNotFound):
                await consumer.receive()


# The synchronous flavour


def test_the_synchronous_factory_has_the_same(sites: tuple[Site, Site], manager: Manager) -> None:
    manager.site = sites[1]
    shop = sync.ConnectionFactory(sites[0].address)
    with shop.connect("producer", "orders") as producer, shop.connect("consumer", "orders", prefetch=2) as consumer:
        producer.send("one", priority=1)
        assert producer.send_many(["two", "three"]) == 2
        assert (producer.node, producer.address) == ("b", sites[1].address)
        assert (producer.queue_name, producer.session_id, producer.moves) == ("orders", "session-1", 0)
        consumer.set_prefetch(3)
        first = next(consumer)
        rest = [consumer.receive(wait_s=20), consumer.receive(wait_s=20)]
        first.ack()
        consumer.settle([delivery for delivery in rest if delivery is not None], Outcome.ACKNOWLEDGE)
        assert (consumer.receive(wait_s=0), consumer.prefetch) == (None, 3)
    assert manager.log.count("session-1 left b") == 2
    with pytest.raises(InvalidValue):
        shop.connect("both", "orders")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("threaded", "original"),
    [
        (sync.QueueProducer, QueueProducer),
        (sync.QueueConsumer, QueueConsumer),
        (sync.ConnectionFactory, ConnectionFactory),
    ],
)
def test_both_flavours_have_the_same_names(threaded: type, original: type) -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(original) - {"ROLE", "open"} == names(threaded)
