"""What the lab asks of a domain of nodes: a clustered queue, places for clients, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from flyball.client import Client
from flyball.cluster.asking import HttpPlacer
from flyball.cluster.gateway import Wish
from flyball.errors import ClusterError, FlyballError, LabError, RequestError
from flyball.lab.drivers.session import Target
from flyball.server.settings import Address

READY_LIMIT_S = 30.0
"""All members of a clustered queue are there by then."""
PLACE_TRIES = 20
LOOK_S = 0.1


async def create_cluster(target: Target, name: str, nodes: Sequence[str]) -> None:
    """Create a clustered queue with a member on each of the nodes; on return they are there. Raises LabError."""
    try:
        async with Client.connect(_address(target, "telesto")) as client:
            await client.manage("domain.cluster.create", name=name, options=target.cluster or {}, members=list(nodes))
            async with asyncio.timeout(READY_LIMIT_S):
                # Nothing tells when they are.
                while _member_count(await client.manage("domain.show"), name) < len(nodes):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise LabError(f"the members of {name} are not there after {READY_LIMIT_S:.0f} s") from None
    except FlyballError as error:
        raise LabError(f"cannot create the clustered queue: {error}") from error


async def placed(targets: Sequence[Target], queue_name: str, role: str) -> Target:
    """Return where the domain wants a client to go. Raises LabError."""
    first = targets[0]
    placer = HttpPlacer([Address(target.host, target.ports["http"]) for target in targets])
    wish = Wish(queue_name, role, first.vhost, first.user, first.password.encode())
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


async def domain_facts(target: Target) -> dict[str, Any]:
    """Return what a domain says of itself, as `flyball domain show` would. Raises LabError."""
    try:
        async with Client.connect(_address(target, "telesto")) as client:
            facts: dict[str, Any] = await client.manage("domain.show")
            return facts
    except FlyballError as error:
        raise LabError(f"the domain does not tell how it is: {error}") from error


def _member_count(facts: Mapping[str, Any], name: str) -> int:
    return sum(len(cluster["members"]) for cluster in facts["clusters"] if cluster["name"] == name)


def _address(target: Target, protocol: str) -> str:
    return str(Address(target.host, target.ports[protocol]))
