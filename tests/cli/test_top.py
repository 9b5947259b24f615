"""`flyball top`: what it reads from a real node, what it draws of it, and how it is on a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from rich.console import Console
from tests.nodes import RunningNode
from typer.testing import CliRunner, Result

from flyball.broker.management import node_sampler
from flyball.broker.management.part import console_part
from flyball.cli.main import app
from flyball.cli.view.feed import Feed, Seen, Sort
from flyball.cli.view.screen import screen
from flyball.cli.view.sparklines import mebibytes, milliseconds, short, sparks
from flyball.client.http import Place

LIMIT_S = 60.0
QUIET = {"COLUMNS": "120", "LINES": "40", "TERM": "dumb", "NO_COLOR": "1"}


@pytest.fixture
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sampler, "SAMPLE_S", 0.02)


def north(tmp_path: Path, http: str = "127.0.0.1:0") -> RunningNode:
    return RunningNode(tmp_path / "data", parts=[console_part()], store="memory", name="north", http=http)


@pytest.fixture
def node(tmp_path: Path, quick_samples: None) -> Iterator[RunningNode]:
    with north(tmp_path) as node:
        address = node.address("amqp")
        connection = pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port))
        channel = connection.channel()
        channel.confirm_delivery()
        for queue, count in (("orders", 3), ("mails", 1), ("a.quiet.one", 0)):
            channel.queue_declare(queue)
            for _ in range(count):
                channel.basic_publish("", queue, b"body")
        connection.close()
        yield node


def url_of(node: RunningNode, user: str = "guest:guest") -> str:
    return f"http://{user}@{node.address('http')}"


def top(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["top", *arguments], env=QUIET)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def assert_one_line(result: Result, told: str, code: int = 1) -> None:
    assert told in result.stderr
    assert (result.stderr.count("\n"), result.exit_code, result.stdout) == (1, code, "")


def seen_of(node: RunningNode, sort: Sort = Sort.RATE) -> Seen:
    seen = Seen(f"http://{node.address('http')}", sort)

    async def look() -> None:
        async with asyncio.timeout(LIMIT_S):
            await Feed(Place(url_of(node)), seen, lambda: None).look_once()

    asyncio.run(look())
    return seen


def drawn(seen: Seen, width: int, height: int, *, is_paused: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(screen(seen, width, height, is_paused=is_paused), height=height)
    return out.getvalue()


# For machines


def test_one_sample_tells_rates_gauges_phases_queues_and_loops(node: RunningNode) -> None:
    result = top("--url", url_of(node), "--once", "--json")
    assert result.exit_code == 0
    (sample,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert sample["node"] == "north"
    assert (sample["gauges"]["ready"], sample["gauges"]["queues"]) == (4, 3)
    assert sample["rates"]["publish"] >= 0
    assert {"publish", "get"} <= sample["latency_ms"].keys()
    assert sample["alarms"] == []
    assert "north.memory" in [loop["name"] for loop in sample["loops"]]
    found = {queue["name"]: queue for queue in sample["queues"]}
    assert (found["orders"]["ready"], found["orders"]["vhost"], sample["queue_count"]) == (3, "/", 3)
    assert found["orders"]["rates"].keys() == {"publish", "deliver", "ack"}


def test_the_address_may_come_from_the_environment(node: RunningNode) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--json"], env={**QUIET, "FLYBALL_URL": url_of(node)})
    assert json.loads(result.stdout)["node"] == "north"


def test_without_once_there_is_a_line_for_each_sample_until_nobody_reads(node: RunningNode) -> None:
    command = [sys.executable, "-m", "flyball", "top", "--url", url_of(node), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.stdout.close()
        complaints = process.stderr.read()
        code = process.wait(LIMIT_S)
    assert first["at"] < second["at"]
    assert (code, complaints) == (1, "")


def test_who_may_not_monitor_sees_its_queues_and_not_the_node(node: RunningNode) -> None:
    node.run(lambda node: node.hub.authority.add_user("ann", "secret", ["management"]))
    result = top("--url", url_of(node, "ann:secret"), "--once", "--json")
    sample = json.loads(result.stdout)
    assert set(sample) == {"at", "node", "queues", "queue_count"}
    assert sample["queues"] == []
    result = top("--url", url_of(node, "ann:secret"), "--once")
    assert result.exit_code == 0
    assert "live" in result.stdout
    assert "no alarms" not in result.stdout, "it is not told of them"


# What goes wrong


def test_a_node_that_is_not_there_is_told_in_a_line() -> None:
    assert_one_line(top("--url", "http://guest:guest@127.0.0.1:1", "--once"), "127.0.0.1:1: connection refused")


def test_a_wrong_password_is_told_in_a_line_that_does_not_show_it(node: RunningNode) -> None:
    result = top("--url", url_of(node, "guest:hunter2"), "--once")
    assert_one_line(result, "Use a user with the tag monitoring")
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize("url", ["ftp://host", "http://guest:hunter2@host:port", "host:15672"])
def test_a_wrong_address_is_told_in_a_line_that_does_not_show_it(url: str) -> None:
    result = top("--url", url, "--once")
    assert_one_line(result, "address: use http://user:password@host:15672", 2)
    assert "hunter2" not in result.stderr


def test_without_a_terminal_it_says_what_to_give(node: RunningNode) -> None:
    assert_one_line(top("--url", url_of(node)), "not a terminal: use --once", 2)


@pytest.mark.usefixtures("quick_samples")
def test_when_the_node_goes_away_it_says_so_and_when_it_is_back_it_goes_on(tmp_path: Path) -> None:
    async def follow() -> None:
        first = await asyncio.to_thread(north(tmp_path / "first").__enter__)
        news = asyncio.Event()
        seen = Seen("")
        place = Place(url_of(first))

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                news.clear()
                await news.wait()

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(Feed(place, seen, news.set).run())
            await until(lambda: seen.problem is None)
            gone_at = seen.last["at"]
            await asyncio.to_thread(first.stop)
            await until(lambda: seen.problem is not None)
            assert "unreachable: " in drawn(seen, 100, 30)
            second = await asyncio.to_thread(north(tmp_path / "second", f"127.0.0.1:{place.port}").__enter__)
            await until(lambda: seen.problem is None)
            assert seen.last["at"] > gone_at
            following.cancel()
        await asyncio.to_thread(second.stop)

    asyncio.run(follow())


# The screen


def test_a_screen_shows_what_a_real_node_tells(node: RunningNode) -> None:
    text = drawn(seen_of(node), 120, 40)
    for told in ("north", "live", "published", "acknowledged", "no alarms", "milliseconds by phase", "north.memory"):
        assert told in text
    assert "queues by rate, 3 of 3" in text


@pytest.mark.parametrize(
    ("sort", "order"),
    [(Sort.BACKLOG, ["orders", "mails", "a.quiet.one"]), (Sort.NAME, ["a.quiet.one", "mails", "orders"])],
)
def test_queues_come_in_the_order_that_is_wished(node: RunningNode, sort: Sort, order: list[str]) -> None:
    text = drawn(seen_of(node, sort), 120, 40)
    assert sorted(order, key=text.index) == order


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (40, 10)])
def test_a_screen_is_as_large_as_the_terminal(node: RunningNode, width: int, height: int) -> None:
    lines = drawn(seen_of(node), width, height).splitlines()
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_before_anything_is_known_there_is_a_screen_all_the_same() -> None:
    assert "http://host:15672  connecting" in drawn(Seen("http://host:15672"), 100, 30)


def test_alarms_stand_out_and_a_pause_is_told(node: RunningNode) -> None:
    seen = seen_of(node)
    seen.last["alarms"] = ["low on memory"]
    text = drawn(seen, 120, 40, is_paused=True)
    assert "ALARM: low on memory" in text
    assert " paused " in text


def test_names_cannot_confuse_the_terminal(node: RunningNode) -> None:
    seen = seen_of(node)
    seen.queues[0]["name"] = "evil\x1b[2J"
    assert "\x1b[2J" not in drawn(seen, 120, 40)


def test_sparks_grow_with_the_values_and_leave_gaps() -> None:
    assert sparks([0, 5, 10], 3) == "▁▅█"
    assert sparks([0, None, 10], 5) == "  ▁ █"
    assert sparks([1, 2, 3, 4], 2) == "▇█"
    assert sparks([0, 0], 2) == "▁▁"
    assert sparks([5], 1, highest=10) == "▅"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0"), (3.456, "3.46"), (12345.6, "12,346"), (2_500_000, "2.5 M")]
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert short(value) == text


def test_units_are_told() -> None:
    assert (mebibytes(3 * 2**20), mebibytes(None)) == ("3.0 MiB", "–")
    assert (milliseconds(0.1234), milliseconds(1234.5), milliseconds(None)) == ("0.123", "1234", "–")


# On a terminal


class Terminal:
    """A terminal with `flyball top` in it."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = pty.openpty()
        self._before = termios.tcgetattr(theirs)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        command = [sys.executable, "-m", "flyball", "top", "--url", url]
        self._theirs = theirs
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def until(self, told: str) -> str:
        """Return all that is shown until this is."""
        shown = ""
        while told not in shown:
            shown += os.read(self._ours, 65536).decode(errors="replace")
        return shown

    def ended(self) -> int:
        """Return its exit code; the terminal has to be as it was."""
        self.until("\x1b[?1049l")
        code = self.process.wait(LIMIT_S)
        assert termios.tcgetattr(self._theirs) == self._before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(url: str) -> Iterator[Any]:
    found = Terminal(url)
    try:
        yield found
    finally:
        found.close()


def test_keys_sort_pause_and_quit(node: RunningNode) -> None:
    with terminal(url_of(node)) as screen:
        screen.until("live")
        screen.press("s")
        screen.until("queues by backlog")
        screen.press("p")
        screen.until(" paused ")
        screen.press("q")
        assert screen.ended() == 0


def test_ctrl_c_leaves_the_terminal_clean(node: RunningNode) -> None:
    with terminal(url_of(node)) as screen:
        screen.until("queues by rate")
        screen.process.send_signal(signal.SIGINT)
        assert screen.ended() == 130


def test_a_refusal_ends_it_and_is_told_when_the_terminal_is_clean(node: RunningNode) -> None:
    with terminal(url_of(node, "guest:wrong")) as screen:
        shown = screen.until("Use a user with the tag monitoring")
        assert "\x1b[?1049l" in shown
        assert screen.process.wait(LIMIT_S) == 1
