"""Sorting, columns, paging and name filters of lists, as in RabbitMQ's management API."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import QueryParams
from starlette.responses import Response

from flyball.broker.engine.patterns import compile_pattern
from flyball.broker.management.api.answers import QUICK_SLICE, Refused, fields_of, json_text, mapped, only, stream
from flyball.errors import InvalidPattern

T = TypeVar("T")

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
MAX_DIGITS = 20

Key = Callable[[T], Any]
# Getters of fields by name, which avoid building an item's whole document.
Keys = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The query of a list."""

    columns: tuple[str, ...] = ()
    sort: str = ""
    is_reversed: bool = False
    # From 1; 0 for the whole list without paging.
    page: int = 0
    page_size: int = DEFAULT_PAGE_SIZE
    name: str = ""
    is_regex: bool = False

    @classmethod
    def of(cls, query: QueryParams) -> ListQuery:
        """Parse the query parameters. Raises Refused."""
        columns = tuple(name for name in query.get("columns", "").split(",") if name)
        page, page_size = query.get("page"), query.get("page_size")
        return cls(
            columns=columns,
            sort=query.get("sort", ""),
            is_reversed=query.get("sort_reverse", "false") == "true",
            page=0 if page is None else _number("page", page, math.inf),
            page_size=DEFAULT_PAGE_SIZE if page_size is None else _number("page_size", page_size, MAX_PAGE_SIZE),
            name=query.get("name", ""),
            is_regex=query.get("use_regex", "false") == "true",
        )


def _number(name: str, text: str, maximum: float) -> int:
    # Python limits the digits of parsed integers.
    if text.isdecimal() and len(text) <= MAX_DIGITS and 1 <= int(text) <= maximum:
        return int(text)
    limit = "or more" if maximum == math.inf else f"to {maximum}"
    word = "invalid_pagination_parameters" if text.isdecimal() else "bad_request"
    raise Refused(400, f"invalid {name} {text[:MAX_DIGITS]!r}: use a number, 1 {limit}", word=word)


async def listing(
    query: ListQuery, items: Sequence[T], document: Callable[[T], Mapping[str, Any]], keys: Keys
) -> Response:
    """Return the documents of the items as queried. `items` are in the default order.

    `keys` avoids documents of items that are not on the page. Without a getter for name, the name filter matches
    nothing.
    """
    shown = _shown(query, document, keys)
    if not query.page:
        return stream(await _sorted(query, items, document, keys), shown)
    fitting = await _named(query, items, keys.get("name", lambda item: ""))
    first = (query.page - 1) * query.page_size
    if first and first >= len(fitting):
        text = f"Page out of range, page: {query.page} page size: {query.page_size}, len: {len(fitting)}"
        raise Refused(400, text, word="page_out_of_range")
    ordered = await _sorted(query, fitting, document, keys)
    on_page = ordered[first : first + query.page_size]
    before = {"filtered_count": len(fitting), "item_count": len(on_page)}
    after = {
        "page": query.page,
        "page_count": math.ceil(len(fitting) / query.page_size),
        "page_size": query.page_size,
        "total_count": len(items),
    }
    return stream(on_page, shown, (json_text(before)[:-1] + ',"items":', "," + json_text(after)[1:]))


def _shown(query: ListQuery, document: Callable[[T], Mapping[str, Any]], keys: Keys) -> Callable[[T], Any]:
    """Return the function from an item to its reduced document."""
    is_flat = not any("." in name for name in query.columns)
    if query.columns and is_flat and keys.keys() >= set(query.columns):
        return lambda item: {name: keys[name](item) for name in query.columns}
    fields = fields_of(query.columns)
    return lambda item: only(document(item), fields)


async def _named(query: ListQuery, items: Sequence[T], name_of: Callable[[T], Any]) -> Sequence[T]:
    """Return the items whose names match."""
    if not query.name:
        return items
    names = [str(name_of(item)) for item in items]
    if not query.is_regex:
        text = query.name.lower()
        return [item for item, name in zip(items, names, strict=True) if text in name.lower()]
    try:
        pattern = compile_pattern(query.name, ignores_case=True)
    except InvalidPattern as error:
        raise Refused(400, str(error)) from error
    fits = await mapped(names, pattern.fits, QUICK_SLICE)
    return [item for item, does_fit in zip(items, fits, strict=True) if does_fit]


async def _sorted(
    query: ListQuery, items: Sequence[T], document: Callable[[T], Mapping[str, Any]], keys: Keys
) -> Sequence[T]:
    if not query.sort:
        return items[::-1] if query.is_reversed else items
    get = keys.get(query.sort)
    if get is None:
        path = query.sort.split(".")
        values = await mapped(items, lambda item: _rank(_at(document(item), path)))
    else:
        values = await mapped(items, lambda item: _rank(get(item)), QUICK_SLICE)
    order = sorted(range(len(items)), key=values.__getitem__, reverse=query.is_reversed)
    return [items[place] for place in order]


def _at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key for values of any type: null, numbers, strings, others."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, json_text(value))
