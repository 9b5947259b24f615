"""Errors on a link: sent as the name of their class, and raised as the same class on the other side."""

from __future__ import annotations

from flyball import errors
from flyball.errors import ClusterError, FlyballError

_KINDS: dict[str, type[FlyballError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FlyballError)
}
# A peer that the other node lost may still be reachable from this one.
del _KINDS["PeerLost"]


def failure_fields(error: FlyballError) -> tuple[str, str]:
    """Return the kind and text of an error for a frame."""
    return type(error).__name__, str(error)


def raised_elsewhere(kind: str, text: str) -> FlyballError:
    """Return an error received from another node. Its other fields are not sent."""
    found = _KINDS.get(kind, ClusterError)
    error = found.__new__(found, text)
    Exception.__init__(error, text)
    return error
