"""`flyball domain`: nodes that share one store, and their common objects."""

from flyball.cli.domain.commands import app

__all__ = ["app"]
