"""A node among others: its lease, its ids and the names of its queues."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from flyball.broker.core import clock
from flyball.broker.core.authority import Authority
from flyball.broker.core.broker import Broker
from flyball.broker.core.definitions import Definitions
from flyball.broker.core.queues import Queues
from flyball.broker.core.topics import Topics
from flyball.broker.core.topology import Topology
from flyball.broker.peering.change_feed import ChangeFeed
from flyball.broker.peering.membership import ALONE_LEASE_S, Membership
from flyball.broker.store.changes import DefinitionDeleted, DefinitionPut
from flyball.broker.store.interface import Batch
from flyball.broker.store.memory import MemoryDomain, MemoryStore
from flyball.broker.transport.connection import Hub, Services
from flyball.errors import StoreUnavailable
from flyball.model import Binding, Definition, Exchange, Queue
from tests.broker.core.test_broker import in_a_loop, running
from tests.broker.peering.link.domains import run

LEASE_S = 5.0


class Watched(MemoryStore):
    """A store that signals when queue ids are requested."""

    on_reserve: Callable[[], object] = staticmethod(lambda: None)

    async def reserve_queue_ids(self, count: int) -> int:
        self.on_reserve()
        return await super().reserve_queue_ids(count)


@contextlib.asynccontextmanager
async def member(
    store: MemoryStore, drop_links: Callable[[], object] = lambda: None
) -> AsyncIterator[tuple[Membership, Broker]]:
    """Run a node that renews its lease on request of the test."""
    async with asyncio.TaskGroup() as tasks, running(store) as broker:
        authority = Authority(broker.journal, (), loopback_users=())
        topology = Topology(broker, authority, ())
        definitions = Definitions(broker.journal, ("topic",), ())
        hub = Hub(Services(broker, authority, Topics(Queues(topology), definitions)), tasks)
        feed = ChangeFeed(broker, authority, topology, definitions, 0)
        neighbours = SimpleNamespace(update=lambda records: None, drop_links=drop_links)
        membership = Membership(hub, topology, feed, neighbours, lease_s=LEASE_S)
        await membership.serve({})
        yield membership, broker


@contextlib.asynccontextmanager
async def joining(store: MemoryStore) -> AsyncIterator[None]:
    """Let a node join while others go on; it is in when they have made room for it."""
    opening = asyncio.ensure_future(store.open())
    await asyncio.sleep(0)
    yield
    await opening


@in_a_loop
async def test_ids_unknown_to_the_store_are_not_reused_when_others_join() -> None:
    domain = MemoryDomain()
    store = Watched(domain=domain, node="one")
    async with member(store) as (membership, broker):
        created: list[int] = []
        store.on_reserve = lambda: created.append(broker.engine.create_queue(f"queue {len(created)}").id)
        async with joining(MemoryStore(domain=domain, node="two")):
            await membership.start()
        assert broker.is_clustered
        assert created
        assert broker.engine.create_queue("another").id not in created
        assert broker.engine.queue_ids_left is not None


@in_a_loop
async def test_shorter_lease_counts_from_before_the_renewal() -> None:
    domain = MemoryDomain()
    store = MemoryStore(domain=domain, node="one")
    async with member(store) as (membership, _):
        silent_from: list[float] = []
        renew = store.registry.renew

        async def watched(lease_s: float, **told: Any) -> Any:
            silent_from.append(membership._hub.lease_ends_s)
            return await renew(lease_s, **told)

        store.registry.renew = watched  # type: ignore[method-assign]
        assert membership._hub.lease_ends_s > clock.lease_time_s() + ALONE_LEASE_S / 2
        async with joining(MemoryStore(domain=domain, node="two")):
            await membership.start()
        assert silent_from[-1] <= clock.lease_time_s() + LEASE_S


@in_a_loop
async def test_a_node_whose_machine_was_suspended_for_a_lease_says_nothing() -> None:
    async with member(MemoryStore()) as (membership, _):
        assert membership._hub.holds_lease
        clocks = {time.CLOCK_MONOTONIC: time.monotonic(), time.CLOCK_BOOTTIME: clock.lease_time_s() + ALONE_LEASE_S}
        with mock.patch.object(time, "clock_gettime", clocks.__getitem__):
            assert not membership._hub.holds_lease
            await membership.start()
            assert membership._hub.holds_lease
            assert not membership.may_judge


def test_node_keeps_its_lease_and_last_report_if_the_report_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with member(MemoryStore(domain=MemoryDomain(), node="one")) as (membership, _):
            said = iter([{"is": "well"}])
            membership.report_with(lambda: next(said))
            for _ in range(3):
                membership._hub.lease_ends_s = 0.0
                await membership.start()
                assert membership._hub.holds_lease
                assert [node.report for node in membership.nodes] == [{"is": "well"}]

    run(scenario())
    assert caplog.text.count("status report failed") == 1


@in_a_loop
async def test_a_node_that_holds_its_lease_again_hears_that_before_it_says_anything() -> None:
    could_speak: list[bool] = []

    def drop_links() -> None:
        could_speak.append(membership._hub.holds_lease)

    async with member(MemoryStore(domain=MemoryDomain(), node="one"), drop_links) as (membership, _):
        await membership.start()
        assert not could_speak
        membership._hub.lease_ends_s = 0.0
        await membership.start()
        assert could_speak == [False]
        assert membership._hub.holds_lease


class Stalled:
    """A connection that waits until it may go on."""

    HEEDS_CONGESTION = True

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.waits_for_turn = False
        self.has_gone_on = asyncio.Event()

    def go_on(self) -> None:
        self._hub.stalled.discard(self)
        self.has_gone_on.set()


@in_a_loop
async def test_connections_that_waited_go_on_when_the_lease_is_held_again() -> None:
    async with member(MemoryStore()) as (membership, _), asyncio.timeout(20):
        hub = membership._hub
        waiting = Stalled(hub)
        hub.stalled.add(waiting)  # type: ignore[arg-type]
        hub.lease_ends_s = 0.0
        # The store has caught up, but nothing may be said.
        hub.flush()
        assert not waiting.has_gone_on.is_set()
        await membership.start()
        await waiting.has_gone_on.wait()


@in_a_loop
async def test_a_node_turns_to_one_that_joins_before_that_is_let_in() -> None:
    domain = MemoryDomain()
    async with member(MemoryStore(domain=domain, node="one")) as (membership, _):
        told: list[tuple[int, int]] = []
        membership.on_nodes.append(lambda nodes: told.append((len(nodes), nodes[0].known_generation)))
        async with joining(MemoryStore(domain=domain, node="two")):
            await membership.start()
        assert told[0] == (2, 1)
        assert told[-1] == (2, 2)


@in_a_loop
async def test_a_name_is_claimed_after_the_deletion_that_gives_it_back() -> None:
    domain = MemoryDomain()
    store, other = MemoryStore(domain=domain, node="one"), MemoryStore(domain=domain, node="two")
    async with member(store) as (membership, broker):
        queue_id = membership._topology.create_queue("orders", lambda error: None).id
        async with joining(other):
            await membership.start()
        await broker.journal.flush()
        membership._topology.lifecycle.delete(queue_id, lambda error: None)
        assert await membership._feed.claim("/", "orders") == membership.node_id
        # Nothing that was on its way has given the name to others.
        await broker.journal.flush()
        assert await other.registry.claim("/", "orders") == membership.node_id


@in_a_loop
async def test_no_node_is_declared_dead_after_a_jump_of_the_registry_clock() -> None:
    ahead_s = 0.0
    domain = MemoryDomain(lambda: time.monotonic() + ahead_s)
    other = MemoryStore(domain=domain, node="two")
    async with member(MemoryStore(domain=domain, node="one")) as (membership, _):
        async with joining(other):
            await membership.start()
        await other.registry.renew(LEASE_S, addresses={}, report={}, known_generation=9, seen_version=0)
        await membership.start()
        membership._gapless_since_s = 0.0
        await membership.start()
        assert membership.may_judge
        ahead_s = 2 * LEASE_S
        await membership.start()
        assert not membership.others
        assert not membership.may_judge


@in_a_loop
async def test_who_is_gone_for_long_keeps_nobody_from_judging() -> None:
    now_s = 1000.0

    def tell() -> float:
        return now_s

    domain = MemoryDomain(tell)
    other = MemoryStore(domain=domain, node="two")
    with mock.patch.object(clock, "lease_time_s", tell):
        async with member(MemoryStore(domain=domain, node="one")) as (membership, _):
            async with joining(other):
                await membership.start()
            await other.registry.renew(LEASE_S, addresses={}, report={}, known_generation=9, seen_version=0)
            for _ in range(3 * round(LEASE_S)):
                now_s += 1.0
                await membership.start()
            assert not membership.others
            assert membership.may_judge


@in_a_loop
async def test_one_that_leaves_can_be_judged_at_once() -> None:
    domain = MemoryDomain()
    other = MemoryStore(domain=domain, node="two")
    async with member(MemoryStore(domain=domain, node="one")) as (membership, _):
        async with joining(other):
            await membership.start()
        membership._gapless_since_s = 0.0
        await other.registry.leave()
        await membership.start()
        assert not membership.others
        assert membership.may_judge


@contextlib.asynccontextmanager
async def two_members() -> AsyncIterator[tuple[Membership, Membership]]:
    """Run two nodes that apply each other's changes on request of the test."""
    domain = MemoryDomain()
    first, second = (MemoryStore(domain=domain, node=name) for name in ("one", "two"))
    async with member(first) as (one, _):
        async with joining(second):
            await one.start()
        async with member(second) as (two, _):
            await one.start()
            await two.start()
            await one.catch_up()
            await two.catch_up()
            yield one, two


def define(membership: Membership, value: str | None) -> None:
    """Put another value into the place of the one definition, or delete it."""
    if value is None:
        membership._feed._definitions.delete("topic", "news", lambda error: None)
    else:
        membership._feed._definitions.put(Definition("topic", "news", {"value": value}), lambda error: None)


def defined(membership: Membership) -> Any:
    return membership._feed._definitions.of("topic").get("news")


@pytest.mark.parametrize("last", [["mine"], ["earlier", "mine"], ["earlier", None]])
def test_nodes_that_change_the_same_at_the_same_time_agree_on_the_last_change(last: list[str | None]) -> None:
    async def test() -> None:
        async with two_members() as (one, two):
            define(two, "theirs")
            await two._broker.journal.flush()
            # By the order of all it is the later one, though this node learns of the other one only now.
            for value in last:
                define(one, value)
            await one.catch_up()
            await one._broker.journal.flush()
            await asyncio.gather(one.catch_up(), two.catch_up())
            assert defined(one) == defined(two) == (None if last[-1] is None else {"value": "mine"})

    run(test())


@in_a_loop
async def test_nodes_agree_on_the_last_of_two_different_exchanges() -> None:
    async with two_members() as (one, two):
        for membership, kind in ((two, "fanout"), (one, "direct")):
            membership._topology.declare_exchange(Exchange("x", kind), lambda error: None)
            await membership._broker.journal.flush()
        await asyncio.gather(one.catch_up(), two.catch_up())
        for membership in (one, two):
            assert membership._topology.router("/").get("x").type == "direct"


def add_queue(membership: Membership, name: str) -> int:
    membership._topology.declare_queue(Queue(0, name), None, lambda error: None)
    found = membership._broker.engine.find_queue(name)
    assert found is not None
    return found.queue.id


@in_a_loop
async def test_a_node_that_hears_late_of_a_binding_takes_it_from_nobody() -> None:
    async with two_members() as (one, two):
        binding = Binding("amq.direct", "orders", routing_key="key")
        queue_id = add_queue(two, "orders")
        await two._broker.journal.flush()
        await one.catch_up()
        two._topology.bind(binding, lambda error: None)
        await two._broker.journal.flush()
        # The queue has gone and come back since; this node has been notified of the first half.
        one._topology.directory.remove(queue_id)
        await one.catch_up()
        await one._broker.journal.flush()
        await two.catch_up()
        assert two._topology.router("/").bindings(source="amq.direct") == [binding]


@in_a_loop
async def test_late_vhost_deletion_spares_the_recreated_vhost() -> None:
    async with two_members() as (one, two):
        await two._feed._authority.add_vhost("test")
        await one.catch_up()
        one._topology.declare_exchange(Exchange("x", "direct", "test"), lambda error: None)
        await one._broker.journal.flush()
        # The other node does not know of that exchange.
        await two._feed._authority.delete_vhost("test")
        await two._feed._authority.add_vhost("test")
        two._topology.declare_exchange(Exchange("x", "direct", "test"), lambda error: None)
        await two._broker.journal.flush()
        await one.catch_up()
        await one._broker.journal.flush()
        await two.catch_up()
        for membership in (one, two):
            assert membership._topology.router("test").find("x") is not None


@in_a_loop
async def test_a_change_that_was_followed_by_another_is_not_made_again() -> None:
    async with two_members() as (one, two):
        define(one, "first")
        await one._broker.journal.flush()
        define(two, "theirs")
        await two._broker.journal.flush()
        define(one, "last")
        seen: list[Any] = []
        one._feed._definitions.on_changed["topic"] = lambda key: seen.append(defined(one))
        await one.catch_up()
        await one._broker.journal.flush()
        await one.catch_up()
        await two.catch_up()
        assert {"value": "first"} not in seen
        assert defined(one) == defined(two) == {"value": "last"}


@in_a_loop
async def test_a_change_that_is_told_twice_counts_where_it_was_told_last() -> None:
    async with two_members() as (one, two):
        define(one, "mine")
        await one._broker.journal.flush()
        define(two, "theirs")
        await two._broker.journal.flush()
        # The answer to the first commit was lost.
        await one._broker.store.commit(
            Batch([DefinitionPut(Definition("topic", "news", {"value": "mine"}))]), again=True
        )
        await asyncio.gather(one.catch_up(), two.catch_up())
        assert defined(one) == defined(two) == {"value": "mine"}


@in_a_loop
async def test_all_who_come_while_the_others_are_read_share_the_next_read() -> None:
    async with two_members() as (one, two):
        reads = 0
        changes = one.registry.changes

        async def counted(after_version: int, limit: int = 10_000) -> Any:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0)
            if reads == 2:
                raise StoreUnavailable("the store is away")
            return await changes(after_version, limit)

        one.registry.changes = counted  # type: ignore[method-assign]
        first = asyncio.ensure_future(one.catch_up())
        await asyncio.sleep(0)
        add_queue(two, "orders")
        await two._broker.journal.flush()
        # One read fails, and only for its own caller; with news another is needed to see that there are no more.
        failed, *others = await asyncio.gather(*[one.catch_up() for _ in range(50)], return_exceptions=True)
        await first
        assert isinstance(failed, StoreUnavailable)
        assert not any(others)
        assert one._topology.directory.find("/", "orders") is not None
        assert reads <= 4


@in_a_loop
async def test_nothing_is_remembered_of_changes_that_everybody_knows() -> None:
    async with two_members() as (one, two):
        define(two, "theirs")
        define(one, "mine")
        await asyncio.gather(one._broker.journal.flush(), two._broker.journal.flush())
        # One that the store has refused will not come back.
        one._feed._changed_here(DefinitionDeleted("topic", "refused"))
        await one.catch_up()
        define(two, "again")
        await two._broker.journal.flush()
        await one.catch_up()
        assert not one._feed._local_changes._under_way
