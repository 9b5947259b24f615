"""Visits to an auction site in the test's own process, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.types import Message

from flyball.lab.auction.database import Pool, make_pool
from flyball.lab.auction.site import make_site
from flyball.lab.auction.sizes import Sizes

TINY = Sizes(users=300, items=120, old_items=40, categories=3, regions=4, description_bytes=300)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass(frozen=True, slots=True)
class Visitor:
    """A visitor of a site that runs."""

    site: Starlette
    pool: Pool

    async def get(self, path: str) -> Reply:
        return await self.send("GET", path, None)

    async def post(self, path: str, form: dict[str, str]) -> Reply:
        return await self.send("POST", path, form)

    async def send(self, method: str, path: str, form: dict[str, str] | None) -> Reply:
        """Send a request and return what comes back."""
        path, _, query = path.partition("?")
        body = b"" if form is None else urlencode(form).encode()
        headers = [(b"host", b"shop"), (b"content-type", b"application/x-www-form-urlencoded")]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.site({**scope, "scheme": "http", "server": ("shop", 80)}, receive, send)
        reply_headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], reply_headers, b"".join(message.get("body", b"") for message in sent[1:]))

    def taken(self) -> int:
        """How many connections have been asked for so far."""
        return self.pool.get_stats().get("requests_num", 0)


def visit(dsn: str, do: Callable[[Visitor], Awaitable[T]], *, connections: int = 4, timeout_s: float = 10.0) -> T:
    """Open a site on a database, let a visitor do something there, and close it."""

    async def main() -> T:
        pool = make_pool(dsn, connections, timeout_s)
        site = make_site(pool)
        async with site.router.lifespan_context(site):
            return await do(Visitor(site, pool))

    return asyncio.run(main())
