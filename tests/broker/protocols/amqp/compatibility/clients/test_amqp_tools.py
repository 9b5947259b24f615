"""The command-line tools of librabbitmq, the client in C."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.queues import exists, publish, take, take_all

LIMIT_S = 60.0
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def run(broker: Broker) -> Run:
    """Run a tool against the broker."""

    def run_tool(tool: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        # Options come first: after them amqp-consume takes all for the command that it runs.
        command = [f"amqp-{tool}", f"--url={broker.url()}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S, check=False)

    return run_tool


def test_a_queue_is_declared_and_deleted(run: Run, connect: Callable[..., Any], channel: Any, name: str) -> None:
    assert run("declare-queue", "--durable", f"--queue={name}").stdout.decode().strip() == name
    channel.queue_declare(name, durable=True)
    publish(channel, name, "body")
    assert run("delete-queue", f"--queue={name}").stdout.decode().strip() == "1"
    assert not exists(connect, name)


def test_a_message_is_published_with_its_properties(run: Run, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    options = ["--content-type=text/plain", "--persistent", "--header=k: v", "--reply-to=answers"]
    done = run("publish", f"--routing-key={name}", *options, "--body=hello")
    assert (done.returncode, done.stderr) == (0, b"")
    delivery = take(channel, name)
    assert delivery.text == "hello"
    properties = delivery.properties
    assert (properties.content_type, properties.delivery_mode, properties.reply_to) == ("text/plain", 2, "answers")
    assert delivery.headers["k"].strip() == "v"


def test_a_large_body_comes_from_the_standard_input(run: Run, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    body = bytes(range(256)) * 4096
    assert run("publish", f"--routing-key={name}", stdin=body).returncode == 0
    assert take(channel, name).body == body


def test_messages_are_got_until_there_are_none(run: Run, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    publish(channel, name, "first", "second")
    assert [run("get", f"--queue={name}").stdout for _ in range(2)] == [b"first", b"second"]
    assert run("get", f"--queue={name}").returncode == 2


def test_a_consumer_acknowledges_what_its_command_took(run: Run, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    publish(channel, name, "0\n", "1\n", "2\n", "3\n")
    done = run("consume", f"--queue={name}", "--count=3", "--prefetch-count=1", "cat")
    assert (done.returncode, done.stdout) == (0, b"0\n1\n2\n")
    assert [text.rstrip("*\n") for text in take_all(channel, name)] == ["3"]


def test_an_error_of_the_broker_is_shown(run: Run, name: str) -> None:
    done = run("get", f"--queue={name}")
    assert done.returncode == 1
    assert f"404, message: NOT_FOUND - no queue '{name}' in vhost '/'" in done.stderr.decode()
