"""How soon others serve what a node has served that is gone: in simulated time, with the lease that is the default.

Real processes do the same in tests/broker/cluster/ends/test_repair.py, as fast as the machine can.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from flyball.broker.settings import ServeSettings
from flyball.client import Client
from flyball.errors import FlyballError
from tests.broker.cluster.simulation.stage import Stage, on_stage
from tests.broker.cluster.simulation.world import SimulatedNode

LEASE_S: float = ServeSettings.model_fields["lease_s"].default
# By then others serve everything.
REPAIR_S = 10.0
MESSAGES = 50


def address_of(node: SimulatedNode) -> str:
    assert node.node is not None
    return str(node.node.addresses["amqp"])


async def fill(node: SimulatedNode, *queues: str) -> None:
    async with Client.connect(address_of(node)) as client:
        for queue in queues:
            for number in range(MESSAGES):
                await client.put(queue, f"producer {number}")


async def drain(node: SimulatedNode, queue: str) -> None:
    """Take everything that is in a queue, through a node that may have to wait for another one to serve it."""
    found: set[str] = set()
    async with Client.connect(address_of(node)) as client:
        while len(found) < MESSAGES:
            with contextlib.suppress(FlyballError):
                message = await client.take(queue, wait_s=0.5)
                if message is not None:
                    found.add(message.text)


async def repaired_s(stage: Stage, lost: SimulatedNode, lose: Callable[[], None]) -> float:
    """Lose a node; return how long it takes until its messages come from another one, in all queues."""
    other = next(node for node in stage.world.serving() if node is not lost)
    await stage.do(stage.leading, "domain.cluster.create", name="shared", members=[lost.name, other.name])

    async def declare() -> None:
        async with Client.connect(address_of(lost)) as client:
            await client.create_queue("plain")

    user = stage.world.user
    await user.start(declare())
    await user.start(fill(lost, "plain", "shared"))
    began_s = stage.world.loop.time()
    lose()
    async with asyncio.timeout(6 * REPAIR_S):
        await asyncio.gather(*(user.start(drain(other, queue)) for queue in ("plain", "shared")))
    return stage.world.loop.time() - began_s


@on_stage("a", "b", "c", lease_s=LEASE_S)
async def test_others_serve_in_time_when_a_node_is_killed(stage: Stage) -> None:
    lost = stage.following[0]
    assert LEASE_S / 2 < await repaired_s(stage, lost, lost.kill) < REPAIR_S


@on_stage("a", "b", lease_s=LEASE_S)
async def test_the_other_one_serves_in_time_when_the_leader_is_killed(stage: Stage) -> None:
    assert await repaired_s(stage, stage.leading, stage.leading.kill) < REPAIR_S


@on_stage("a", "b", "c", lease_s=LEASE_S)
async def test_others_serve_in_time_when_a_node_stands_still(stage: Stage) -> None:
    lost = stage.following[0]
    assert await repaired_s(stage, lost, lost.process.freeze) < REPAIR_S
    lost.process.thaw()
    await stage.until(lambda: lost.is_serving, "rejoining with a new epoch")


@on_stage("a", "b", "c", lease_s=LEASE_S)
async def test_others_serve_in_time_when_a_node_is_cut_off_from_its_store(stage: Stage) -> None:
    lost = stage.following[0]

    def connect(is_connected: bool) -> None:
        lost.is_cut_off = not is_connected
        lost.connect_store()

    assert await repaired_s(stage, lost, lambda: connect(False)) < REPAIR_S
    connect(True)
    await stage.until(lambda: lost.is_serving, "rejoining with a new epoch")
