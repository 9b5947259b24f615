"""Reads a report as a browser without JavaScript would: headings, tables, plots and text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "path", "circle"}


@dataclass
class Table:
    """A table with the text of its cells."""

    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)

    def column(self, name: str) -> list[str]:
        """Return the cells below a head."""
        place = self.rows[0].index(name)
        return [row[place] for row in self.rows[1:]]


class Page(HTMLParser):
    """The contents of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.markup = path.read_text(encoding="utf-8")
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.tables: list[Table] = []
        self.figures: dict[str, dict[str, Any]] = {}
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.markup)
        assert not self._open, "every element is closed"

    def labelled(self, class_: str) -> list[str]:
        """Return the words for the elements of a class."""
        return [str(found.get("aria-label")) for _, found in self.tags if found.get("class") == class_]

    def table(self, caption: str) -> Table:
        """Return the table whose caption begins so."""
        return next(table for table in self.tables if table.caption.startswith(caption))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, attributes))
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("th", "td"):
            self.tables[-1].rows[-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        within = [tag for tag, _ in self._open]
        if "script" in within:
            attributes = self._open[-1][1]
            if attributes.get("type") == "application/json":
                self.figures[str(attributes["id"])] = json.loads(data)
            return
        if "style" in within:
            return
        self.text += data
        if "caption" in within:
            self.tables[-1].caption += data
        elif "td" in within or "th" in within:
            self.tables[-1].rows[-1][-1] += data
        elif within and within[-1] in ("h1", "h2", "h3"):
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)
