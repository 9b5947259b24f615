"""Errors that cross a link: told by the name of their class, and the same class again on the other side."""

from __future__ import annotations

from flyball import errors
from flyball.errors import ClusterError, FlyballError

_KINDS: dict[str, type[FlyballError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FlyballError)
}
# That the other node has lost somebody is not that this one has lost the other.
del _KINDS["PeerLost"]


def failure_fields(error: FlyballError) -> tuple[str, str]:
    """Return kind and text of an error, as they go over the link."""
    return type(error).__name__, str(error)


def raised_elsewhere(kind: str, text: str) -> FlyballError:
    """Return an error like the one that the other node has told of; its fields are not known here."""
    found = _KINDS.get(kind, ClusterError)
    error = found.__new__(found, text)
    Exception.__init__(error, text)
    return error
