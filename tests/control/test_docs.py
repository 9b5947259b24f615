"""The examples of docs/how-it-works/control.md run as they stand there; the code makes its tables and figures."""

from __future__ import annotations

import ast
import asyncio
import importlib.machinery
import importlib.util
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import aio_pika
import pytest

from flyball.control.design import LAMBDA
from flyball.control.laws import Multiplicative, Scheduled, SelfTuning
from flyball.control.simulation import SEED_MODEL
from tests.nodes import RunningNode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works" / "control.md").read_text(encoding="utf-8")
IMAGES = ROOT / "docs" / "images"
DEFAULT_ADDRESS = "127.0.0.1:5672"
MOST_BYTES = 60_000
QUICK_TABLES = ["identification", "design", "margins", "delays", "fractions", "disturbances"]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("control_tables", str(ROOT / "scripts" / "control-tables"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def own_address(tmp_path: Path) -> Iterator[str]:
    """A node without queues."""
    with RunningNode(tmp_path, store="memory", telesto="off", thorbang="off") as node:
        yield str(node.address("amqp"))


def examples() -> list[tuple[str, str]]:
    """Return each example that needs no broker, and what it prints."""
    pattern = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?"
    return re.findall(pattern, PAGE, flags=re.MULTILINE | re.DOTALL)


async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    """The handler that the page has defined before."""


def test_the_examples_print_what_the_page_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"handle": handle}
    for source, printed in examples():
        exec(compile(source, "docs/how-it-works/control.md", "exec"), names)
        assert capsys.readouterr().out == printed


def test_the_consumer_of_the_page_consumes(own_address: str) -> None:
    assert asyncio.run(consumed(own_address)) == [b"1", b"2", b"3"]


async def consumed(own_address: str) -> list[bytes]:
    """Put three messages into the queue of the example, and return what its handler got."""
    (block,) = re.findall(r"^```python broker\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    bodies: list[bytes] = []
    all_came = asyncio.Event()

    async def process(body: bytes) -> None:
        bodies.append(body)
        if len(bodies) == 3:
            all_came.set()

    async with await aio_pika.connect(f"amqp://guest:guest@{own_address}/") as connection:
        channel = await connection.channel()
        await channel.declare_queue("orders")
        for body in (b"1", b"2", b"3"):
            await channel.default_exchange.publish(aio_pika.Message(body), "orders")
    source = block.replace(DEFAULT_ADDRESS, own_address)
    names: dict[str, object] = {"process": process}
    code = compile(source, "docs/how-it-works/control.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        tasks.create_task(eval(code, names))
        await all_came.wait()
        await names["consumer"].stop()  # type: ignore[attr-defined]
    return sorted(bodies)


@pytest.mark.parametrize("name", QUICK_TABLES)
def test_a_table_of_the_page_is_the_one_that_its_script_prints(name: str, tables: ModuleType) -> None:
    assert "\n".join(tables.lines(tables.TABLES[name]())) in PAGE


def test_rows_of_the_table_of_simulations_are_those_that_its_script_prints(tables: ModuleType) -> None:
    heading, _, *rows = tables.lines(tables.simulated(["PI printed", "multiplicative"]))
    assert [line for line in (heading, *rows) if line not in PAGE] == []


def test_the_table_of_simulations_has_every_law_of_its_script(tables: ModuleType) -> None:
    assert [name for name in tables.simulated_laws() if f"\n| {name} | " not in PAGE] == []


def test_the_page_names_each_table_of_the_script(tables: ModuleType) -> None:
    assert [name for name in tables.TABLES if f"`scripts/control-tables {name}`" not in PAGE] == []


def test_the_page_shows_each_figure_of_the_script_and_no_other(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "control-figures"
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == set(re.findall(r"\]\(\.\./images/(control-\S+\.svg)\)", PAGE))
    assert drawn == {path.name for path in IMAGES.glob("control-*")}


def test_figures_are_small_and_their_text_is_text() -> None:
    for path in IMAGES.glob("control-*.svg"):
        content = path.read_text(encoding="utf-8")
        assert len(content.encode()) < MOST_BYTES
        assert "</text>" in content


def test_defaults_on_the_page_are_those_of_the_code() -> None:
    assert f"| κ = {Multiplicative().exponent:g} |" in PAGE
    assert f"| p = {SelfTuning().pole:g} |" in PAGE
    assert f"| p = {Scheduled((0, 1), (0, 1)).pole:g} |" in PAGE
    assert f"| λ-tuned, λ = {LAMBDA:g} |" in PAGE
    law = SelfTuning()
    assert f"between {law.lowest_elasticity:g} and {law.highest_elasticity:g}" in PAGE.replace("\n", " ")


def test_what_is_said_about_the_model_of_the_prefetch_paper_follows_from_it() -> None:
    a, b = SEED_MODEL.a, SEED_MODEL.b
    assert f"{SEED_MODEL.gain:.1f}" == "80.7"
    assert [round(u * SEED_MODEL.gain) for u in (1, 22)] == [81, 1776]
    most_kp = (1 + a) / b
    assert round(400 * b * most_kp / (1 - a + b * most_kp)) == 252
    assert round(92.1 / math.sqrt(1 - a**2)) == 95
    kp = (a - 0.36) / b
    assert [round((a + sign * kp * b) / b, 5) for sign in (1, -1)] == [0.00268, 0.00603]
    kd = 0.11 / b
    pid_kp = (a - 0.063 - 2 * b * kd) / b
    assert round(pid_kp, 6) == -0.000385
    assert round((0.3 + a - b * pid_kp - b * kd) / b, 6) == 0.007919
    assert round(math.sqrt(8485.95), 1) == 92.1
    assert round(92.1 / math.sqrt(1 - 0.8)) == 206


def test_links_of_the_page_lead_somewhere() -> None:
    for target, anchor in re.findall(r"\]\(([a-z][^)#:]*)?(?:#([^)]*))?\)", PAGE):
        path = ROOT / "docs" / "how-it-works" / (target or "control.md")
        assert path.exists()
        if anchor:
            assert anchor in anchors(path)


def anchors(path: Path) -> list[str]:
    """Return what the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
