"""The interface of a provisioner, and the context that it gets from the node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import ConfigDict, validate_call

from flyball.errors import ClusterError

# For the `__init__` of a provisioner: options come from a file and may have any type.
checked_options = validate_call(config=ConfigDict(arbitrary_types_allowed=True, strict=True))


class Provisioner(Protocol):
    """Starts and stops nodes. All methods raise ClusterError with a one-line message that names where to look."""

    async def start(self, name: str) -> str:
        """Start a node of that name in the domain, and return a handle.

        The handle is stored in the registry: another node, or this one after a restart, may call `stop` and `alive`
        with it.
        """
        ...

    async def stop(self, handle: str) -> None:
        """End the node: no process of it is left on return.

        May fail for a node that has already exited; `alive` is called then.
        """
        ...

    async def alive(self, handle: str) -> bool:
        """Return whether the node runs. Raises ClusterError if that cannot be determined from here."""
        ...


@dataclass(slots=True, frozen=True)
class Surroundings:
    """Settings that new nodes share with the one that starts them."""

    # URL of the domain's PostgreSQL. May contain a password.
    store_url: str = field(repr=False)
    # Data folder of the node that starts others.
    data: Path
    # Flags of `flyball serve` that must be equal on all nodes of a domain.
    flags: tuple[str, ...] = ()


def check_node_name(name: str) -> None:
    """Raise ClusterError for an invalid node name. It becomes part of paths and commands."""
    # A leading dot or dash would name a hidden file, a parent folder or an option.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", name):
        raise ClusterError(f"invalid node name {name!r}: use up to 63 letters, digits, dots, dashes and underscores")
