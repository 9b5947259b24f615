"""Reports to a node's console. Clients do not wait for it when it is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import h11
import pytest

from flyball.backoff import Backoff
from flyball.client import reporting
from flyball.client.reporting import KEPT_SAMPLES, LoopReporter, ReportedLoop, own_name
from flyball.control.loop import Sample
from flyball.errors import ControlError
from tests.ports import kept_port

PATIENCE_S = 30.0
FACTS = {"about": "a test", "law": "i"}


def sample(number: int) -> Sample:
    return Sample("orders", float(number), 1.0, 400.0, float(number), 2.0, number)


class Console:
    """A node that takes reports: it notes them, and answers what the test says."""

    def __init__(self, answer: Mapping[str, Any] | None = None) -> None:
        self.answer: Mapping[str, Any] = answer or {"mode": None, "needs_facts": False}
        self.status = 200
        # Reports to a path with this in it are refused.
        self.refuses = ""
        self.connections = 0
        self.paths: list[str] = []
        self.told: list[dict[str, Any]] = []
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self._port = 0
        self._kept = contextlib.ExitStack()
        self._serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://anna:secret@127.0.0.1:{self._port}"

    async def __aenter__(self) -> Console:
        self._port = self._kept.enter_context(kept_port())
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
        self._kept.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            serving = dict(self._serving)
            for writer in serving.values():
                writer.transport.abort()
            if serving:
                await asyncio.wait(serving)
            await self._server.wait_closed()
            self._server = None

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def until_told(self, count: int) -> None:
        """Wait until there are `count` samples."""
        await self.until(lambda: len(self.samples) >= count)

    @property
    def samples(self) -> list[float]:
        return [row["measurement"] for document in self.told for row in document["samples"]]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        protocol = h11.Connection(h11.SERVER)
        body = b""
        try:
            while True:
                match protocol.next_event():
                    case h11.NEED_DATA:
                        protocol.receive_data(await reader.read(65536))
                    case h11.Request(target=target, headers=headers):
                        self.paths.append(target.decode())
                        assert dict(headers)[b"authorization"] == b"Basic YW5uYTpzZWNyZXQ="
                        body = b""
                    case h11.Data(data=data):
                        body += data
                    case h11.EndOfMessage():
                        status = 403 if self.refuses and self.refuses in self.paths[-1] else self.status
                        self._note(json.loads(body), status)
                        answer = json.dumps(self.answer).encode()
                        head = h11.Response(status_code=status, headers=[("Content-Length", str(len(answer)))])
                        writer.write((protocol.send(head) or b"") + (protocol.send(h11.Data(data=answer)) or b""))
                        writer.write(protocol.send(h11.EndOfMessage()) or b"")
                        protocol.start_next_cycle()
                    case _:
                        return
        except ConnectionError:
            return
        finally:
            del self._serving[task]
            writer.close()

    def _note(self, document: dict[str, Any], status: int) -> None:
        if status == 200:
            self.told.append(document)
        self._changed.set()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_RETRIES", Backoff(0.01, 0.01))
    for limit in ("ANSWER_S", "FAREWELL_S"):
        monkeypatch.setattr(reporting, limit, PATIENCE_S)


def reporter_of(console: Console) -> LoopReporter:
    return LoopReporter(console.url, period_s=0.01)


def obedient(mode: str) -> str | None:
    return None


async def test_facts_are_told_once_and_samples_as_they_come() -> None:
    async with Console() as console:
        reporter = reporter_of(console)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        for number in range(3):
            reported.record(sample(number))
            await console.until_told(number + 1)
        await reporter.forget(reported)
    assert console.samples == [0.0, 1.0, 2.0]
    assert [document.get("facts", {}).get("title") for document in console.told[:2]] == ["orders", None]
    assert console.paths[0] == f"/api/flyball/loops/{reported.name.replace('@', '%40')}/samples"
    assert console.connections <= 2, "one for all reports, and one for the farewell"


async def test_a_node_that_has_forgotten_the_loop_is_told_the_facts_again() -> None:
    async with Console({"mode": None, "needs_facts": True}) as console:
        reporter = reporter_of(console)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        reported.record(sample(7))
        await console.until(lambda: len(console.told) >= 2)
        await reporter.forget(reported)
    assert all("facts" in document for document in console.told)
    assert all(document["samples"][0]["measurement"] == 7.0 for document in console.told), "it has not taken them yet"


async def test_a_loop_hears_in_which_mode_it_is_wanted_until_it_is_in_it() -> None:
    heard: list[str] = []

    async with Console({"mode": "shadow", "needs_facts": False}) as console:
        reporter = reporter_of(console)

        def obey(mode: str) -> str | None:
            heard.append(mode)
            reported.is_shadow = mode == "shadow"
            return None

        reported = reporter.watch_loop("orders", FACTS, obey)
        await console.until(lambda: len(console.told) >= 3)
        await reporter.forget(reported)
    assert heard == ["shadow"]
    assert [document["is_shadow"] for document in console.told[:2]] == [False, True]


async def test_a_loop_that_cannot_obey_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async with Console({"mode": "shadow", "needs_facts": False}) as console:
        reporter = reporter_of(console)
        reported = reporter.watch_loop("orders", FACTS, lambda mode: "it has no certificate")
        await console.until(lambda: len(console.told) >= 3)
        await reporter.forget(reported)
    assert [document["refusal"] for document in console.told[:2]] == [None, "it has no certificate"]
    assert caplog.text.count("it has no certificate") == 1, "it is logged once"


async def test_while_the_node_is_away_the_newest_samples_are_kept_and_told_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with Console() as console:
        await console.stop()
        reporter = reporter_of(console)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        for number in range(2 * KEPT_SAMPLES):
            reported.record(sample(number))
        while reporter.failures < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await console.start()
        await console.until(lambda: len(console.samples) > 0)
        await reporter.forget(reported)
    assert console.samples == [float(number) for number in range(KEPT_SAMPLES, 2 * KEPT_SAMPLES)]
    assert caplog.text.count("reporting to http://127.0.0.1") == 1, "it is logged once"
    assert "secret" not in caplog.text


async def test_a_connection_that_is_lost_loses_no_sample() -> None:
    async with Console() as console:
        reporter = reporter_of(console)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        reported.record(sample(0))
        await console.until(lambda: console.samples == [0.0])
        await console.stop()
        reported.record(sample(1))
        await console.start()
        await console.until(lambda: console.samples == [0.0, 1.0])
        await reporter.forget(reported)


async def test_who_is_refused_goes_on_trying() -> None:
    async with Console() as console:
        console.status = 403
        reporter = reporter_of(console)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        reported.record(sample(0))
        while reporter.failures < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        console.status = 200
        await console.until(lambda: console.samples == [0.0])
        await reporter.forget(reported)


async def test_one_that_is_refused_neither_slows_nor_silences_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_RETRIES", Backoff(3600.0, 3600.0))
    async with Console() as console:
        console.refuses = "taken"
        reporter = reporter_of(console)
        refused, taken = (reporter.watch_loop(title, FACTS, obedient) for title in ("taken", "orders"))
        for number in range(3):
            taken.record(sample(number))
            await console.until_told(number + 1)
        await reporter.forget(taken)
        await reporter.forget(refused)
    assert console.samples == [0.0, 1.0, 2.0]
    [warning] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "refused by http://127.0.0.1" in warning.message


async def test_one_that_fails_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("out of order")

    async with Console() as console:
        reporter = reporter_of(console)
        failing = reporter.watch_admission("shop", broken, FACTS, lambda is_shadow: None)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        for number in range(3):
            reported.record(sample(number))
            await console.until_told(number + 1)
        await reporter.forget(reported)
        await reporter.forget(failing)
    assert console.samples == [0.0, 1.0, 2.0]
    assert caplog.text.count("RuntimeError: out of order") == 1, "it is logged once"


async def test_to_stop_watching_tells_the_rest_and_leaves_no_task_behind() -> None:
    async with Console() as console:
        reporter = LoopReporter(console.url, period_s=3600)
        reported = reporter.watch_loop("orders", FACTS, obedient)
        await console.until(lambda: len(console.told) == 1)
        reported.record(sample(5))
        await reporter.forget(reported)
        await reporter.forget(reported)
    assert console.samples == [5.0]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_json_cannot_say_is_told_as_nothing() -> None:
    loop = ReportedLoop("orders", FACTS, obedient)
    loop.record(Sample("orders", 0.0, 1.0, 400.0, float("nan"), float("inf"), 1))
    [row] = reporting._without_nan(loop.document())["samples"]
    assert (row["measurement"], row["action"], row["setpoint"]) == (None, None, 400.0)


def test_loops_of_one_title_have_names_of_their_own() -> None:
    names = [own_name("the same title") for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith("the same title@") for name in names)


@pytest.mark.parametrize("url", ["amqp://host", "host:15672", "http://", "http://anna:secret@host:none"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ControlError, match="http://user:password@host:15672") as refused:
        LoopReporter(url)
    assert "secret" not in str(refused.value)
