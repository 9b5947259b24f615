"""A client on the wrong port gets an answer that says so, where its protocol allows it, and a line in the log."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx
import pytest

from flyball.broker.transport.mixups import spoken
from flyball.broker.wire import telesto as wire
from tests.nodes import ANSWER_LIMIT_S, RunningNode, with_api

AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
AMQP_1_HEADER = b"AMQP\x00\x01\x00\x00"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("mixups"), **with_api(store="memory")) as found:
        yield found


def exchange(node: RunningNode, protocol: str, data: bytes) -> bytes:
    """Send bytes to a port and return all that comes until it is closed."""
    with node.connect(protocol) as peer:
        peer.sendall(data)
        received = b""
        try:
            while part := peer.recv(4096):
                received += part
        except ConnectionResetError:
            pass
        return received


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="broker.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_http_request_on_the_amqp_port_gets_the_right_port(
    node: RunningNode, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = httpx.request(method, f"http://{node.address('amqp')}/api/overview", timeout=ANSWER_LIMIT_S)
    text = f"this is an AMQP port; the HTTP API is on port {node.address('http').port}"
    assert (answer.status_code, answer.text) == (400, text + "\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert f": {text}; received=" in caplog.text


@pytest.mark.parametrize(
    ("opening", "advice"),
    [
        (client_hello(), "this AMQP port has no TLS; use the port of --amqps, or a client without TLS"),
        (AMQP_1_HEADER, "only AMQP 0-9-1 is supported"),
        (b"AMQP\x03\x01\x00\x00", "only AMQP 0-9-1 is supported"),
        (wire.encode(wire.CreateQueue(1, "orders")), "this is an AMQP port; Telesto and ThorBangMQ have ports of"),
        (b"CREATEQUEUE,orders\0", "this is an AMQP port; Telesto and ThorBangMQ have ports of"),
    ],
)
def test_other_protocol_on_the_amqp_port_gets_the_amqp_header(
    node: RunningNode, opening: bytes, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert exchange(node, "amqp", opening) == AMQP_HEADER
    assert advice in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("opening", "advice"),
    [
        (AMQP_HEADER, "this is an HTTP port; AMQP is on the port of --amqp, 5672 by default"),
        (AMQP_1_HEADER, "this is an HTTP port, and only AMQP 0-9-1 is supported"),
        (client_hello(), "this HTTP port has no TLS; use http:// or a proxy with TLS"),
    ],
)
def test_other_protocol_on_the_http_port_gets_a_plain_answer(
    node: RunningNode, opening: bytes, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    received = exchange(node, "http", opening)
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert advice.encode() in received
    assert advice in caplog.text
    # The next client is served.
    assert httpx.get(f"{node.url}/health/ready", timeout=ANSWER_LIMIT_S).status_code == 200


@pytest.mark.parametrize("protocol", ["telesto", "thorbang"])
@pytest.mark.parametrize(
    ("opening", "name"), [(AMQP_HEADER, "AMQP"), (client_hello(), "TLS"), (b"GET / HTTP/1.1\r\n\r\n", "HTTP")]
)
def test_other_protocol_on_a_research_port_is_dropped(
    node: RunningNode, protocol: str, opening: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert exchange(node, protocol, opening) == b""
    assert f"{name} on the {protocol} port" in caplog.text


@pytest.mark.parametrize(
    "packet", [wire.Ping(0x01010101), wire.CreateQueue(1, "x" * (0x1603 - 9)), wire.IdentifyClient(1, 1)]
)
def test_first_packet_of_telesto_is_never_taken_for_another_protocol(packet: wire.Packet) -> None:
    assert spoken(wire.encode(packet)[:8]) is None


def test_shorter_openings_are_not_guessed() -> None:
    whole = client_hello()
    assert [spoken(whole[:size]) for size in range(7)] == [None] * 6 + ["TLS"]
