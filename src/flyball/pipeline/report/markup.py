"""Writes HTML from calls: what is not markup already is escaped, so that no text of a trace can become one.

It knows nothing of experiments and numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias


class Html(str):
    """Markup that goes into the page as it is; every other text is escaped."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None

_EMPTY_ELEMENTS = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})


def markup(*children: Child) -> Html:
    """Join children to one piece; None is left out, and what is not Html is escaped."""
    return Html("".join(_pieces(children)))


def element(name: str, *children: Child, **attributes: Attribute) -> Html:
    """Return one element: `aria_label` is written `aria-label`, `class_` is `class`; None and False are left out."""
    opening = "".join([f"<{name}", *(_attribute(key, value) for key, value in attributes.items()), ">"])
    return Html(opening if name in _EMPTY_ELEMENTS else f"{opening}{markup(*children)}</{name}>")


def table(
    caption: Child, head: Sequence[Child], rows: Iterable[Sequence[Child]], *, numbers_from: int = 1, label: str = ""
) -> Html:
    """Return a table that scrolls by itself where it is wider than the page; numbers stand to the right.

    `numbers_from` is the first column of numbers; those before it name the row.
    """

    def cell(index: int, child: Child) -> Html:
        if index == 0:
            return element("th", child, scope="row")
        return element("td", child, class_="number" if index >= numbers_from else None)

    header = [
        element("th", child, scope="col", class_="number" if index >= numbers_from else None)
        for index, child in enumerate(head)
    ]
    body = [element("tr", [cell(index, child) for index, child in enumerate(row)]) for row in rows]
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", header)), element("tbody", body)
    )
    return element("div", whole, class_="scroll", role="region", tabindex=0, aria_label=label or _plain(caption))


def details(summary: Child, *children: Child, is_open: bool = False) -> Html:
    """Return what is shown only when asked for."""
    return element("details", element("summary", summary), *children, open=is_open)


def json_script(anchor: str, value: object) -> Html:
    """Return `value` as data that scripts of the page find under `anchor`; no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return element("script", Html(safe), type="application/json", id=anchor)


def _pieces(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str):
            yield escape(child)
        else:
            yield from _pieces(child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def _plain(caption: Child) -> str:
    return caption if isinstance(caption, str) and not isinstance(caption, Html) else "table"
