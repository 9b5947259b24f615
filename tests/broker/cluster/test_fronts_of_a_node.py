"""`flyball gateway` before `flyball serve --http`: a client that knows the gateway only gets to the node."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from flyball.broker.settings import Address
from tests.nodes import ServeProcess

LIMIT_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path, store="memory", http="127.0.0.1:0", name="north") as node:
        yield node


def test_a_client_of_the_gateway_uses_the_node_and_leaves_in_good_order(node: ServeProcess) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(*node.address("amqp"))) as connection:
        connection.channel().queue_declare("orders")
    command = [sys.executable, "-m", "flyball", "gateway", "--queue", "orders", "--listen", "127.0.0.1:0"]
    # The first node is not there.
    command += ["--node", "127.0.0.1:1", "--node", str(node.address("http"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = Address.parse(process.stdout.readline().strip().removeprefix("amqp on "))
        with pika.BlockingConnection(pika.ConnectionParameters(*address)) as connection:
            channel = connection.channel()
            channel.basic_publish("", "orders", b"tea")
            assert channel.basic_get("orders", auto_ack=True)[2] == b"tea"
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, complaints) == (0, "")


def test_a_node_that_is_alone_tells_its_own_place(node: ServeProcess) -> None:
    base = f"http://{node.address('http')}/api"
    with pika.BlockingConnection(pika.ConnectionParameters(*node.address("amqp"))) as connection:
        connection.channel().queue_declare("orders")
    with httpx.Client(auth=("guest", "guest"), timeout=LIMIT_S) as client:
        place = client.get(f"{base}/place?queue=orders&role=producer").json()
        assert (place["node"], place["amqp"]) == ("north", str(node.address("amqp")))
        assert client.get(f"{base}/place?queue=none").status_code == 404
        assert client.get(f"{base}/domain").json()["clusters"] == []


def test_an_address_that_is_taken_is_one_line_that_says_what_to_do(node: ServeProcess) -> None:
    command = [sys.executable, "-m", "flyball", "gateway", "--queue", "orders", "--node", "127.0.0.1:1"]
    command += ["--listen", str(node.address("amqp"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "--listen" in ended.stderr
