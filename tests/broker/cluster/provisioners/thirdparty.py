"""A provisioner as a third party might have written it."""

from __future__ import annotations

from flyball.broker.cluster.provisioners import Surroundings


class Notebook:
    """Writes down what it should start."""

    def __init__(self, surroundings: Surroundings, *, zone: str = "a") -> None:
        self.zone = zone
        self.running: set[str] = set()

    async def start(self, name: str) -> str:
        if name == "none":
            return None  # type: ignore[return-value]
        self.running.add(name)
        return name

    async def stop(self, handle: str) -> None:
        self.running.remove(handle)

    async def alive(self, handle: str) -> bool:
        return handle in self.running


class Halfway:
    """Forgot how to stop."""

    def __init__(self, surroundings: Surroundings) -> None:
        pass

    async def start(self, name: str) -> str:
        return name


class Broken:
    def __init__(self, surroundings: Surroundings) -> None:
        raise OSError("no cloud")


NO_CLASS = 7
