"""Commands that a node carries out for itself, as those of another node: to the end, even if no caller waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flyball.broker.cluster.agent import Agent
from flyball.broker.cluster.jobs import Jobs
from flyball.broker.core.supervisor import Supervisor
from flyball.errors import ClusterError
from flyball.faults import Faults
from tests.broker.core.test_broker import in_a_loop


class Moving:
    """A command that waits in the middle, as for a consumer's acks."""

    def __init__(self, end: Callable[[], bool] = lambda: True) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_ended = asyncio.Event()
        self._end = end

    async def __call__(self, session_id: str) -> bool:
        self.has_begun.set()
        await self.may_end.wait()
        self.has_ended.set()
        return self._end()


@contextlib.asynccontextmanager
async def agent_with(move: Callable[..., Awaitable[Any]]) -> AsyncIterator[tuple[Agent, Supervisor]]:
    """Run the agent of node 1, whose only command is a move."""
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(tasks, Faults())
        engine = SimpleNamespace(queues=())
        hub = SimpleNamespace(broker=SimpleNamespace(engine=engine), spawn=supervisor.spawn)
        node: Any = SimpleNamespace(
            hub=hub,
            peers=SimpleNamespace(commands={}),
            membership=SimpleNamespace(node_id=1, on_nodes=[], report_with=lambda report: None),
            definitions=None,
            topology=SimpleNamespace(directory=None),
            models=None,
        )
        agent = Agent(node, asyncio.Event())
        node.peers.commands["session.move"] = move
        yield agent, supervisor


@in_a_loop
async def test_move_on_the_node_of_a_leader_that_stands_down_is_finished() -> None:
    move = Moving()
    async with agent_with(move) as (agent, supervisor):
        async with asyncio.TaskGroup() as tasks:
            jobs = Jobs(tasks, Faults())
            jobs.spawn("move", lambda: agent.ask(1, "session.move", session_id="s"))
            await move.has_begun.wait()
            jobs.cancel()
        move.may_end.set()
        async with asyncio.timeout(5):
            await move.has_ended.wait()
    assert supervisor.faults.count == 0


@in_a_loop
async def test_answer_and_error_of_a_command_reach_its_caller() -> None:
    def refuse() -> bool:
        raise ClusterError("no such session")

    move = Moving()
    move.may_end.set()
    async with agent_with(move) as (agent, supervisor):
        assert await agent.ask(1, "session.move", session_id="s") is True
    move = Moving(refuse)
    move.may_end.set()
    async with agent_with(move) as (agent, supervisor):
        with pytest.raises(ClusterError, match="no such session"):
            await agent.ask(1, "session.move", session_id="s")
    assert supervisor.faults.count == 0


@pytest.mark.parametrize(("error", "faults"), [(ClusterError("no such session"), 0), (KeyError("session"), 1)])
def test_error_after_the_caller_has_gone_is_logged(
    error: Exception, faults: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise error

    async def test() -> None:
        move = Moving(fail)
        async with agent_with(move) as (agent, supervisor):
            asking = asyncio.ensure_future(agent.ask(1, "session.move", session_id="s"))
            await move.has_begun.wait()
            asking.cancel()
            await asyncio.wait([asking])
            move.may_end.set()
        assert supervisor.faults.count == faults

    with caplog.at_level(logging.INFO):
        in_a_loop(test)()
    assert len(caplog.messages) == 1


@in_a_loop
async def test_caller_hears_that_the_node_stops() -> None:
    move = Moving()
    async with agent_with(move) as (agent, supervisor):
        asking = asyncio.ensure_future(agent.ask(1, "session.move", session_id="s"))
        await move.has_begun.wait()
        supervisor.cancel()
        with pytest.raises(ClusterError, match="the node is stopping"):
            await asking
    with pytest.raises(ClusterError, match="the node is stopping"):
        await agent.ask(1, "session.move", session_id="s")
