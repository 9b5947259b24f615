"""What the routes of the console are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.routing import BaseRoute

from flyball.broker.management.everywhere import Everywhere
from flyball.broker.management.login import ConsoleLogin
from flyball.broker.management.sampling import Sampler
from flyball.broker.node.node import Node


@dataclass(frozen=True, slots=True)
class ConsoleContext:
    """A node, what is known of its past, who asks the others, and who guards it all."""

    node: Node
    sampler: Sampler
    everywhere: Everywhere
    login: ConsoleLogin
    on_stop: list[Callable[[], None]] = field(default_factory=list)
    """Called when the node stops, before requests that are under way have to end."""

    @property
    def name(self) -> str:
        """The node's name in its domain."""
        return self.node.hub.peering.name


RouteFactory = Callable[[ConsoleContext], Sequence[BaseRoute]]
