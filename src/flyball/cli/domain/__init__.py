"""`flyball domain ...`: the nodes that share one store, and what they have together."""

from flyball.cli.domain.commands import app

__all__ = ["app"]
