"""Clients that ask for long lists and do not read them: the memory they cost the node is bounded, and released."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika import spec

from flyball.broker.core import memory
from flyball.broker.management.api import context
from flyball.broker.management.part import console_part
from flyball.broker.transport import http_protocol
from tests.broker.management.api.conftest import Api
from tests.broker.protocols.amqp.compatibility.peer import Peer, method_frame
from tests.nodes import ANSWER_LIMIT_S, RunningNode

# Their list is longer than what the system holds of an answer that is not read.
QUEUES = 5000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with (
        RunningNode(tmp_path, parts=[console_part()], store="memory", http="127.0.0.1:0") as running,
        Peer(*running.address("amqp")) as peer,
    ):
        peer.open()
        names = [f"queue-{number}" for number in range(QUEUES)]
        peer.send_bytes(b"".join([method_frame(spec.Queue.Declare(queue=name, nowait=True)) for name in names]))
        peer.ask(spec.Queue.Declare(queue=names[-1]), spec.Queue.DeclareOk)
        yield running


def ask(node: RunningNode, path: str) -> socket.socket:
    asking = socket.socket()
    asking.settimeout(ANSWER_LIMIT_S)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.connect(node.address("http"))
    asking.sendall(
        f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n".encode()
    )
    return asking


def status_of(asking: socket.socket) -> str:
    return asking.recv(12).decode().removeprefix("HTTP/1.1 ")


def is_cut_off(asking: socket.socket) -> bool:
    """Whether the connection ends before the answer does."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := asking.recv(65536):
            found = (found + data)[-10:]
    return not found.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["/api/queues", "/api/bindings", "/metrics/per-object"])
def test_lists_that_are_not_read_are_bounded(node: RunningNode, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HTTP_BYTES", 2 * QUEUES * context.ITEM_BYTES)
    with contextlib.ExitStack() as all_:
        asking = [all_.enter_context(contextlib.closing(ask(node, path))) for _ in range(6)]
        statuses = [status_of(each) for each in asking]
        # A request that comes while the last admitted one is being made is admitted as well.
        assert 1 <= statuses.count("200") <= 4
        assert statuses.count("503") == 6 - statuses.count("200")
    # Those have gone: there is room again.
    api = Api(node.address("http"))
    while api.ask("/queues").status_code == 503:
        continue
    api.close()


def test_client_that_reads_nothing_of_its_answer_is_cut_off(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_STALL_S", 0.1)
    monkeypatch.setattr(memory, "HTTP_BYTES", 1)
    with contextlib.closing(ask(node, "/api/queues")) as unread:
        assert status_of(unread) == "200"
        api = Api(node.address("http"))
        # The next one is refused until the first is cut off.
        while api.ask("/queues?page=1").status_code == 503:
            continue
        api.close()
        assert is_cut_off(unread)
