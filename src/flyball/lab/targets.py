"""Systems under load in experiments: brokers and sites that the lab starts, or servers that already run.

Starts and stops them and reads their resource usage; independent of the clients' work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from flyball.errors import LabError
from flyball.lab.experiment import TargetPart
from flyball.lab.peer import Event, Peer

START_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a node has used since it started."""

    cpu_s: float
    store_cpu_s: float
    peak_bytes: int


class Node:
    """One server that clients connect to."""

    def __init__(self, name: str, host: str, ports: dict[str, int], version: str = "") -> None:
        self.name = name
        self.host = host
        # By protocol; a foreign server has one port, under every name.
        self.ports = ports
        self.version = version
        # The experiment's settings for it.
        self.settings: Mapping[str, object] = {}
        # Options of the clustered queue that it shares with others; None without one.
        self.cluster: Mapping[str, object] | None = None

    def target(self, protocol: str, user: str, password: str) -> dict[str, object]:
        """Return its description for workers."""
        if protocol not in self.ports:
            raise LabError(f"{self.name} does not speak {protocol}, only {', '.join(self.ports)}")
        place = {"name": self.name, "host": self.host, "port": self.ports[protocol]}
        more = {"ports": self.ports, "cluster": self.cluster}
        return {**place, "user": user, "password": password, "settings": self.settings, **more}

    async def usage(self) -> Usage | None:
        """Return its resource usage, None if that is unknown."""
        return None


class OwnNode(Node):
    """A node that the lab has started."""

    def __init__(
        self,
        peer: Peer,
        part: TargetPart,
        listens_on: str,
        address: str,
        extra: Mapping[str, object] | None = None,
        store: str | None = None,
    ) -> None:
        """Prepare the node described by `part`; `extra` settings are defaults, `store` overrides the part's."""
        super().__init__(peer.name, address, {})
        self._store = part.store if store is None else store
        self.cluster = part.cluster if part.kind == "domain" else None
        self.peer = peer
        self._extra = extra or {}
        self._part = part
        self.settings = part.settings
        self._listens_on = listens_on
        self._is_ready = asyncio.Event()
        self._usages: asyncio.Queue[Usage] = asyncio.Queue()

    async def start(self) -> None:
        """Send it its assignment; it serves on return. Requires a task that listens to the peer."""
        self.peer.expect_news(START_LIMIT_S)
        await self.peer.send(
            {
                "kind": self._part.kind,
                "name": self.name,
                "listens_on": self._listens_on,
                "store": self._store,
                "settings": self._settings(),
            }
        )
        await self._is_ready.wait()
        self.peer.expect_news(None)

    def _settings(self) -> dict[str, object]:
        if self._part.kind in ("flyball", "domain") and self._listens_on != "127.0.0.1":
            # guest may connect from other machines too: all clients belong to this experiment.
            return {"loopback_users": "none", **self._extra, **self._part.settings}
        return {**self._extra, **self._part.settings}

    def handle(self, event: Event) -> None:
        """Process an event of its process."""
        if event["event"] == "ready":
            self.version = event["version"]
            self.ports = {protocol: port for protocol, (_, port) in event["addresses"].items()}
            self._is_ready.set()
        elif event["event"] == "usage":
            self._usages.put_nowait(Usage(event["cpu_s"], event["store_cpu_s"], event["peak_bytes"]))

    async def usage(self) -> Usage:
        await self.peer.send({"command": "usage"})
        return await self._usages.get()

    async def stop(self) -> None:
        """Stop it gracefully, so that its traces are complete."""
        await self.peer.end()


class OwnStore:
    """The store of a domain, started by the lab."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        # Its address for nodes, once it is started.
        self.url = ""
        self._is_ready = asyncio.Event()

    async def start(self) -> None:
        """Start it; it accepts connections on return. Requires a task that listens to the peer."""
        self.peer.expect_news(START_LIMIT_S)
        await self.peer.send({"kind": "store", "name": self.peer.name})
        await self._is_ready.wait()
        self.peer.expect_news(None)

    def handle(self, event: Event) -> None:
        """Process an event of its process."""
        if event["event"] == "ready":
            self.url = event["store"]
            self._is_ready.set()


def foreign_nodes(part: TargetPart) -> list[Node]:
    """Return the servers that already run."""
    nodes = []
    for number, address in enumerate(part.addresses, 1):
        host, _, port = address.rpartition(":")
        ports = dict.fromkeys(("thorbang", "telesto", "amqp", "http"), int(port))
        nodes.append(Node(f"target-{number}", host.strip("[]"), ports))
    return nodes
