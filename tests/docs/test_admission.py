"""The examples of docs/guides/admission.md run as they stand there, before a FastAPI application with a real pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import FastAPI
from psycopg_pool import AsyncConnectionPool

from tests.admission.serving import ask, serve
from tests.docs.pages import PageExamples

PAGE = PageExamples("guides/admission.md")


def test_application_with_the_middleware_answers(new_database: Callable[[], str]) -> None:
    asyncio.run(use(new_database()))


async def use(database_url: str) -> None:
    middleware, directly = PAGE.blocks("python")
    async with AsyncConnectionPool(database_url, min_size=1, max_size=2, open=False) as pool:
        app = FastAPI()

        @app.get("/items/{item_id}")
        async def item(item_id: int) -> int:
            async with pool.connection() as connection:
                row = await (await connection.execute("SELECT %s::int", (item_id,))).fetchone()
            assert row is not None
            return int(row[0])

        names: dict[str, object] = {"pool": pool, "app": app}
        PAGE.run(middleware, names)
        async with serve(names["app"]) as port:
            answer = await ask(port, "/items/7")
            assert (answer.status, answer.body) == (200, b"7")
        await PAGE.run_async(directly, names)
