"""An adaptive consumer reports to the console and is switched there, from the library and from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from flyball.cli.main import app
from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, Rate, Window
from flyball.client.reporting import LoopReporter
from flyball.control.laws import ProportionalIntegral
from tests.client.adaptive.work import Work, fill, until
from tests.nodes import RunningNode

LIMIT_S = 60.0


def url_of(node: RunningNode, scheme: str) -> str:
    return f"{scheme}://guest:guest@{node.address(scheme)}"


class Page:
    """The console's page of the loops of one queue."""

    def __init__(self, api: httpx.Client) -> None:
        self._client = httpx.AsyncClient(base_url=str(api.base_url), auth=("guest", "guest"), timeout=LIMIT_S)

    async def __aenter__(self) -> Page:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def loop(self, title: str, **wanted: object) -> dict[str, Any]:
        """Return the loop of that title when it is as wanted."""
        while True:
            for found in (await self._client.get("/loops")).json():
                if found["title"] == title and all(found[name] == value for name, value in wanted.items()):
                    return dict(found)

    async def switch(self, name: str, mode: str) -> httpx.Response:
        return await self._client.put(f"/loops/{name}/mode", json={"mode": mode})

    async def samples(self, name: str) -> list[dict[str, float]]:
        return list((await self._client.get(f"/loops/{name}")).json()["samples"])


def test_a_consumer_in_shadow_is_made_active_and_brought_back(api: httpx.Client, node: RunningNode) -> None:
    async def scenario() -> None:
        await fill(url_of(node, "amqp"), "orders", 3000)
        work = Work()
        consumer = AdaptiveConsumer(
            url_of(node, "amqp"),
            "orders",
            work,
            Rate(100),
            options=AdaptiveOptions(
                sample_time_s=0.1, is_shadow=True, reporter=LoopReporter(url_of(node, "http"), period_s=0.02)
            ),
        )
        async with Page(api) as page, consumer:
            loop = await page.loop("orders", is_shadow=True, setpoint=100.0)
            assert (loop["law"], loop["acts"]["unit"]) == ("multiplicative", "messages/s")
            assert loop["certificate"]["is_sound"]
            assert consumer.state.pace_per_s is None, "nothing is held back in shadow"
            assert (await page.switch(loop["name"], "active")).status_code == 200
            await page.loop("orders", is_shadow=False)
            await until(lambda: consumer.state.pace_per_s is not None)
            assert (await page.switch(loop["name"], "shadow")).status_code == 200
            await page.loop("orders", is_shadow=True, wanted_mode="shadow")
            assert consumer.state.pace_per_s is not None, "what was applied last stays"
            assert await page.samples(loop["name"]), "its samples have come"

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_a_consumer_without_a_certificate_is_not_made_active(api: httpx.Client, node: RunningNode) -> None:
    async def scenario() -> None:
        await fill(url_of(node, "amqp"), "orders", 10)
        consumer = AdaptiveConsumer(
            url_of(node, "amqp"),
            "orders",
            Work(),
            Rate(100),
            options=AdaptiveOptions(
                actuator=Window(),
                law=ProportionalIntegral(0.1, 0.1),
                sample_time_s=0.1,
                is_shadow=True,
                reporter=LoopReporter(url_of(node, "http"), period_s=0.02),
            ),
        )
        async with Page(api) as page, consumer:
            loop = await page.loop("orders")
            refused = await page.switch(loop["name"], "active")
            assert (refused.status_code, "no certificate" in refused.json()["reason"]) == (409, True)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_a_consumer_does_not_care_whether_the_console_is_there(node: RunningNode) -> None:
    async def scenario() -> None:
        await fill(url_of(node, "amqp"), "orders", 200)
        work = Work()
        reporter = LoopReporter("http://127.0.0.1:1", period_s=0.02)
        async with AdaptiveConsumer(
            url_of(node, "amqp"),
            "orders",
            work,
            Rate(1e6),
            options=AdaptiveOptions(sample_time_s=0.1, reporter=reporter),
        ):
            await until(lambda: reporter.failures > 0)
            await work.until_done(200)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_the_command_line_reports_too(api: httpx.Client, node: RunningNode, tmp_path: Path) -> None:
    asyncio.run(fill(url_of(node, "amqp"), "orders", 1000))

    async def scenario() -> None:
        async with Page(api) as page:
            loop = await page.loop("orders", is_shadow=True)
            await page.switch(loop["name"], "active")
            await page.loop("orders", is_shadow=False, setpoint=50.0)

    def look() -> None:
        asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
        os.kill(os.getpid(), signal.SIGINT)

    command = ["control", "run", "--queue", "orders", "--rate", "50", "--shadow", "--handler-ms", "1", "--quiet"]
    command += ["--url", url_of(node, "amqp"), "--report", url_of(node, "http"), "--sample-time", "0.1"]
    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        result = CliRunner().invoke(app, [*command, "--out", str(tmp_path), "--seconds", str(LIMIT_S)])
    looking.result()
    assert "interrupted: the figures cover" in result.output
