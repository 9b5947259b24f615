"""The lab's interface to a domain of nodes: its clustered queue, places for clients, and its final state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from flyball.broker.cluster.gateway import PlacementRequest
from flyball.broker.cluster.placer import HttpPlacer
from flyball.broker.settings import Address
from flyball.client.http import AWAY, Line, Place, path_of, reason_of
from flyball.errors import ClusterError, LabError, RequestError
from flyball.lab.drivers.session import Target

# Time for all members of a clustered queue to join.
READY_LIMIT_S = 30.0
PLACE_TRIES = 20
LOOK_S = 0.1
WATCH_S = 1.0
LONGEST_ANSWER_BYTES = 16 * 2**20


async def create_cluster(targets: Sequence[Target], name: str) -> None:
    """Create a clustered queue with a member on each of the nodes, and wait until all know it. Raises LabError."""
    nodes = [target.name for target in targets]
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            with contextlib.ExitStack() as opened:
                lines = [opened.enter_context(contextlib.closing(_line(target))) for target in targets]
                for line in lines:
                    await _until(line, lambda facts: set(nodes) <= _nodes_up(facts))
                wanted = {"name": name, "options": targets[0].cluster or {}, "members": nodes}
                await lines[0].ask("POST", path_of("flyball", "domain", "commands", "cluster.create"), wanted)
                for line in lines:
                    await _until(line, lambda facts: _member_count(facts, name) >= len(nodes))
    except TimeoutError:
        raise LabError(f"the members of {name} are not there after {READY_LIMIT_S:.0f} s") from None
    except AWAY as error:
        raise LabError(f"cannot create the clustered queue: {reason_of(error)}") from error


async def placed(targets: Sequence[Target], queue_name: str, role: str) -> Target:
    """Return the node that the domain chooses for a client. Raises LabError."""
    first = targets[0]
    placer = HttpPlacer([Address(target.host, target.ports["http"]) for target in targets])
    wish = PlacementRequest(queue_name, role, first.vhost, first.user, first.password.encode())
    problem: Exception | None = None
    for _ in range(PLACE_TRIES):
        try:
            found = await placer.place(wish)
        except ClusterError as error:
            problem = error
            await asyncio.sleep(LOOK_S)
        except RequestError as error:
            raise LabError(f"a {role} of {queue_name} is not placed: {error}") from error
        else:
            return first.model_copy(
                update={"name": found.node, "host": found.address.host, "port": found.address.port}
            )
    raise LabError(f"a {role} of {queue_name} is not placed: {problem}")


class DomainWatch:
    """Polls a domain while clients use it: the members of its queue, and the messages that they exchange."""

    def __init__(self, target: Target) -> None:
        """Poll through one node, which must be up all the time."""
        self._target = target
        self._began_s = time.monotonic()
        self._members: list[tuple[float, int]] = []
        # Messages handed over to other members, by node name.
        self._given: dict[str, int] = {}

    async def run(self) -> None:
        """Poll until cancelled. Raises LabError."""
        while True:
            await self._look()
            await asyncio.sleep(WATCH_S)

    async def found(self) -> dict[str, Any]:
        """Read the state once more, and return the domain's entry in run.json. Raises LabError."""
        await self._look()
        return {
            "nodes": max(count for _, count in self._members),
            "transfers": sum(self._given.values()),
            "members_over_time": self._members,
        }

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                with contextlib.closing(_line(self._target)) as line:
                    facts = await _facts(line)
        except AWAY as error:
            raise LabError(f"the domain does not report its state: {reason_of(error)}") from error
        members = [member for cluster in facts["clusters"] for member in cluster["members"]]
        self._members.append((round(time.monotonic() - self._began_s, 1), len(members)))
        for member in members:
            self._given[member["node"]] = max(member["given"], self._given.get(member["node"], 0))


def _line(target: Target) -> Line:
    user, password = quote(target.user, safe=""), quote(target.password, safe="")
    place = Place(f"http://{user}:{password}@{Address(target.host, target.ports['http'])}")
    return Line(place, longest_answer_bytes=LONGEST_ANSWER_BYTES)


async def _facts(line: Line) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = await line.get(path_of("flyball", "domain"))
    return facts


async def _until(line: Line, condition: Callable[[Mapping[str, Any]], bool]) -> None:
    # The domain has no event for reaching the wanted state.
    while not condition(await _facts(line)):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)


def _nodes_up(facts: Mapping[str, Any]) -> set[str]:
    """Return the nodes that serve and are reachable by others; empty while they have no leader."""
    up = {node["name"] for node in facts["nodes"] if node["state"] == "up" and "link" in node["addresses"]}
    return up if facts["leader"] else set()


def _member_count(facts: Mapping[str, Any], name: str) -> int:
    return sum(len(cluster["members"]) for cluster in facts["clusters"] if cluster["name"] == name)
