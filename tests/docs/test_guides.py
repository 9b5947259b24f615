"""The examples of Get started and of the guides for clients run as they stand there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from flyball.broker.cluster.provisioners import Surroundings, load_provisioners
from tests.docs.pages import LIMIT_S, ROOT, PageExamples, at, dialogue, shell
from tests.nodes import RunningNode

FIRST_MESSAGE = PageExamples("get-started/first-message.md")
AMQP_CLIENTS = PageExamples("guides/amqp-clients.md")
CELERY = PageExamples("guides/celery.md")
DOMAIN = PageExamples("guides/domain.md")
NODE_MODULES = ROOT / "tests" / "broker" / "protocols" / "amqp" / "compatibility" / "clients" / "node_modules"


def test_first_message_is_that_of_the_readme() -> None:
    (first,) = FIRST_MESSAGE.blocks("python")
    assert first in (ROOT / "README.md").read_text(encoding="utf-8")


def test_first_message_arrives_by_every_way(
    node: RunningNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = FIRST_MESSAGE.blocks("python")
    FIRST_MESSAGE.run(at(node, first), {})
    (console,) = FIRST_MESSAGE.blocks("console")
    for command, shown in dialogue(console):
        assert shell(command, tmp_path, {"FLYBALL_URL": node.url}).rstrip("\n") == shown
    (client,) = FIRST_MESSAGE.blocks("python async")
    asyncio.run(FIRST_MESSAGE.run_async(at(node, client), {}))
    assert capsys.readouterr().out == "hello, world\n" * 2


def test_pika_publishes_and_consumes(node: RunningNode, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in AMQP_CLIENTS.blocks("python"):
        AMQP_CLIENTS.run(at(node, block), names)
    assert capsys.readouterr().out == "one coffee\ntwo coffees\ntea\n"


def test_aio_pika_publishes_and_consumes(node: RunningNode, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = AMQP_CLIENTS.blocks("python async")
    asyncio.run(AMQP_CLIENTS.run_async(at(node, block), {}))
    assert capsys.readouterr().out == "espresso\n"


def test_amqplib_publishes_and_gets(node: RunningNode, tmp_path: Path) -> None:
    (block,) = AMQP_CLIENTS.blocks("js")
    (tmp_path / "orders.js").write_text(at(node, block))
    printed = shell("node orders.js", tmp_path, {"NODE_PATH": str(NODE_MODULES)})
    assert printed == "two coffees\n"


def test_amqp_tools_publish_and_get(node: RunningNode, tmp_path: Path) -> None:
    (block,) = AMQP_CLIENTS.blocks("sh")
    assert shell(at(node, block), tmp_path).split("\n") == ["orders", "two coffees"]


def test_celery_does_tasks_and_returns_their_results(node: RunningNode, tmp_path: Path) -> None:
    (tasks,) = CELERY.blocks("python")
    (tmp_path / "tasks.py").write_text(at(node, tasks))
    (caller,) = CELERY.blocks("python caller")
    (tmp_path / "caller.py").write_text(at(node, caller))
    (command,) = CELERY.blocks("sh")
    arguments = command.split()
    assert arguments[0] == "celery"
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", *arguments, "--pool", "solo"], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            assert shell("python caller.py", tmp_path) == "5\nTrue\n"
        finally:
            worker.terminate()
            worker.wait(LIMIT_S)


def test_provisioner_of_the_page_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = DOMAIN.blocks("python")
    (tmp_path / "cloud_of_the_page.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "provisioners.toml"
    file.write_text('[cloud]\nkind = "cloud_of_the_page:Cloud"\nzone = "b"\n')
    found = load_provisioners(file, Surroundings("postgresql://db/x", tmp_path))
    assert set(found) == {"local", "cloud"}
