"""Output of commands: lines and tables, or JSON, and message bodies byte for byte."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flyball.client import ReceivedMessage


@dataclass(slots=True)
class Branch:
    """A node of a tree."""

    text: str
    twigs: list[Branch] = field(default_factory=list)


def _grow(tree: Tree, branch: Branch) -> None:
    for twig in branch.twigs:
        _grow(tree.add(Text(shown(twig.text))), twig)


class Output:
    """Writes to a stream, as text or, if `is_json`, as one JSON document per line."""

    def __init__(self, stream: BinaryIO, is_json: bool = False) -> None:
        self._stream = stream
        self.is_json = is_json

    def show(self, text: str, facts: Any) -> None:
        """Print the text, or the facts as JSON."""
        if self.is_json:
            self.json(facts)
        else:
            self._write(text.encode("utf-8", "backslashreplace") + b"\n")

    def json(self, facts: Any) -> None:
        self._write(json.dumps(facts, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table; numbers are right-aligned. Empty headings print no header."""
        rows = list(rows)
        table = Table(box=None, pad_edge=False, header_style="", show_header=any(headings))
        for number, heading in enumerate(headings):
            is_number = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
            table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*[Text(shown(str(cell))) for cell in row])
        self._render(table)

    def tree(self, root: Branch) -> None:
        """Print a tree."""
        tree = Tree(Text(shown(root.text)))
        _grow(tree, root)
        self._render(tree)

    def _render(self, what: RenderableType) -> None:
        text = io.StringIO()
        # Wide enough for all columns: a truncated name is useless.
        Console(file=text, width=10_000, color_system=None).print(what)
        for line in text.getvalue().splitlines():
            self._write(line.rstrip().encode("utf-8", "backslashreplace") + b"\n")

    def message(self, message: ReceivedMessage, *, raw: bool = False) -> None:
        """Print a message: its body and, unless `raw`, a line end; or all fields as JSON."""
        if self.is_json:
            self.json(facts_of(message))
        else:
            self._write(message.body if raw else message.body + b"\n")

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        # A printed message has left the node: do not keep it in a buffer.
        self._stream.flush()


def shown(text: str) -> str:
    """Escape control characters for the terminal."""
    return text if text.isprintable() else repr(text)


def facts_of(message: ReceivedMessage) -> dict[str, Any]:
    """Return all fields of a message as plain values; a body that is not UTF-8 as base64."""
    facts: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "sender": message.sender,
        "receiver": message.receiver,
        "context": message.context,
        "priority": message.priority,
        "arrived": None if message.arrived is None else message.arrived.isoformat(),
        "persistent": message.persistent,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
    }
    if message.properties:
        facts["properties_base64"] = base64.b64encode(message.properties).decode()
    try:
        facts["text"] = message.text
    except UnicodeDecodeError:
        facts["base64"] = base64.b64encode(message.body).decode()
    return facts
