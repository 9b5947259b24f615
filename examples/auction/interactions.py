"""Actions of visitors of the auction site: RUBiS's interactions, and real requests for each of them.

Defines addresses and forms; independent of how and when requests are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import urlencode

from flyball.lab.auction.sizes import Sizes, nickname_of, password_of, region_name, seller_of

# Maximum number of pages that visitors read in a list.
PAGES = 5
LEAST_BID_MARK = b'data-least-bid="'


@dataclass(slots=True)
class Memory:
    """State of a visitor between pages. Each session starts with a new one."""

    # The visitor's identity, chosen when first needed.
    user_id: int | None = None
    # The item viewed last.
    item_id: int | None = None
    category_id: int | None = None
    region_id: int | None = None
    # Page number in the list of items.
    page: int = 0
    # Minimum bid on the page of that item; set by `read` only.
    least_bid: float | None = None

    def read(self, page: bytes) -> None:
        """Remember the minimum bid on a page. Pages without one change nothing."""
        start = page.find(LEAST_BID_MARK)
        if start >= 0:
            start += len(LEAST_BID_MARK)
            self.least_bid = float(page[start : page.index(b'"', start)])


Form = dict[str, str]
# Method, path with query, and the form's fields (None unless it is a POST).
Request = tuple[str, str, Form | None]


@dataclass(frozen=True, slots=True)
class Interaction:
    """One action of a visitor."""

    name: str
    method: str
    # As declared by the site: with parameters in braces.
    route: str
    # Chooses the parameters of the route; the remaining ones become the query.
    fill: Callable[[Random, Sizes, Memory], dict[str, object]]
    form: Callable[[Random, Sizes, Memory], Form] | None = None
    is_write: bool = False

    @property
    def key(self) -> str:
        """Method and route: the key of a request in cost profiles."""
        return f"{self.method} {self.route}"

    def request(self, random: Random, sizes: Sizes, memory: Memory) -> Request:
        """Return a visitor's random request: about remembered objects if there are any, else about others."""
        query = self.fill(random, sizes, memory)
        path = self.route
        for name in list(query):
            if f"{{{name}}}" in path:
                path = path.replace(f"{{{name}}}", str(query.pop(name)))
        if query:
            path += "?" + urlencode(query)
        return self.method, path, None if self.form is None else self.form(random, sizes, memory)


def _nothing(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    return {}


def _a_category(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    if memory.category_id is None:
        memory.category_id = random.randint(1, sizes.categories)
    return {"category_id": memory.category_id}


def _a_region(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    memory.region_id = random.randint(1, sizes.regions)
    return {"region_id": memory.region_id}


def _a_page(random: Random, memory: Memory) -> dict[str, object]:
    """Go to the next page of the list, as every second search does, or start a new one."""
    memory.page = memory.page + 1 if memory.category_id is not None and random.random() < 0.5 else 0
    memory.page %= PAGES
    if memory.page == 0:
        memory.category_id = None
        return {}
    return {"page": memory.page}


def _a_list(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    page = _a_page(random, memory)
    return {**_a_category(random, sizes, memory), **page}


def _a_list_of_a_region(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    if memory.region_id is None:
        _a_region(random, sizes, memory)
    return {"region_id": memory.region_id, **_a_list(random, sizes, memory)}


def _a_new_item(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    memory.item_id = random.randint(1, sizes.items)
    memory.least_bid = None
    return {"item_id": memory.item_id}


def _the_item(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    return _a_new_item(random, sizes, memory) if memory.item_id is None else {"item_id": memory.item_id}


def _the_seller(random: Random, sizes: Sizes, memory: Memory) -> dict[str, object]:
    _the_item(random, sizes, memory)
    assert memory.item_id is not None
    return {"user_id": seller_of(memory.item_id, sizes)}


def _log_in(random: Random, sizes: Sizes, memory: Memory) -> Form:
    if memory.user_id is None:
        memory.user_id = random.randint(1, sizes.users)
    return {"nickname": nickname_of(memory.user_id), "password": password_of(memory.user_id)}


def _new_user(random: Random, sizes: Sizes, memory: Memory) -> Form:
    # 60 bits: no two visitors of a run choose the same one.
    nickname = f"new{random.getrandbits(60):015x}"
    return {
        "first_name": "New",
        "last_name": "Visitor",
        "nickname": nickname,
        "password": "secret",
        "email": f"{nickname}@example.org",
        "region": region_name(random.randint(1, sizes.regions)),
    }


def _bid(random: Random, sizes: Sizes, memory: Memory) -> Form:
    # A visitor that has not seen the price offers enough for almost every item.
    least = memory.least_bid or random.uniform(1_000, 100_000)
    amount = least + random.randint(0, 5)
    memory.least_bid = amount + 1
    amounts = {"amount": f"{amount:.2f}", "most_amount": f"{2 * amount:.2f}", "quantity": "1"}
    return {**_log_in(random, sizes, memory), **amounts}


def _purchase(random: Random, sizes: Sizes, memory: Memory) -> Form:
    return {**_log_in(random, sizes, memory), "quantity": "1"}


def _comment(random: Random, sizes: Sizes, memory: Memory) -> Form:
    rating = str(random.choice((-5, -3, 0, 3, 5)))
    return {**_log_in(random, sizes, memory), "rating": rating, "comment": "What I got is what was promised."}


def _new_item(random: Random, sizes: Sizes, memory: Memory) -> Form:
    price = random.randint(1, 1000)
    return {
        **_log_in(random, sizes, memory),
        "name": f"A thing worth {price}",
        "description": "As good as new. " * random.randint(1, 20),
        "category_id": str(_a_category(random, sizes, memory)["category_id"]),
        "initial_price": f"{price:.2f}",
        "reserve_price": f"{price * 1.2:.2f}",
        "buy_now_price": f"{price * 2:.2f}",
        "quantity": str(random.randint(1, 10)),
        "days": str(random.randint(1, 7)),
    }


_ALL = (
    Interaction("home", "GET", "/", _nothing),
    Interaction("register", "GET", "/register", _nothing),
    Interaction("register_user", "POST", "/register", _nothing, _new_user, is_write=True),
    Interaction("browse", "GET", "/browse", _nothing),
    Interaction("browse_categories", "GET", "/categories", _nothing),
    Interaction("search_in_category", "GET", "/categories/{category_id}/items", _a_list),
    Interaction("browse_regions", "GET", "/regions", _nothing),
    Interaction("browse_categories_in_region", "GET", "/regions/{region_id}", _a_region),
    Interaction(
        "search_in_region", "GET", "/regions/{region_id}/categories/{category_id}/items", _a_list_of_a_region
    ),
    Interaction("view_item", "GET", "/items/{item_id}", _a_new_item),
    Interaction("bid_history", "GET", "/items/{item_id}/bids", _the_item),
    Interaction("user_info", "GET", "/users/{user_id}", _the_seller),
    Interaction("put_bid_auth", "GET", "/items/{item_id}/bid", _the_item),
    Interaction("put_bid", "POST", "/items/{item_id}/bid", _the_item, _log_in),
    Interaction("store_bid", "POST", "/items/{item_id}/bids", _the_item, _bid, is_write=True),
    Interaction("buy_now_auth", "GET", "/items/{item_id}/buy", _the_item),
    Interaction("buy_now", "POST", "/items/{item_id}/buy", _the_item, _log_in),
    Interaction("store_buy_now", "POST", "/items/{item_id}/purchases", _the_item, _purchase, is_write=True),
    Interaction("put_comment_auth", "GET", "/items/{item_id}/comment", _the_item),
    Interaction("put_comment", "POST", "/items/{item_id}/comment", _the_item, _log_in),
    Interaction("store_comment", "POST", "/items/{item_id}/comments", _the_item, _comment, is_write=True),
    Interaction("sell", "GET", "/sell", _nothing),
    Interaction("select_category", "POST", "/sell", _nothing, _log_in),
    Interaction("sell_item_form", "POST", "/sell/{category_id}", _a_category, _log_in),
    Interaction("register_item", "POST", "/items", _nothing, _new_item, is_write=True),
    Interaction("about_me_auth", "GET", "/me", _nothing),
    Interaction("about_me", "POST", "/me", _nothing, _log_in),
)
# All interactions, by name.
INTERACTIONS: dict[str, Interaction] = {interaction.name: interaction for interaction in _ALL}
