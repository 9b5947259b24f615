"""Every example of docs/guides/python-client.md and docs/guides/topics.md, and every program in examples/, runs as it
stands there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from flyball import client as package
from flyball.broker.management.part import console_part
from flyball.client import Client
from flyball.client import errors as client_errors
from flyball.errors import FlyballError
from tests.nodes import RunningNode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "python-client.md").read_text(encoding="utf-8")
TOPICS = (ROOT / "docs" / "guides" / "topics.md").read_text(encoding="utf-8")
DEFAULT_ADDRESS = "127.0.0.1:5672"


@pytest.fixture
def own_address(tmp_path: Path) -> Iterator[str]:
    """A node without queues."""
    with RunningNode(tmp_path, parts=[console_part()], store="memory", http="127.0.0.1:0", thorbang="off") as node:
        yield str(node.address("amqp"))


def blocks(kind: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


def compiled(block: str, address: str) -> CodeType:
    source = block.replace(DEFAULT_ADDRESS, address)
    code: CodeType = compile(source, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


async def run(code: CodeType, names: dict[str, object]) -> None:
    result = eval(code, names)
    if result is not None:
        await result


async def test_the_examples_of_the_page_run_one_after_the_other(own_address: str) -> None:
    first, *rest = blocks("python")
    names: dict[str, object] = {}
    await run(compiled(first, own_address), names)
    async with Client.connect(own_address) as client:
        names["client"] = client
        for block in rest:
            await run(compiled(block, own_address), names)
    assert [getattr(names[name], "text", None) for name in ("newest", "oldest")] == [
        "for number 7",
        "one",
    ]
    assert names["nothing"] is None
    assert names["another"] is not None
    assert len(names["batch"]) == 3  # type: ignore[arg-type]
    assert getattr(names["response"], "text", None) == "done"


async def test_the_examples_about_topics_run_one_after_the_other(own_address: str) -> None:
    names: dict[str, object] = {}
    async with Client.connect(own_address) as client:
        names["client"] = client
        for block in blocks("python", TOPICS):
            await run(compiled(block, own_address), names)
    assert (names["both"], names["one"], names["local"]) == (["goal", "election"], "goal", "a marathon")


def test_the_synchronous_example_runs(own_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("python sync")
    source = block.replace(DEFAULT_ADDRESS, own_address).replace(
        "    client.put", '    client.create_queue("orders")\n    client.put'
    )
    exec(compile(source, "docs/guides/python-client.md", "exec"), {})
    assert capsys.readouterr().out == "two coffees\n"


def test_every_public_method_is_on_the_page() -> None:
    methods = [name for name in vars(Client) if not name.startswith("_") and name not in ("open", "close")]
    properties = {name for name in methods if isinstance(vars(Client)[name], property)} | {"iterate_messages"}
    missing = [name for name in methods if name not in properties and f"{name}" not in PAGE]
    assert missing == []


def test_every_error_is_on_the_page() -> None:
    public = [
        error
        for error in vars(client_errors).values()
        if isinstance(error, type) and issubclass(error, FlyballError) and error.__name__ in package.__all__
    ]
    assert [error.__name__ for error in public if error.__name__ not in PAGE] == []


def run_example(name: str, address: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(ROOT / "examples" / name), address],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_hello(own_address: str) -> None:
    for _ in range(2):
        assert run_example("hello.py", own_address) == "hello, world\n"


def test_request_response(own_address: str) -> None:
    for _ in range(2):
        assert run_example("request_response.py", own_address) == ("1 squared is 1\n2 squared is 4\n3 squared is 9\n")


async def test_worker(own_address: str) -> None:
    async with Client.connect(own_address) as client:
        queue = await client.create_queue("jobs")
        await client.put_many(queue, ["a job", "broken", "a job"])
        assert run_example("worker.py", own_address) == (
            "gave up after 3 attempts: cannot do 'broken'\n2 jobs done\n"
        )
        assert await client.read_messages(queue) == []
