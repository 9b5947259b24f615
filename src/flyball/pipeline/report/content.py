"""The parts of a section of a report, as plain data: texts, tables, lists of facts.

The templates define the layout; this module is independent of HTML, so no text of the data can become markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Mark:
    """A highlighted text: `look` is `best` or classes of the style sheet."""

    text: str
    look: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts below a head. `numbers_from` is the first column of numbers; those before it name the row.

    A table with a `summary` is folded under it.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Mark]]
    numbers_from: int = 1
    summary: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, and further facts and tables below them; folded if there is a `summary`."""

    lines: Sequence[tuple[str, str]]
    below: Sequence[Facts | Table] = ()
    summary: str = ""
    is_open: bool = False


# A text alone is a paragraph.
Block: TypeAlias = str | Mark | Table | Facts


@dataclass(frozen=True, slots=True)
class Passage:
    """Paragraphs, tables and facts, below a heading if they have one."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Tile:
    """One headline number."""

    label: str
    value: str
    unit: str = ""
    more: str = ""
    # `good` or `bad` if the number is one of them regardless of others.
    mood: str = ""


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning that the reader needs before trusting a number."""

    says: str
    # The affected runs, or further lines.
    names: Sequence[str] = ()
    # Whether results are wrong instead of only uncertain.
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """A sentence about the results, and whether it states that a goal was reached; None if it is not about a goal."""

    says: str
    is_reached: bool | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Sentences about the results of each experiment, by its title, below a common introduction."""

    opening: str
    sentences: Mapping[str, Sequence[Goal]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page in the table of contents: its template and data."""

    anchor: str
    title: str
    template: str
    data: Mapping[str, Any] = field(default_factory=dict)
