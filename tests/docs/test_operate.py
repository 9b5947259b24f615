"""The examples of the pages for operators run as they stand there, and the texts that they quote exist."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
import yaml

from flyball.broker.settings import load_settings
from flyball.client.sync import Client
from tests.docs.pages import ROOT, PageExamples, at, shell
from tests.nodes import RunningNode, ServeProcess, with_api
from tests.ports import kept_port

BACKUP = PageExamples("operate/backup.md")
CONFIGURE = PageExamples("operate/configure.md")
SIZING = PageExamples("operate/sizing.md")
TLS = PageExamples("operate/tls.md")
MONITORING = PageExamples("operate/monitoring.md")
TROUBLESHOOTING = PageExamples("operate/troubleshooting.md")
MIGRATION = PageExamples("operate/migrate-from-rabbitmq.md")
UPGRADE = PageExamples("operate/upgrade.md")
HIGH_AVAILABILITY = PageExamples("operate/high-availability.md")

# What a placeholder of the page, of an f-string or of a log call stands for.
_PLACE = re.compile(r"…|%[-.\d]*[sdfgr]")
_METRIC = re.compile(r"\b(?:flyball|rabbitmq)_\w+")


def test_settings_file_can_be_used(tmp_path: Path) -> None:
    (block,) = CONFIGURE.blocks("toml")
    file = tmp_path / "flyball.toml"
    file.write_text(block)
    settings = load_settings({"config": str(file)}, {})
    assert (settings.name, settings.memory_bytes) == ("north", 2 << 30)


def test_figures_for_sizing_are_those_of_the_measurements() -> None:
    measured = PageExamples("how-it-works/performance.md").text
    table = SIZING.text.split("| load | messages per second |")[1].split("\n\n", 1)[0]
    figures = re.findall(r"\| ([\d,]+) \|$", table, flags=re.MULTILINE)
    assert len(figures) == 4
    assert [figure for figure in [*figures, "521"] if figure not in measured] == []


def test_tls_certificates_serve_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (certificates,) = TLS.blocks("sh openssl")
    shell(certificates, tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = {"store": "memory", "amqps": "127.0.0.1:0", "tls_cert": "node.crt", "tls_key": "node.key"}
    with RunningNode(tmp_path / "data", **with_api(**settings)) as node:
        port = str(node.address("amqps").port)
        (block,) = TLS.blocks("python")
        assert re.search(r"^    5671,$", block, flags=re.MULTILINE)
        TLS.run(block.replace("5671", port), {})
        (block,) = TLS.blocks("python async")
        asyncio.run(TLS.run_async(at(node, block), {}))
        (user,) = TLS.blocks("sh user")
        shell(user, tmp_path, {"FLYBALL_URL": node.url})
        (check,) = TLS.blocks("sh check")
        assert json.loads(shell(at(node, check), tmp_path))["status"] == "failed", "it ends in 30 days"
    assert capsys.readouterr().out == "hello over TLS\n" * 2


def test_monitoring_checks_answer(node: RunningNode, tmp_path: Path) -> None:
    (user, *_) = MONITORING.blocks("sh")
    shell(user, tmp_path, {"FLYBALL_URL": node.url})
    probes, checks = MONITORING.blocks("sh check")
    port = node.address("amqp").port
    for command in (probes + checks).splitlines():
        command = at(node, command).replace("port-listener/5672", f"port-listener/{port}")
        assert json.loads(shell(command, tmp_path))["status"] == "ok"
    (status,) = MONITORING.blocks("sh status")
    assert "store" in shell(status, tmp_path, {"FLYBALL_URL": node.url})


def test_monitoring_alerts_use_metrics_that_exist(node: RunningNode) -> None:
    (rules,) = MONITORING.blocks("yaml rules")
    alerts = [rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in alerts if f"| `{rule['alert']}` |" not in MONITORING.text] == []
    with httpx.Client(base_url=node.url, auth=("guest", "guest")) as client:
        client.put("/api/queues/%2F/orders", json={"durable": True}).raise_for_status()
        known = set(_METRIC.findall(client.get("/metrics").text + client.get("/metrics/per-object").text))
    # The gauge of the lease is there in a domain only.
    known.add("flyball_node_lease_held")
    named = {name for rule in alerts for name in _METRIC.findall(rule["expr"])}
    assert named - known == set()
    (scraping,) = MONITORING.blocks("yaml")
    assert [job["job_name"] for job in yaml.safe_load(scraping)["scrape_configs"]] == ["flyball"]


def test_migration_takes_over_definitions_and_messages(
    node: RunningNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another node stands for the RabbitMQ: what RabbitMQ exports is compared in tests/broker/management."""
    with RunningNode(tmp_path / "old", **with_api(store="memory")) as old:

        def moved(text: str) -> str:
            text = text.replace("rabbitmq:15672", str(old.address("http")))
            return at(node, text.replace("rabbitmq:5672", str(old.address("amqp"))))

        with Client.connect(str(old.address("amqp"))) as client:
            client.create_queue("orders")
            client.put_many("orders", ["one", "two", "three"])
        with httpx.Client(base_url=f"{old.url}/api", auth=("guest", "guest")) as api:
            api.put("/users/ann", json={"password": "secret", "tags": ""}).raise_for_status()
        (definitions,) = MIGRATION.blocks("sh")
        shell(moved(definitions), tmp_path)
        (password,) = MIGRATION.blocks("sh password")
        assert shell(password, tmp_path, {"FLYBALL_URL": node.url})
        (script,) = MIGRATION.blocks("python")
        MIGRATION.run(moved(script), {})
    with Client.connect(str(node.address("amqp"))) as client:
        assert [message.text for message in client.take_many("orders", 5)] == ["one", "two", "three"]
    assert capsys.readouterr().out == "3\n"


def quotations() -> Iterator[str]:
    """Yield the messages that the tables of the page quote."""
    for section in re.split(r"^## ", TROUBLESHOOTING.text, flags=re.MULTILINE):
        if re.search(r"^\| (message|reason) \|", section, flags=re.MULTILINE):
            yield from re.findall(r"^\| `([^`]+)`", section, flags=re.MULTILINE)


@cache
def texts_of_the_source() -> str:
    """Return all texts of the program, with placeholders as the page writes them, one per line."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(_PLACE.sub("…", text) for text in found)


@pytest.mark.parametrize("text", list(quotations()))
def test_quoted_message_exists(text: str) -> None:
    pattern = "[^\n]*".join(map(re.escape, text.strip("… ").split("…")))
    assert re.search(pattern, texts_of_the_source())


def test_definitions_are_exported_and_imported(node: RunningNode, tmp_path: Path) -> None:
    with httpx.Client(base_url=f"{node.url}/api", auth=("guest", "guest")) as api:
        api.put("/queues/%2F/orders", json={"durable": True}).raise_for_status()
    (export,), (import_,) = BACKUP.blocks("sh export"), BACKUP.blocks("sh import")
    shell(at(node, export), tmp_path)
    with RunningNode(tmp_path / "other", **with_api(store="memory")) as other:
        shell(at(other, import_), tmp_path)
        with httpx.Client(base_url=f"{other.url}/api", auth=("guest", "guest")) as api:
            assert api.get("/queues/%2F/orders").json()["durable"]


def test_copy_of_a_stopped_node_holds_its_messages(tmp_path: Path) -> None:
    (copy,), (put_back,) = BACKUP.blocks("sh copy"), BACKUP.blocks("sh replace")
    with ServeProcess(tmp_path / "data", name="n") as node:
        put_greeting(node)
        node.stop()
        shell(copy, tmp_path)
        shell(put_back, tmp_path)
        node.start()
        assert greeting_of(node) == "hello"


def test_dump_of_a_running_node_is_restored_into_a_new_folder(tmp_path: Path) -> None:
    (dump,), (store,), (restore,) = (BACKUP.blocks(kind) for kind in ("sh dump", "sh store", "sh restore"))
    with ServeProcess(tmp_path / "data", name="n") as node:
        put_greeting(node)
        shell(dump, tmp_path)
    command = [sys.executable, "-m", *store.split()]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert any(line.startswith("ready") for line in running.stdout)
            shell(restore, tmp_path)
        finally:
            running.terminate()
    with ServeProcess(tmp_path / "restored", name="n") as node:
        assert greeting_of(node) == "hello"


def put_greeting(node: ServeProcess) -> None:
    with Client.connect(str(node.address("amqp"))) as client:
        client.create_queue("greetings")
        client.put("greetings", "hello")


def greeting_of(node: ServeProcess) -> str | None:
    with Client.connect(str(node.address("amqp"))) as client:
        message = client.take("greetings")
        return None if message is None else message.text


def test_upgraded_node_is_checked(node: RunningNode, tmp_path: Path) -> None:
    (checks,) = UPGRADE.blocks("sh")
    shown = shell(at(node, checks), tmp_path, {"FLYBALL_URL": node.url})
    assert "flyball " in shown
    assert '"status":"ok"' in shown.replace(" ", "")


def test_client_connects_to_the_node_that_answers(
    node: RunningNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (client,) = HIGH_AVAILABILITY.blocks("python")
    with kept_port() as refused:
        HIGH_AVAILABILITY.run(at(node, client.replace("127.0.0.1:5673", f"127.0.0.1:{refused}")), {})
    assert capsys.readouterr().out == "one\n"
    (check,) = HIGH_AVAILABILITY.blocks("sh check")
    assert json.loads(shell(at(node, check), tmp_path))["status"] == "ok"
