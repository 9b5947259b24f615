"""The auction site: its pages, and the queries for each. One handler for each of RUBiS's interactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from psycopg_pool import PoolTimeout
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from flyball.lab.auction.database import Pool
from flyball.lab.auction.forms import BadForm, Fields, read_form
from flyball.lab.auction.interactions import INTERACTIONS
from flyball.lab.auction.queries import ROWS_PER_PAGE, NotFound, Refused, Shop, WrongPassword, least_bid
from flyball.lab.auction.sizes import REGIONS

MOST_PAGE = 100_000
MOST_DAYS = 7


def make_site(pool: Pool) -> Starlette:
    """Return the site, on a pool that it opens when it starts and closes when it ends."""

    @asynccontextmanager
    async def lifespan(site: Starlette) -> AsyncIterator[None]:
        async with pool:
            yield

    pages = _Pages(Shop(pool))
    routes = [
        Route(interaction.route, getattr(pages, name), methods=[interaction.method], name=name)
        for name, interaction in INTERACTIONS.items()
    ]
    routes.append(Route("/style.css", _style, methods=["GET"], name="style"))
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=_ERROR_PAGES)


class _Pages:
    """Handlers of the interactions, by their names."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def home(self, request: Request) -> Response:
        return page("home.html")

    async def register(self, request: Request) -> Response:
        return page("register.html", regions=REGIONS)

    async def register_user(self, request: Request) -> Response:
        form = await read_form(request)
        nickname, password = _log_in_of(form)
        fields: dict[str, object] = {name: form.text(name) for name in ("first_name", "last_name", "email", "region")}
        await self._shop.store_user(nickname, password, fields)
        return page("done.html", title=f"Welcome, {nickname}", text="You can sell, bid and buy now.", item=None)

    async def browse(self, request: Request) -> Response:
        return page("browse.html")

    async def browse_categories(self, request: Request) -> Response:
        return page("categories.html", categories=await self._shop.categories(), region=None)

    async def browse_regions(self, request: Request) -> Response:
        return page("regions.html", regions=await self._shop.regions())

    async def browse_categories_in_region(self, request: Request) -> Response:
        region = await self._shop.region(_number(request, "region_id"))
        return page("categories.html", categories=await self._shop.categories(), region=region)

    async def search_in_category(self, request: Request) -> Response:
        number = _page_number(request)
        items = await self._shop.items_of_category(_number(request, "category_id"), number)
        return _list_page(request, items, number, "What ends soonest in this category")

    async def search_in_region(self, request: Request) -> Response:
        number = _page_number(request)
        region_id, category_id = _number(request, "region_id"), _number(request, "category_id")
        items = await self._shop.items_of_region(region_id, category_id, number)
        return _list_page(request, items, number, "What ends soonest in this category, near you")

    async def view_item(self, request: Request) -> Response:
        item = await self._shop.item(_number(request, "item_id"))
        return page(
            "item.html", item=item, seller=await self._shop.nickname(item["seller_id"]), least=least_bid(item)
        )

    async def bid_history(self, request: Request) -> Response:
        item, bids = await self._shop.bid_history(_number(request, "item_id"))
        return page("bids.html", item=item, bids=bids)

    async def user_info(self, request: Request) -> Response:
        user, comments = await self._shop.user_info(_number(request, "user_id"))
        return page("user.html", user=user, comments=comments)

    async def put_bid_auth(self, request: Request) -> Response:
        return _log_in_page(request, "Log in to bid")

    async def put_bid(self, request: Request) -> Response:
        nickname, password = _log_in_of(await read_form(request))
        await self._shop.log_in(nickname, password)
        item = await self._shop.item(_number(request, "item_id"))
        seller = await self._shop.nickname(item["seller_id"])
        category = await self._shop.category(item["category_id"])
        who = {"nickname": nickname, "password": password}
        return page("bid.html", item=item, seller=seller, category=category, least=least_bid(item), **who)

    async def store_bid(self, request: Request) -> Response:
        form = await read_form(request)
        nickname, password = _log_in_of(form)
        amount, most_amount, quantity = form.price("amount"), form.price("most_amount"), form.number("quantity")
        item_id = _number(request, "item_id")
        item = await self._shop.store_bid(item_id, nickname, password, amount, most_amount, quantity)
        text = f"You bid {amount:.2f}. It is the highest bid of {item['bid_count']} so far."
        return page("done.html", title="Your bid counts", text=text, item=item)

    async def buy_now_auth(self, request: Request) -> Response:
        return _log_in_page(request, "Log in to buy")

    async def buy_now(self, request: Request) -> Response:
        nickname, password = _log_in_of(await read_form(request))
        await self._shop.log_in(nickname, password)
        item = await self._shop.item(_number(request, "item_id"))
        return page("buy.html", item=item, nickname=nickname, password=password)

    async def store_buy_now(self, request: Request) -> Response:
        form = await read_form(request)
        nickname, password = _log_in_of(form)
        quantity = form.number("quantity")
        item = await self._shop.store_purchase(_number(request, "item_id"), nickname, password, quantity)
        text = f"You bought {quantity} for {quantity * item['buy_now_price']:.2f}."
        return page("done.html", title="It is yours", text=text, item=item)

    async def put_comment_auth(self, request: Request) -> Response:
        return _log_in_page(request, "Log in to comment")

    async def put_comment(self, request: Request) -> Response:
        nickname, password = _log_in_of(await read_form(request))
        await self._shop.log_in(nickname, password)
        item = await self._shop.item(_number(request, "item_id"))
        seller = await self._shop.nickname(item["seller_id"])
        return page("comment.html", item=item, seller=seller, nickname=nickname, password=password)

    async def store_comment(self, request: Request) -> Response:
        form = await read_form(request)
        nickname, password = _log_in_of(form)
        rating, comment = form.number("rating", -5, 5), form.text("comment", 2000)
        item = await self._shop.store_comment(_number(request, "item_id"), nickname, password, rating, comment)
        return page("done.html", title="Thank you", text="Others will read your comment.", item=item)

    async def sell(self, request: Request) -> Response:
        return _log_in_page(request, "Log in to sell")

    async def select_category(self, request: Request) -> Response:
        nickname, password = _log_in_of(await read_form(request))
        await self._shop.log_in(nickname, password)
        categories = await self._shop.categories()
        return page("select_category.html", categories=categories, nickname=nickname, password=password)

    async def sell_item_form(self, request: Request) -> Response:
        nickname, password = _log_in_of(await read_form(request))
        who = {"nickname": nickname, "password": password}
        return page("sell.html", category_id=_number(request, "category_id"), days=MOST_DAYS, **who)

    async def register_item(self, request: Request) -> Response:
        form = await read_form(request)
        nickname, password = _log_in_of(form)
        prices = {name: form.price(name) for name in ("initial_price", "reserve_price", "buy_now_price")}
        texts = {"name": form.text("name"), "description": form.text("description", 8192)}
        numbers = {"quantity": form.number("quantity"), "days": form.number("days", 1, MOST_DAYS)}
        category = {"category_id": form.number("category_id")}
        item_id = await self._shop.store_item(nickname, password, {**prices, **texts, **numbers, **category})
        text = "Others can bid on it now."
        return page("done.html", title="For sale", text=text, item={"id": item_id, "name": texts["name"]})

    async def about_me_auth(self, request: Request) -> Response:
        return _log_in_page(request, "Log in to see what is yours")

    async def about_me(self, request: Request) -> Response:
        user = await self._shop.log_in(*_log_in_of(await read_form(request)))
        return page("me.html", user=user, **await self._shop.about(user["id"]))


@lru_cache(maxsize=1)
def _pages() -> Environment:
    """Return the templates, compiled once."""
    loader = PackageLoader("flyball.lab.auction", "pages")
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def page(name: str, **values: object) -> HTMLResponse:
    """Return a page made from a template and its values."""
    return HTMLResponse(_pages().get_template(name).render(values))


def error_page(status: int, title: str, text: str) -> HTMLResponse:
    """Return an error page."""
    answer = page("error.html", title=title, text=text)
    answer.status_code = status
    return answer


def _list_page(request: Request, items: list[dict[str, object]], number: int, title: str) -> Response:
    path = request.url.path
    has_more = len(items) > ROWS_PER_PAGE
    return page("items.html", title=title, items=items[:ROWS_PER_PAGE], path=path, number=number, has_more=has_more)


def _log_in_page(request: Request, title: str) -> Response:
    """Return a form that sends nickname and password to the same address."""
    for name in request.path_params:
        _number(request, name)
    return page("log_in.html", title=title, path=request.url.path)


def _log_in_of(form: Fields) -> tuple[str, str]:
    return form.text("nickname", 50), form.text("password", 200)


def _number(request: Request, name: str) -> int:
    """Return an integer from the path. Anything else is not found."""
    try:
        return Fields(request.path_params).number(name)
    except BadForm:
        raise HTTPException(404) from None


def _page_number(request: Request) -> int:
    try:
        return Fields({"page": request.query_params.get("page", "0")}).number("page", 0, MOST_PAGE)
    except BadForm:
        raise HTTPException(404) from None


async def _style(request: Request) -> Response:
    text = files("flyball.lab.auction").joinpath("style.css").read_bytes()
    return Response(text, media_type="text/css", headers={"Cache-Control": "max-age=3600"})


def _answer_with(status: int, title: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        return error_page(status, title, str(error))

    return answer


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "There is nothing at this address." if error.status_code == 404 else error.detail
    return error_page(error.status_code, "Nothing here", text)


async def _full(request: Request, error: Exception) -> Response:
    """Respond that no database connection was available in time."""
    answer = error_page(503, "The shop is full", "Please come back in a moment.")
    answer.headers["Retry-After"] = "5"
    return answer


_ERROR_PAGES = {
    HTTPException: _no_such_page,
    NotFound: _answer_with(404, "Nothing here"),
    BadForm: _answer_with(400, "Please look at the form again"),
    WrongPassword: _answer_with(401, "Unknown nickname or wrong password."),
    Refused: _answer_with(409, "This cannot be done"),
    PoolTimeout: _full,
}
