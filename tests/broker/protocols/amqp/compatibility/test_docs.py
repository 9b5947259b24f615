"""The examples of docs/reference/protocols/amqp.md, the first message of the README and the AMQP programs in
examples/ run as they stand there.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pika
import pytest

from flyball.broker.engine.policies import KEYS
from flyball.broker.engine.traits import _CHECKS
from flyball.broker.protocols.amqp.context import _CAPABILITIES
from tests.nodes import RunningNode

ROOT = Path(__file__).parents[5]
PAGE = ROOT / "docs" / "reference" / "protocols" / "amqp.md"
README = ROOT / "README.md"
DEFAULT_ADDRESS = "127.0.0.1:5672"


@pytest.fixture
def own_address(tmp_path: Path) -> Iterator[str]:
    """A node without queues."""
    with RunningNode(tmp_path, store="memory", telesto="off", thorbang="off") as node:
        yield str(node.address("amqp"))


def blocks(page: Path, kind: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def compiled(block: str, page: Path, address: str) -> CodeType:
    source = block.replace(DEFAULT_ADDRESS, address)
    code: CodeType = compile(source, str(page.relative_to(ROOT)), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


def test_what_the_page_publishes_with_pika_it_gets_with_aio_pika(
    own_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {}
    (published,) = blocks(PAGE, "python")
    exec(compiled(published, PAGE, own_address), names)

    async def run_the_others() -> None:
        for block in blocks(PAGE, "python async"):
            await eval(compiled(block, PAGE, own_address), names)

    asyncio.run(run_the_others())
    assert capsys.readouterr().out == "dealt with\n"
    assert message_count(own_address, "orders") == 0


def test_the_example_with_celery_makes_an_application(own_address: str) -> None:
    (block,) = blocks(PAGE, "python celery")
    names: dict[str, object] = {"__name__": "tasks"}
    exec(compiled(block, PAGE, own_address), names)
    assert names["add"](2, 3) == 5  # type: ignore[operator]


def test_the_first_message_of_the_readme_arrives(own_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    (first,) = [block for block in blocks(README, "python") if "pika" in block]
    assert len(first.splitlines()) < 10
    exec(compiled(first, README, own_address), {})
    assert capsys.readouterr().out == "hello, world\n"


def test_every_argument_of_a_queue_and_every_capability_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in _CHECKS if f"| `{name}` |" not in page] == []
    assert [name for name in _CAPABILITIES if name not in page] == []


def test_every_setting_of_a_policy_is_told() -> None:
    page = (ROOT / "docs" / "operate" / "users.md").read_text(encoding="utf-8")
    assert [name for name in KEYS if f"`{name}`" not in page] == []


def test_a_work_queue_with_confirms_and_acknowledgements(own_address: str) -> None:
    for _ in range(2):
        printed = run_example("amqp_work_queue.py", own_address)
        assert printed == (
            "printed cover\nprinted contents\ngave up: cannot print 'broken'\nprinted index\nnothing left to do\n"
        )
    assert message_count(own_address, "pages") == 0


def test_requests_answered_by_direct_reply_to(own_address: str) -> None:
    for _ in range(2):
        printed = run_example("amqp_rpc.py", own_address)
        assert printed == "1 squared is 1\n2 squared is 4\n3 squared is 9\n"


def run_example(name: str, address: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(ROOT / "examples" / name), f"amqp://guest:guest@{address}/%2F"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # On a busy machine asyncio's debug mode reports steps that took long: that says nothing about the example.
    stderr = re.sub(r"^Executing <.*> took [\d.]+ seconds\n", "", done.stderr, flags=re.MULTILINE)
    assert (done.returncode, stderr) == (0, "")
    return done.stdout


def message_count(address: str, queue_name: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{address}/%2F")) as connection:
        declared = connection.channel().queue_declare(queue_name, passive=True)
        return int(declared.method.message_count)
