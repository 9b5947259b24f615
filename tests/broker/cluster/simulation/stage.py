"""A simulated domain without faults and clients of its own, for tests that say what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.broker.cluster.simulation.loop import VirtualLoop, run
from tests.broker.cluster.simulation.world import LEASE_S, SimulatedNode, World

LIMIT_S = 60.0

Scenario = Callable[["Stage"], Coroutine[Any, Any, None]]


class Stage:
    """Nodes that have joined, one of which leads."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def leading(self) -> SimulatedNode:
        """The node that leads."""
        (found,) = [node for node in self.world.serving() if node.agent is not None and node.agent.leads]
        return found

    @property
    def following(self) -> list[SimulatedNode]:
        """The other nodes that serve."""
        leading = self.leading
        return [node for node in self.world.serving() if node is not leading]

    def do(self, node: SimulatedNode, command: str, /, **arguments: Any) -> asyncio.Task[Any]:
        """Have a command of the domain carried out, as an administrator of the node would."""
        assert node.node is not None
        manage = node.node.hub.commands[command]

        async def carry_out() -> Any:
            return await manage(**arguments)

        return node.process.start(carry_out())

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        assert await self.world.until(condition, LIMIT_S, what), self.world.events

    def is_known(self) -> bool:
        """Whether there is a leader, and all nodes know which."""
        agents = [node.agent for node in self.world.serving() if node.agent is not None]
        leaders = {agent.leader.name if agent.leader is not None else "" for agent in agents}
        return sum(agent.leads for agent in agents) == len(leaders) == 1 and "" not in leaders


def on_stage(*names: str, lease_s: float = LEASE_S) -> Callable[[Scenario], Callable[[], None]]:
    """Run a test with these nodes, in simulated time. At its end nothing must be amiss."""

    def decorate(scenario: Scenario) -> Callable[[], None]:
        async def main(loop: VirtualLoop) -> None:
            world = World(loop, seed=1, lease_s=lease_s)
            stage = Stage(world)
            for name in names:
                world.launch(name)
            await stage.until(lambda: len(world.serving()) == len(names) and stage.is_known(), "the nodes join")
            await scenario(stage)
            await world.end()
            assert [*world.violations, *loop.failures] == []

        def test() -> None:
            run(main, seed=1)

        test.__name__ = scenario.__name__
        return test

    return decorate
