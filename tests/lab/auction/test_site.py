"""The auction site: what its pages say, and that the rules of the auction hold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from flyball.lab.auction.sizes import nickname_of, password_of
from tests.lab.auction.shops import TINY, Reply, Visitor, visit

Ask = Callable[[str], list[tuple[object, ...]]]


def who(user_id: int) -> dict[str, str]:
    return {"nickname": nickname_of(user_id), "password": password_of(user_id)}


def bid(user_id: int, amount: float) -> dict[str, str]:
    prices = {"amount": f"{amount:.2f}", "most_amount": f"{amount * 2:.2f}"}
    return {**who(user_id), **prices, "quantity": "1"}


def get(dsn: str, path: str) -> Reply:
    async def do(visitor: Visitor) -> Reply:
        return await visitor.get(path)

    return visit(dsn, do)


def post(dsn: str, path: str, form: dict[str, str]) -> Reply:
    async def do(visitor: Visitor) -> Reply:
        return await visitor.post(path, form)

    return visit(dsn, do)


def new_item(**fields: str) -> dict[str, str]:
    prices = {"initial_price": "10.00", "reserve_price": "12", "buy_now_price": "20.5"}
    texts = {"name": "A lamp", "description": "It shines.", "category_id": "1", "quantity": "2", "days": "7"}
    return {**who(1), **prices, **texts, **fields}


def number_in(reply: Reply) -> int:
    """The item that a page links to."""
    found = re.search(r'href="/items/(\d+)"', reply.text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    "path",
    [
        "/items/999999",
        "/items/0",
        "/items/99999999999999999999",
        "/items/abc",
        "/users/999999",
        "/users/x/y",
        "/regions/99",
        "/items/999999/bids",
        "/items/abc/bid",
        "/categories/1/items?page=-1",
        "/categories/1/items?page=x",
        "/nowhere",
    ],
)
def test_an_unknown_address_is_a_page_that_says_so(path: str, shop_dsn: str) -> None:
    reply = get(shop_dsn, path)
    assert reply.status == 404
    assert "Nothing here" in reply.text
    assert 'role="alert"' in reply.text


def test_an_item_whose_auction_is_over_can_be_seen_but_not_bid_on(shop_dsn: str) -> None:
    reply = get(shop_dsn, "/items/130")
    assert "Ended" in reply.text
    assert 'href="/items/130/bid"' not in reply.text
    assert post(shop_dsn, "/items/130/bids", bid(1, 5000)).status == 404


def test_the_pages_of_a_category_show_each_of_its_items_once(shop_dsn: str, ask: Ask) -> None:
    async def do(visitor: Visitor) -> list[int]:
        shown: list[int] = []
        path: str | None = "/categories/2/items"
        while path is not None:
            text = (await visitor.get(path)).text
            shown += [int(number) for number in re.findall(r'<td><a href="/items/(\d+)"', text)]
            following = re.search(r'rel="next" href="([^"]+)"', text)
            path = following[1] if following else None
        return shown

    shown = visit(shop_dsn, do)
    # 120: other tests may add items at any time.
    expected = ask(
        "SELECT id FROM items WHERE category_id = 2 AND ends_at > now() AND id <= 120 ORDER BY ends_at, id"
    )
    assert len(expected) > 21
    assert [number for number in shown if number <= 120] == [number for (number,) in expected]
    assert len(set(shown)) == len(shown)


def test_a_region_lists_only_what_its_people_sell(shop_dsn: str, ask: Ask) -> None:
    shown = re.findall(r'<td><a href="/items/(\d+)"', get(shop_dsn, "/regions/3/categories/1/items").text)
    expected = ask(
        "SELECT items.id FROM items JOIN users ON users.id = seller_id"
        " WHERE region_id = 3 AND category_id = 1 AND items.ends_at > now() ORDER BY ends_at, items.id LIMIT 20"
    )
    assert shown
    assert [int(number) for number in shown] == [number for (number,) in expected]


def test_a_list_counts_people_and_not_only_bids(shop_dsn: str, ask: Ask) -> None:
    text = get(shop_dsn, "/categories/1/items").text
    shown = re.findall(r'href="/items/(\d+)".*?<td class="n">(\d+) <small>by (\d+)</small>', text, re.DOTALL)
    assert len(shown) == 20
    for item_id, bids, people in shown:
        counted = ask(f"SELECT count(*), count(DISTINCT user_id) FROM bids WHERE item_id = {item_id}")
        assert counted == [(int(bids), int(people))]


def test_a_bid_is_stored_and_the_item_shows_it(shop_dsn: str, item_id: int, ask: Ask) -> None:
    reply = post(shop_dsn, f"/items/{item_id}/bids", bid(2, 2345.5))
    assert reply.status == 200
    assert "2345.50" in reply.text
    assert "2345.50" in get(shop_dsn, f"/items/{item_id}").text
    history = get(shop_dsn, f"/items/{item_id}/bids").text
    assert history.index("2345.50") < history.index("</tr>", history.index("<tbody>"))
    assert ask(f"SELECT user_id FROM bids WHERE item_id = {item_id} ORDER BY amount DESC LIMIT 1") == [(2,)]


def test_a_bid_that_is_too_low_is_refused_with_the_least_one(shop_dsn: str, item_id: int, ask: Ask) -> None:
    assert post(shop_dsn, f"/items/{item_id}/bids", bid(2, 3000)).status == 200
    reply = post(shop_dsn, f"/items/{item_id}/bids", bid(3, 3000.99))
    assert reply.status == 409
    assert "The least bid is 3001.00" in reply.text
    assert ask(f"SELECT highest_bid FROM items WHERE id = {item_id}")[0][0] == 3000


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"amount": "much"}, 400),
        ({"amount": ""}, 400),
        ({"amount": "NaN"}, 400),
        ({"amount": "1e9"}, 400),
        ({"amount": "99999999999"}, 400),
        ({"quantity": "0"}, 400),
        ({"quantity": "10000"}, 409),
        ({"most_amount": "1.00"}, 409),
        ({"password": "guess"}, 401),
        ({"nickname": "nobody"}, 401),
        ({"nickname": "nul\0"}, 400),
    ],
)
def test_a_bad_bid_changes_nothing(
    change: dict[str, str], status: int, shop_dsn: str, item_id: int, ask: Ask
) -> None:
    before = ask(f"SELECT bid_count, highest_bid FROM items WHERE id = {item_id}")
    reply = post(shop_dsn, f"/items/{item_id}/bids", {**bid(2, 4000), **change})
    assert reply.status == status
    assert 'role="alert"' in reply.text
    assert ask(f"SELECT bid_count, highest_bid FROM items WHERE id = {item_id}") == before


def test_of_bids_at_the_same_time_none_is_lost(shop_dsn: str, item_id: int, ask: Ask) -> None:
    amounts = [5000.0 + step for step in range(8)]
    [(before,)] = ask(f"SELECT bid_count FROM items WHERE id = {item_id}")

    async def do(visitor: Visitor) -> list[Reply]:
        path = f"/items/{item_id}/bids"
        return await asyncio.gather(
            *(visitor.post(path, bid(user, amount)) for user, amount in enumerate(amounts, 1))
        )

    # All eight keep a connection, and whose turn it is needs another one.
    stored = sum(reply.status == 200 for reply in visit(shop_dsn, do, connections=9))
    assert stored >= 1
    [(count, highest)] = ask(f"SELECT bid_count, highest_bid FROM items WHERE id = {item_id}")
    assert count == int(str(before)) + stored
    assert ask(f"SELECT count(*), max(amount) FROM bids WHERE item_id = {item_id}") == [(count, highest)]


def test_about_me_shows_what_i_bid_on_and_what_i_won(shop_dsn: str, item_id: int, ask: Ask) -> None:
    assert post(shop_dsn, f"/items/{item_id}/bids", bid(8, 6789)).status == 200
    mine = post(shop_dsn, "/me", who(8)).text
    assert "6789.00" in mine[mine.index("You bid on") : mine.index("You won")]
    [(winner_id, won_id)] = ask(
        "SELECT user_id, old_items.id FROM old_items JOIN bids ON item_id = old_items.id AND amount = highest_bid"
        " ORDER BY ends_at DESC LIMIT 1"
    )
    theirs = post(shop_dsn, "/me", who(int(str(winner_id)))).text
    assert f'"/items/{won_id}"' in theirs[theirs.index("You won") : theirs.index("You bought")]


def test_the_last_one_bought_ends_the_auction(shop_dsn: str) -> None:
    item_id = number_in(post(shop_dsn, "/items", new_item(quantity="2")))
    path = f"/items/{item_id}/purchases"
    assert post(shop_dsn, path, {**who(5), "quantity": "3"}).status == 409
    assert "41.00" in post(shop_dsn, path, {**who(5), "quantity": "2"}).text
    assert post(shop_dsn, path, {**who(6), "quantity": "1"}).status == 409
    assert "Ended" in get(shop_dsn, f"/items/{item_id}").text
    assert "A lamp" in post(shop_dsn, "/me", who(5)).text


def test_a_comment_counts_for_the_seller(shop_dsn: str, item_id: int, ask: Ask) -> None:
    [(seller_id,)] = ask(f"SELECT seller_id FROM items WHERE id = {item_id}")
    [(before,)] = ask(f"SELECT rating FROM users WHERE id = {seller_id}")
    form = {**who(9), "rating": "-3", "comment": "The lid does not fit."}
    assert post(shop_dsn, f"/items/{item_id}/comments", form).status == 200
    assert "The lid does not fit." in get(shop_dsn, f"/users/{seller_id}").text
    assert ask(f"SELECT rating FROM users WHERE id = {seller_id}") == [(int(str(before)) - 3,)]
    assert post(shop_dsn, f"/items/{item_id}/comments", {**form, "rating": "6"}).status == 400


def test_who_registers_can_log_in_and_nobody_else_can_have_the_nickname(shop_dsn: str) -> None:
    form = {"first_name": "Ada", "last_name": "L", "email": "a@example.org", "region": "Athens"}
    somebody = {"nickname": "ada", "password": "engine"}
    assert post(shop_dsn, "/register", {**form, **somebody, "region": "Atlantis"}).status == 409
    assert post(shop_dsn, "/register", {**form, **somebody}).status == 200
    assert post(shop_dsn, "/me", somebody).status == 200
    assert post(shop_dsn, "/me", {**somebody, "password": "engines"}).status == 401
    assert post(shop_dsn, "/register", {**form, **somebody, "password": "other"}).status == 409


def test_passwords_are_not_stored_as_they_are(shop_dsn: str, ask: Ask) -> None:
    assert ask("SELECT octet_length(password_hash) FROM users WHERE id = 1") == [(32,)]
    assert ask("SELECT count(DISTINCT password_hash) FROM users WHERE id <= 300") == [(TINY.users,)]


def test_what_visitors_type_is_text_and_never_markup(shop_dsn: str) -> None:
    name = '<script>alert("x")</script>'
    item_id = number_in(post(shop_dsn, "/items", new_item(name=name, description="a <b>bold</b> & 'quoted' one")))
    text = get(shop_dsn, f"/items/{item_id}").text
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a &lt;b&gt;bold&lt;/b&gt; &amp; " in text


def test_a_form_that_is_too_long_is_refused(shop_dsn: str) -> None:
    assert post(shop_dsn, "/items", new_item(description="x" * 9000)).status == 400
    assert post(shop_dsn, "/items", new_item(description="x" * 200_000)).status == 400


def test_another_category_than_there_is_leads_nowhere(shop_dsn: str) -> None:
    assert post(shop_dsn, "/items", new_item(category_id="77")).status == 404


def test_user_info_needs_a_second_connection_for_each_comment(shop_dsn: str, ask: Ask) -> None:
    [(user_id, comments)] = ask(
        "SELECT to_user_id, count(*) FROM comments GROUP BY to_user_id HAVING count(*) < 20 ORDER BY 2 DESC LIMIT 1"
    )

    async def do(visitor: Visitor) -> int:
        before = visitor.taken()
        assert (await visitor.get(f"/users/{user_id}")).status == 200
        return visitor.taken() - before

    assert visit(shop_dsn, do) == 1 + int(str(comments))


def test_pool_is_full_until_its_timeout_when_all_hold_one_and_want_another(shop_dsn: str) -> None:
    async def do(visitor: Visitor) -> tuple[Reply, Reply]:
        await visitor.pool.wait(timeout=60)
        return await visitor.get("/users/1"), await visitor.get("/items/1")

    stuck, fine = visit(shop_dsn, do, connections=1, timeout_s=0.5)
    assert stuck.status == 503
    assert "The shop is full" in stuck.text
    assert stuck.headers["retry-after"] == "5"
    # The stuck requests have returned their connections.
    assert fine.status == 200


def test_pages_ask_nobody_else_for_anything(shop_dsn: str) -> None:
    text = get(shop_dsn, "/").text
    assert re.findall(r'(?:src|href)="(?!/|data:)[^"]*"', text) == []
    style = get(shop_dsn, "/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "url(" not in style.text
