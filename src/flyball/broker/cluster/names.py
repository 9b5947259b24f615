"""Names of objects in a domain: keys in definitions and decisions, and titles for users.

Pure; imports nothing of the domain.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

from flyball.model import DEFAULT_VHOST


def cluster_key(vhost: str, name: str) -> str:
    """Return the key of a clustered queue or topic; unambiguous for any characters in the names."""
    return json.dumps([vhost, name], ensure_ascii=False)


def split_key(key: str) -> tuple[str, str]:
    """Return the vhost and name that a key was made from."""
    vhost, name = json.loads(key)
    return vhost, name


def title(key: str) -> str:
    """Return the title of a clustered queue for users."""
    return titled(*split_key(key))


def titled(vhost: str, name: str) -> str:
    """Return the title of an object in a vhost for users."""
    return name if vhost == DEFAULT_VHOST else f"{name} in {vhost}"


def valued(value: object) -> str:
    """Format an option's value for users."""
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def suggestion(name: str, names: Sequence[str]) -> str:
    """Return the end of an error about an unknown name: a similar name, or all names."""
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f", did you mean {close[0]!r}?"
    return f"; available: {', '.join(names)}" if names else ""
