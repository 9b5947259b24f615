"""Name patterns of permissions and policies: regular expressions, not anchored.

RE2 matches any pattern in time linear in the name. Python's `re` takes hours for some patterns and would block the
node. Names and patterns are also checked here for characters that the store cannot represent.
"""

from __future__ import annotations

from typing import Any, Final

import re2

from flyball.errors import InvalidName, InvalidPattern
from flyball.model import MAX_NAME_LENGTH

MAX_PATTERN_LENGTH = 1024

# RE2's memory limit per pattern. Any literal pattern of 1,024 characters fits; the slowest pattern that fits needs
# about 0.2 ms for a name of 255 bytes.
MAX_PATTERN_BYTES: Final = 128 * 1024


class NamePattern:
    """A compiled pattern."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        # Most permissions are `.*`: skip RE2.
        self._fits_all: bool = compiled is not None and compiled.pattern in ("", ".*")

    def fits(self, name: str) -> bool:
        """Whether the pattern matches anywhere in the name."""
        if self._fits_all:
            return True
        if self._compiled is None:
            return False
        # Clients may send a lone surrogate; it counts as a character.
        return self._compiled.search(name.encode("utf-8", "surrogatepass")) is not None


def compile_pattern(pattern: str, ignores_case: bool = False) -> NamePattern:
    """Compile a pattern. Raises InvalidPattern."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidPattern(f"{pattern[:40]}...", f"{len(pattern)} characters exceed {MAX_PATTERN_LENGTH}")
    problem = unstorable(pattern)
    if problem:
        raise InvalidPattern(pattern, problem)
    options = re2.Options()
    options.max_mem = MAX_PATTERN_BYTES
    options.case_sensitive = not ignores_case
    # Groups are not used; without captures a match is twice as fast.
    options.never_capture = True
    # RE2 would write to standard error.
    options.log_errors = False
    try:
        return NamePattern(re2.compile(pattern, options))
    except re2.error as error:
        raise InvalidPattern(pattern, _reason(error)) from error


def never_fits() -> NamePattern:
    """Return a pattern that matches no name, to replace a stored pattern that does not compile."""
    return NamePattern(None)


def _reason(error: Exception) -> str:
    """Return RE2's message, which is in bytes."""
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return f"{text}; patterns are RE2's, which has no lookaround and no backreferences"


def check_name(what: str, name: str) -> None:
    """Raise InvalidName unless the name (of a user, virtual host, ...) is valid."""
    if not name:
        raise InvalidName(f"the name of a {what} cannot be empty")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"the name of a {what} has {len(name)} characters, the maximum is {MAX_NAME_LENGTH}")
    problem = unstorable(name)
    if problem:
        raise InvalidName(f"{name!r} is not a valid {what} name: {problem}")


def unstorable(text: str) -> str:
    """Return the reason why a text cannot be stored, or an empty string."""
    if "\0" in text:
        return "it contains a null character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it contains a lone surrogate"
    return ""
