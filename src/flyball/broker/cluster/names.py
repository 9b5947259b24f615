"""How things of a domain are called: by keys in definitions and decisions, and in texts that people read.

Pure, and imports nothing of the domain.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

from flyball.model import DEFAULT_VHOST


def cluster_key(vhost: str, name: str) -> str:
    """Return a text for a clustered queue or topic, whatever characters are in its names."""
    return json.dumps([vhost, name], ensure_ascii=False)


def split_key(key: str) -> tuple[str, str]:
    """Return the virtual host and the name that a key was made of."""
    vhost, name = json.loads(key)
    return vhost, name


def title(key: str) -> str:
    """Return how a person calls a clustered queue."""
    return titled(*split_key(key))


def titled(vhost: str, name: str) -> str:
    """Return how a person calls something of a virtual host."""
    return name if vhost == DEFAULT_VHOST else f"{name} in {vhost}"


def valued(value: object) -> str:
    """Return an option as a person would write it."""
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def suggestion(name: str, names: Sequence[str]) -> str:
    """Return the end of a sentence about a name that does not exist: one that is written alike, or all there are."""
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f", did you mean {close[0]!r}?"
    return f"; there are {', '.join(names)}" if names else ""
