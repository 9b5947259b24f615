"""Reads expressions of PromQL, as far as dashboards need it, and returns which metrics and labels they use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

FUNCTIONS = {"rate", "increase", "histogram_quantile"}
AGGREGATIONS = {"sum", "min", "max", "avg", "count"}
OPERATORS = {"+", "-", "*", "/"}

TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>\d+(?:\.\d+)?(?![\w.]))
      | (?P<duration>\d+[smhd])
      | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<string>"[^"]*")
      | (?P<sign>=~|!~|!=|[-+*/(){}\[\],=])
    )""",
    re.VERBOSE,
)


class Wrong(Exception):
    """The text is not an expression."""


@dataclass
class Found:
    """A metric in an expression, and the labels that are asked of it."""

    name: str
    labels: set[str] = field(default_factory=set)


def metrics_in(text: str) -> list[Found]:
    """Return the metrics of an expression. Raises Wrong."""
    reader = _Reader(list(_tokens(text)))
    reader.expression()
    if reader.left:
        raise Wrong(f"{text!r} goes on with {reader.left}")
    return reader.found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text.rstrip()):
        match = TOKEN.match(text, place)
        if match is None:
            raise Wrong(f"{text!r} has {text[place:]!r}")
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        place = match.end()


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.left = tokens
        self.found: list[Found] = []

    def expression(self) -> None:
        self._operand()
        while self._peek() in OPERATORS:
            self._take()
            self._operand()

    def _operand(self) -> None:
        kind, text = self._take()
        if text == "(":
            self.expression()
            self._expect(")")
        elif text in AGGREGATIONS:
            self._aggregation()
        elif text in FUNCTIONS:
            self._expect("(")
            self.expression()
            while self._peek() == ",":
                self._take()
                self.expression()
            self._expect(")")
        elif kind == "name":
            self._selector(text)
        elif kind != "number":
            raise Wrong(f"{text!r} is no operand")

    def _aggregation(self) -> None:
        labels: set[str] = set()
        if self._peek() == "by":
            self._take()
            labels = set(self._names("(", ")"))
        before = len(self.found)
        self._expect("(")
        self.expression()
        self._expect(")")
        for found in self.found[before:]:
            found.labels |= labels

    def _selector(self, name: str) -> None:
        found = Found(name)
        self.found.append(found)
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                found.labels.add(self._take("name")[1])
                if self._take("sign")[1] not in ("=", "=~", "!=", "!~"):
                    raise Wrong(f"a label of {name} is compared with nothing")
                self._take("string")
                if self._peek() == ",":
                    self._take()
            self._take()
        if self._peek() == "[":
            self._take()
            self._take("duration")
            self._expect("]")

    def _names(self, begin: str, end: str) -> list[str]:
        self._expect(begin)
        names = [self._take("name")[1]]
        while self._peek() == ",":
            self._take()
            names.append(self._take("name")[1])
        self._expect(end)
        return names

    def _peek(self) -> str:
        return self.left[0][1] if self.left else ""

    def _take(self, kind: str = "") -> tuple[str, str]:
        if not self.left or (kind and self.left[0][0] != kind):
            raise Wrong(f"{kind or 'something'} is missing before {self._peek()!r}")
        return self.left.pop(0)

    def _expect(self, text: str) -> None:
        if self._peek() != text:
            raise Wrong(f"{text!r} is missing before {self._peek()!r}")
        self._take()
