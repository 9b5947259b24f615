"""Rounds of requests to the other nodes: which callers wait for which round, and the timeout."""

from __future__ import annotations

import asyncio

from flyball.broker.peering.link.followers import CATCH_UP, Followers
from tests.broker.peering.link.domains import DomainNode, domain, run


class Slow:
    """A node that answers when it may, and counts how often it was asked."""

    def __init__(self, node: DomainNode) -> None:
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self.may_answer = asyncio.Semaphore(0)
        node.peers.commands[CATCH_UP] = self._catch_up

    async def _catch_up(self) -> None:
        self.asked.put_nowait(None)
        await self.may_answer.acquire()


def test_a_change_is_answered_when_all_others_have_followed() -> None:
    async def test() -> None:
        async with domain(3) as made:
            one, two = Slow(made.nodes[1]), Slow(made.nodes[2])
            waiting = asyncio.ensure_future(Followers(made.nodes[0].peers, lambda: [2, 3]).followed())
            await asyncio.gather(one.asked.get(), two.asked.get())
            one.may_answer.release()
            assert await made.nodes[0].peers.request(2, "flush", {}) is None
            assert not waiting.done()
            two.may_answer.release()
            await waiting

    run(test())


def test_changes_that_come_while_others_are_asked_share_the_next_round() -> None:
    async def test() -> None:
        async with domain() as made:
            other = Slow(made.nodes[1])
            followers = Followers(made.nodes[0].peers, lambda: [2])
            first = asyncio.ensure_future(followers.followed())
            await other.asked.get()
            later = [asyncio.ensure_future(followers.followed()) for _ in range(100)]
            await asyncio.sleep(0)
            other.may_answer.release()
            await first
            assert not any(waiting.done() for waiting in later)
            other.may_answer.release()
            await asyncio.gather(*later)
            assert other.asked.qsize() == 1

    run(test())


def test_a_node_that_does_not_answer_is_waited_for_no_longer_than_the_limit() -> None:
    async def test() -> None:
        async with domain() as made:
            other = Slow(made.nodes[1])
            await Followers(made.nodes[0].peers, lambda: [2], time_limit_s=0.01).followed()
            assert other.asked.qsize() <= 1
            other.may_answer.release()

    run(test())


def test_nobody_waits_for_nodes_that_are_dead_or_not_known() -> None:
    async def test() -> None:
        async with domain() as made:
            Slow(made.nodes[1])
            made.kill(made.nodes[1])
            await Followers(made.nodes[0].peers, lambda: [2, 3], time_limit_s=3600.0).followed()

    run(test())
