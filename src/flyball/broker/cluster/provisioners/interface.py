"""What a provisioner promises, and what it is told of the node that asks it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import ConfigDict, validate_call

from flyball.errors import ClusterError

# For the `__init__` of a provisioner: options come from a file, and may be of any type.
checked_options = validate_call(config=ConfigDict(arbitrary_types_allowed=True, strict=True))


class Provisioner(Protocol):
    """Starts and stops nodes. All methods raise ClusterError, in one line that says what to look at."""

    async def start(self, name: str) -> str:
        """Start a node of that name in the domain, and return a handle.

        The handle is kept in the registry: `stop` and `alive` may be called with it by another node and after a
        restart of this one.
        """
        ...

    async def stop(self, handle: str) -> None:
        """End the node: nothing of it runs on return.

        It may fail for one that has ended by itself: whether that is so is asked of `alive` then.
        """
        ...

    async def alive(self, handle: str) -> bool:
        """Tell whether the node runs. Raises ClusterError if that cannot be found out from here."""
        ...


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What new nodes share with the one that starts them."""

    # The PostgreSQL of the domain. May hold a password.
    store_url: str = field(repr=False)
    # The folder of the node that starts others.
    data: Path
    # What all nodes of a domain must be told alike, as flags of `flyball serve`.
    flags: tuple[str, ...] = ()


def check_node_name(name: str) -> None:
    """Raise ClusterError unless a node can have that name. It becomes part of paths and commands."""
    # A leading dot or dash would be a hidden or parent folder, or an option.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", name):
        raise ClusterError(
            f"{name!r} is no name for a node: take up to 63 letters, digits, dots, dashes and underscores"
        )
