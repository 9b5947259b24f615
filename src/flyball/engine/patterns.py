"""Patterns of names, as administrators write them: regular expressions that fit anywhere in a name.

The texts that reach the store are checked here too. Knows no user and no policy.
"""

from __future__ import annotations

import re
import warnings

from flyball.errors import InvalidName, InvalidPattern
from flyball.model import MAX_NAME_LENGTH

MAX_PATTERN_LENGTH = 1024


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern, ready to `search` names with. Raises InvalidPattern."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidPattern(f"{pattern[:40]}...", f"{len(pattern)} characters are more than {MAX_PATTERN_LENGTH}")
    problem = unstorable(pattern)
    if problem:
        raise InvalidPattern(pattern, problem)
    try:
        with warnings.catch_warnings():
            # [[:alpha:]] is a class of characters to others and would silently be something else here.
            warnings.simplefilter("error", FutureWarning)
            return re.compile(pattern)
    except (re.error, FutureWarning, RecursionError, OverflowError) as error:
        raise InvalidPattern(pattern, str(error)) from error


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
