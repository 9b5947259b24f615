"""Interactions of visitors: the site answers each of their requests."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from flyball.lab.auction.interactions import INTERACTIONS, Memory
from flyball.lab.auction.sizes import nickname_of, password_of, seller_of
from tests.lab.auction.shops import TINY, Reply, Visitor, visit

# How many connections each takes; those of user info and bid history depend on what there is.
QUERIES = {
    **dict.fromkeys(("home", "register", "browse", "sell", "sell_item_form"), 0),
    **dict.fromkeys(("put_bid_auth", "buy_now_auth", "put_comment_auth", "about_me_auth"), 0),
    **dict.fromkeys(("browse_categories", "browse_regions", "search_in_category", "search_in_region"), 1),
    **dict.fromkeys(("browse_categories_in_region", "view_item", "buy_now", "select_category", "store_bid"), 2),
    **dict.fromkeys(("store_buy_now", "register_user"), 2),
    **dict.fromkeys(("put_comment", "store_comment", "register_item"), 3),
    "put_bid": 4,
    "about_me": 7,
}


@pytest.mark.parametrize("name", INTERACTIONS)
def test_the_site_answers_what_a_visitor_asks(name: str, shop_dsn: str, item_id: int) -> None:
    async def do(visitor: Visitor) -> tuple[Reply, int]:
        method, path, form = INTERACTIONS[name].request(Random(name), TINY, Memory(item_id=item_id))
        before = visitor.taken()
        reply = await visitor.send(method, path, form)
        return reply, visitor.taken() - before

    reply, taken = visit(shop_dsn, do)
    assert reply.status == 200, reply.text
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>" in reply.text
    if name in QUERIES:
        assert taken == QUERIES[name]


def test_every_interaction_has_an_address_of_its_own() -> None:
    assert len(INTERACTIONS) == 27
    assert len({interaction.key for interaction in INTERACTIONS.values()}) == 27
    assert INTERACTIONS["view_item"].key == "GET /items/{item_id}"


def test_only_writes_say_that_they_write() -> None:
    writes = {name for name, interaction in INTERACTIONS.items() if interaction.is_write}
    assert writes == {"register_user", "store_bid", "store_buy_now", "store_comment", "register_item"}


def test_visitors_stay_with_the_item_they_have_looked_at() -> None:
    memory, random = Memory(), Random(1)
    _, path, _ = INTERACTIONS["view_item"].request(random, TINY, memory)
    assert path == f"/items/{memory.item_id}"
    assert INTERACTIONS["put_bid"].request(random, TINY, memory)[1] == f"{path}/bid"
    assert INTERACTIONS["store_bid"].request(random, TINY, memory)[1] == f"{path}/bids"
    assert memory.item_id is not None
    assert INTERACTIONS["user_info"].request(random, TINY, memory)[1] == f"/users/{seller_of(memory.item_id, TINY)}"


def test_visitors_remain_who_they_are() -> None:
    memory, random = Memory(user_id=17), Random(1)
    for name in ("about_me", "put_bid", "store_comment", "register_item"):
        form = INTERACTIONS[name].request(random, TINY, memory)[2]
        assert form is not None
        assert (form["nickname"], form["password"]) == (nickname_of(17), password_of(17))


def test_visitors_turn_pages_within_one_category() -> None:
    memory, random = Memory(), Random(3)
    paths = [INTERACTIONS["search_in_category"].request(random, TINY, memory)[1] for _ in range(200)]
    assert any(path.endswith("?page=2") for path in paths)
    for path, later in pairwise(paths):
        if "?" in later:
            assert later.partition("?")[0] == path.partition("?")[0]


def test_a_visitor_who_has_seen_the_price_bids_enough(shop_dsn: str, item_id: int) -> None:
    async def do(visitor: Visitor) -> list[int]:
        memory, random, statuses = Memory(item_id=item_id), Random(1), []
        for name in ("put_bid", "store_bid", "store_bid", "put_bid", "store_bid"):
            reply = await visitor.send(*INTERACTIONS[name].request(random, TINY, memory))
            memory.read(reply.body)
            statuses.append(reply.status)
        assert memory.least_bid is not None
        assert memory.least_bid < 2000
        return statuses

    assert visit(shop_dsn, do) == [200] * 5


def test_a_page_without_a_price_changes_nothing() -> None:
    memory = Memory(least_bid=3.0)
    memory.read(b"<p>nothing here</p>")
    assert memory.least_bid == 3.0


def test_the_same_random_numbers_make_the_same_visit() -> None:
    def walk(seed: int) -> list[object]:
        random, memory = Random(seed), Memory()
        return [interaction.request(random, TINY, memory) for interaction in INTERACTIONS.values()]

    assert walk(1) == walk(1)
    assert walk(1) != walk(2)
