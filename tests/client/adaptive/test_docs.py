"""The blocks of docs/guides/adaptive-consumers.md and the example run as they stand there; what they say holds."""

from __future__ import annotations

import ast
import asyncio
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from flyball.client import adaptive
from flyball.client.adaptive import AdaptiveConsumer, Fast, FractionalWindow, Latency, Pacer, Rate, Window
from flyball.client.adaptive.goals import FAST_GAIN, default_law
from flyball.control.laws import Multiplicative
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.client.adaptive.work import drain, fill

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "adaptive-consumers.md").read_text(encoding="utf-8")
DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


async def run(block: str, broker: Broker, queue_name: str, names: dict[str, Any]) -> None:
    assert DEFAULT_URL in block
    source = block.replace(DEFAULT_URL, broker.url()).replace('"orders"', repr(queue_name))
    code = compile(source, "docs/guides/adaptive-consumers.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if result is not None:
        await result


async def test_the_blocks_run_one_after_the_other(
    broker: Broker, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(broker.url(), name, 5)
    first, second = blocks()
    names: dict[str, Any] = {}
    await run(first, broker, name, names)
    handle, is_done = names["handle"], asyncio.Event()

    async def handle_and_tell(message: Any) -> None:
        await handle(message)
        is_done.set()

    names["handle"] = handle_and_tell
    running = asyncio.ensure_future(names["main"]())
    await is_done.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await run(second, broker, name, names)
    assert capsys.readouterr().out.startswith("ConsumerState(is_connected=True")
    await drain(broker.url(), name)


async def test_the_example_shows_what_it_does_and_ends_cleanly(broker: Broker, name: str) -> None:
    await fill(broker.url(), name, 800)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "adaptive_consumer.py"),
        broker.url(),
        name,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert re.fullmatch(r" *[\d.]+ messages/s, pace +[\d.]+\n", (await process.stdout.readline()).decode())
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    left = await drain(broker.url(), name)
    assert left == sorted(left, key=lambda text: int(text.rstrip("*")))


def test_all_that_is_public_is_on_the_page() -> None:
    unnamed = {"ConsumerState", "Goal"}
    assert [name for name in adaptive.__all__ if name not in PAGE and name not in unnamed] == []


@pytest.mark.parametrize(
    ("goal", "actuator", "law"),
    [
        (Rate(400), Pacer, f"multiplicative, exponent {Multiplicative().exponent:g}"),
        (Latency(0.05), Window, "the same"),
        (Fast(), Window, f"integral, gain {FAST_GAIN:g}"),
    ],
)
def test_defaults_on_the_page_are_those_of_the_code(goal: Any, actuator: type[Any], law: str) -> None:
    async def handle(message: Any) -> None: ...

    consumer = AdaptiveConsumer("amqp://nowhere", "orders", handle, goal)
    assert isinstance(consumer._actuator, actuator)
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{type(goal).__name__}(")]
    assert row.endswith(f"| `{actuator.__name__}()` | {law} |")
    assert f"gain margin of {default_law(goal)[1].gain_margin:g}" in PAGE.replace("\n", " ")


def test_limits_on_the_page_are_those_of_the_code() -> None:
    for actuator in (Window(), FractionalWindow()):
        limits = actuator.default_limits(Fast())
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{type(actuator).__name__}()`")]
        assert row.endswith(f"| {limits.lowest:g} and {limits.highest:g} |")
    limits = Pacer().default_limits(Rate(100))
    assert (limits.lowest, limits.highest) == (10, 200), "a tenth and twice the goal"


def test_links_of_the_page_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]*?)(?:#[^)]*)?\)", PAGE)
    assert [target for target in targets if not (ROOT / "docs" / "guides" / target).exists()] == []
