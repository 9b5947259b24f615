"""Options of a list: an order, some fields, one page, names that match."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from starlette.datastructures import QueryParams
from starlette.responses import Response, StreamingResponse

from flyball.broker.management.api.answers import SLICE, Refused
from flyball.broker.management.api.listing import ListQuery, listing

KEYS = {"name": lambda item: item["name"]}

ITEMS: list[dict[str, Any]] = [
    {"name": "orders", "messages": 3, "stats": {"rate": 2.5}},
    {"name": "Bills", "messages": 1},
    {"name": "orders.late", "messages": 2, "stats": {"rate": 0.5}},
    {"name": "archive", "messages": None},
]


def asked(query: str, items: Sequence[Mapping[str, Any]] = ITEMS) -> Any:
    """Return what a list answers to a query."""

    async def run() -> str:
        answer = await listing(ListQuery.of(QueryParams(query)), items, dict, KEYS)
        return await text_of(answer)

    return json.loads(asyncio.run(run()))


async def text_of(answer: Response) -> str:
    assert isinstance(answer, StreamingResponse)
    return "".join([str(part) async for part in answer.body_iterator])


def names(query: str) -> list[str]:
    found = asked(query)
    return [item["name"] for item in (found["items"] if isinstance(found, dict) else found)]


def test_without_a_wish_everything_comes_as_it_is() -> None:
    assert asked("") == ITEMS
    assert asked("", []) == []


def test_a_list_that_is_longer_than_a_slice_comes_whole() -> None:
    items = [{"name": str(number)} for number in range(2 * SLICE + 1)]
    assert asked("", items) == items
    assert asked("page=1&page_size=500", items)["items"] == items


def test_others_have_their_turn_while_a_long_list_is_sent() -> None:
    items = [{"name": str(number)} for number in range(10 * SLICE)]
    turns: list[int] = []

    async def run() -> None:
        is_sent = False

        async def bystander() -> None:
            while not is_sent:
                turns.append(1)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bystander())
            await text_of(await listing(ListQuery.of(QueryParams("")), items, dict, KEYS))
            is_sent = True

    asyncio.run(run())
    assert len(turns) >= 9


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sort=name", ["Bills", "archive", "orders", "orders.late"]),
        ("sort=name&sort_reverse=true", ["orders.late", "orders", "archive", "Bills"]),
        ("sort=messages", ["archive", "Bills", "orders.late", "orders"]),
        ("sort=stats.rate&sort_reverse=true", ["orders", "orders.late", "Bills", "archive"]),
        ("sort=nothing", ["orders", "Bills", "orders.late", "archive"]),
    ],
)
def test_a_list_is_sorted_by_any_field_those_without_it_first(query: str, expected: list[str]) -> None:
    assert names(query) == expected


def test_only_the_wanted_fields_come() -> None:
    assert asked("columns=name,stats.rate,nothing&sort=name&page=1&page_size=3")["items"] == [
        {"name": "Bills"},
        {"name": "archive"},
        {"name": "orders", "stats": {"rate": 2.5}},
    ]


def test_a_page_tells_its_place_among_the_others() -> None:
    assert asked("page=2&page_size=3") == {
        "filtered_count": 4,
        "item_count": 1,
        "items": [ITEMS[3]],
        "page": 2,
        "page_count": 2,
        "page_size": 3,
        "total_count": 4,
    }


def test_a_page_of_nothing_is_none_of_no_pages() -> None:
    found = asked("page=1&name=nothing")
    assert (found["items"], found["filtered_count"], found["page_count"], found["total_count"]) == ([], 0, 0, 4)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("page=1&name=ORDERS", ["orders", "orders.late"]),
        ("page=1&name=.", ["orders.late"]),
        ("page=1&name=^orders$&use_regex=true", ["orders"]),
        ("page=1&name=^bills|late$&use_regex=true", ["Bills", "orders.late"]),
        ("name=orders", ["orders", "Bills", "orders.late", "archive"]),
    ],
)
def test_pages_hold_the_names_that_fit(query: str, expected: list[str]) -> None:
    assert names(query) == expected


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("page=0", "invalid page '0'"),
        ("page=x", "invalid page 'x'"),
        (f"page={'9' * 5000}", "invalid page '99999999999999999999'"),
        ("page=1&page_size=0", "invalid page_size '0'"),
        ("page=1&page_size=501", "invalid page_size '501'"),
        ("page=3&page_size=2", "out of range"),
        ("page=1&name=(&use_regex=true", "not a regular expression"),
        ("page=1&name=a(%3F=b)&use_regex=true", "no lookaround"),
        (f"page=1&name={'a' * 1025}&use_regex=true", "1025 characters exceed 1024"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(query: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        asked(query)
    assert refused.value.status == 400


def test_a_pattern_that_takes_other_engines_for_ever_takes_this_one_no_time() -> None:
    items = [{"name": "a" * 200 + "!"}] * 100
    assert asked("page=1&name=^(a%2B)%2B$&use_regex=true", items)["items"] == []
