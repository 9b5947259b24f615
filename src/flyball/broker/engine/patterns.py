"""Patterns of names, as administrators write them: regular expressions that fit anywhere in a name.

They are matched by RE2, in time proportional to the name whatever the pattern: Python's `re` needs hours for some,
and would stop the node. The texts that reach the store are checked here too. Knows no user and no policy.
"""

from __future__ import annotations

from typing import Any, Final

import re2

from flyball.errors import InvalidName, InvalidPattern
from flyball.model import MAX_NAME_LENGTH

MAX_PATTERN_LENGTH = 1024

# Bytes that RE2 may use for one pattern. Any literal pattern of 1,024 characters fits; the worst pattern that does
# needs about 0.2 ms for a name of 255 bytes.
MAX_PATTERN_BYTES: Final = 128 * 1024


class NamePattern:
    """A pattern, ready to be compared with names."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        # Most permissions are `.*`, which needs no engine.
        self._fits_all: bool = compiled is not None and compiled.pattern in ("", ".*")

    def fits(self, name: str) -> bool:
        """Whether the pattern fits anywhere in the name."""
        if self._fits_all:
            return True
        if self._compiled is None:
            return False
        # Half a character, which a client may have sent, counts as one.
        return self._compiled.search(name.encode("utf-8", "surrogatepass")) is not None


def compile_pattern(pattern: str, ignores_case: bool = False) -> NamePattern:
    """Return the pattern, ready to be compared with names. Raises InvalidPattern."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidPattern(f"{pattern[:40]}...", f"{len(pattern)} characters are more than {MAX_PATTERN_LENGTH}")
    problem = unstorable(pattern)
    if problem:
        raise InvalidPattern(pattern, problem)
    options = re2.Options()
    options.max_mem = MAX_PATTERN_BYTES
    options.case_sensitive = not ignores_case
    # Nobody asks what the groups fit; not looking for it is twice as fast.
    options.never_capture = True
    # Otherwise it writes to standard error itself.
    options.log_errors = False
    try:
        return NamePattern(re2.compile(pattern, options))
    except re2.error as error:
        raise InvalidPattern(pattern, _reason(error)) from error


def never_fits() -> NamePattern:
    """Return what stands for a stored pattern that cannot be compiled: it fits no name."""
    return NamePattern(None)


def _reason(error: Exception) -> str:
    """Return what RE2 says; it speaks in bytes."""
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return f"{text}; patterns are RE2's, which has no lookaround and no backreferences"


def check_name(what: str, name: str) -> None:
    """Raise InvalidName unless the name of a user, a virtual host ... can be kept."""
    if not name:
        raise InvalidName(f"the name of a {what} cannot be empty")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"the name of a {what} cannot have {len(name)} characters: at most {MAX_NAME_LENGTH}")
    problem = unstorable(name)
    if problem:
        raise InvalidName(f"{name!r} is no name of a {what}: {problem}")


def unstorable(text: str) -> str:
    """Return why a text cannot be kept, or nothing."""
    if "\0" in text:
        return "it holds a zero character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it holds half a character"
    return ""
