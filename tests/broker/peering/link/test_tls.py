"""Links over TLS: both ends show a certificate of the domain's authority, or nothing goes over them."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from pika import spec

from flyball.broker.peering.link import connecting
from flyball.broker.settings import ServeSettings, load_settings
from flyball.broker.transport.tls import LinkTls, link_tls
from flyball.broker.wire import link as wire
from flyball.errors import SettingsError
from tests.broker.domains import two_nodes
from tests.broker.protocols.amqp.compatibility.peer import Peer
from tests.broker.protocols.amqp.test_tls import Authority, Identity
from tests.nodes import ANSWER_LIMIT_S, RunningNode


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("link-tls") / "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One who signs certificates for others."""
    return Authority(tmp_path_factory.mktemp("link-tls") / "stranger")


def flags_of(identity: Identity, authority: Authority) -> dict[str, Any]:
    return {
        "link_tls_cert": str(identity.cert),
        "link_tls_key": str(identity.key),
        "link_tls_ca": str(authority.identity.cert),
    }


def settings_of(**flags: Any) -> ServeSettings:
    return load_settings(flags, {})


@pytest.fixture
def tls(authority: Authority) -> LinkTls:
    found = link_tls(settings_of(**flags_of(authority.sign("node"), authority)))
    assert found is not None
    return found


@pytest.fixture
def pair(
    tmp_path: Path, new_database: Callable[[], str], authority: Authority
) -> Iterator[tuple[RunningNode, RunningNode]]:
    with two_nodes(tmp_path, new_database, **flags_of(authority.sign("node"), authority)) as nodes:
        yield nodes


def hello() -> bytes:
    return wire.encode_hello(wire.Hello(wire.VERSION, 99, 1, b"n" * wire.NONCE_BYTES))


def said_after(connection: socket.socket, data: bytes) -> bytes:
    """Return what comes before the other end closes the connection, or breaks it."""
    connection.settimeout(ANSWER_LIMIT_S)
    said = b""
    try:
        connection.sendall(data)
        while part := connection.recv(65536):
            said += part
    except (ConnectionError, ssl.SSLError):
        pass
    return said


def test_two_nodes_work_over_tls(pair: tuple[RunningNode, RunningNode]) -> None:
    first, second = pair
    with Peer(*first.address("amqp")).open() as owner, Peer(*second.address("amqp")).open() as other:
        owner.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
        other.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        other.publish(b"over the link", routing_key="q", properties=spec.BasicProperties(delivery_mode=2))
        other.expect(spec.Basic.Ack)
        other.send(spec.Basic.Get(queue="q", no_ack=True))
        assert other.expect_content(spec.Basic.GetOk).body == b"over the link"
    assert second.call(lambda node: all(link.is_ready for link in node.peers.links) and len(node.peers.links)) == 1


def test_peer_without_tls_is_told_nothing(pair: tuple[RunningNode, RunningNode]) -> None:
    # Not even a Hello, which a listener without TLS answers: at most an alert of TLS, of type 21.
    said = said_after(pair[0].connect("link"), hello())
    assert said[:1] in (b"", b"\x15")


def test_peer_with_a_certificate_of_another_authority_is_refused(
    pair: tuple[RunningNode, RunningNode], stranger: Authority, authority: Authority
) -> None:
    for identity in (stranger.sign("node"), None):
        context = ssl.create_default_context(cafile=str(authority.identity.cert))
        if identity is not None:
            context.load_cert_chain(identity.cert, identity.key)
        with context.wrap_socket(pair[0].connect("link"), server_hostname="localhost") as connection:
            assert said_after(connection, hello()) == b""


def test_peer_that_the_authority_has_signed_still_needs_the_secret(
    pair: tuple[RunningNode, RunningNode], authority: Authority
) -> None:
    context = ssl.create_default_context(cafile=str(authority.identity.cert))
    identity = authority.sign("other")
    context.load_cert_chain(identity.cert, identity.key)
    with context.wrap_socket(pair[0].connect("link"), server_hostname="localhost") as connection:
        proof = wire.encode_proof(b"p" * 32)
        frames = wire.LinkDecoder()
        frames.feed(said_after(connection, hello() + proof))
        # It proves that it knows the secret, sees that the caller does not, and closes.
        kinds = []
        while (frame := frames.next_frame()) is not None:
            kinds.append(type(frame))
    assert kinds == [wire.Hello, wire.Proof]


@pytest.mark.parametrize("is_signed", [True, False], ids=["other authority", "no TLS"])
def test_caller_refuses_a_listener_that_is_no_node_of_the_domain(
    is_signed: bool, tls: LinkTls, stranger: Authority
) -> None:
    context = None
    if is_signed:
        identity = stranger.sign("node")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(identity.cert, identity.key)

    class Listening(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            # As a node does to bytes that are not a frame.
            self.transport.write(hello())
            self.transport.close()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            # uvloop's is none to isinstance.
            self.transport = cast("asyncio.Transport", transport)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Listening, "127.0.0.1", 0, ssl=context)
        host, port = server.sockets[0].getsockname()
        with pytest.raises(ssl.SSLError if is_signed else OSError):
            await connecting(tls.caller)(f"{host}:{port}", asyncio.Protocol)
        server.close()

    uvloop.run(run())


def test_node_whose_certificate_is_of_another_authority_is_kept_out(
    tmp_path: Path,
    new_database: Callable[[], str],
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = new_database()
    common: dict[str, Any] = {"store": url, "lease_s": 60}
    good = flags_of(authority.sign("a"), authority)
    bad = flags_of(stranger.sign("b"), stranger)
    with (
        RunningNode(tmp_path / "a", name="a", **common, **good) as first,
        RunningNode(tmp_path / "b", name="b", **common, **bad) as second,
    ):
        for one, other in ((first, second), (second, first)):
            one.wait_until(lambda node: bool(node.membership.others) and node.membership.others[0].addresses != {})
            other_id = other.call(lambda node: node.peers.node_id)
            one.call(lambda node, other_id=other_id: node.peers.link(other_id))  # type: ignore[misc]
        for one in (first, second):
            one.wait_until(lambda node: not any(link.is_ready for link in node.peers.links))
        first.wait_until(lambda node: "TLS with node" in caplog.text)
    assert "of the same CA" in caplog.text


def test_link_on_other_addresses_without_tls_is_warned_about(
    tmp_path: Path, new_database: Callable[[], str], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    url = new_database()
    flags = flags_of(authority.sign("node"), authority)
    with RunningNode(tmp_path / "a", name="a", store=url, link="0.0.0.0:0", **flags):
        assert "without TLS" not in caplog.text
    with RunningNode(tmp_path / "a", name="a", store=url, link="0.0.0.0:0"):
        assert "link listens on 0.0.0.0:0 without TLS" in caplog.text


def test_links_go_without_tls_unless_there_is_a_certificate() -> None:
    assert link_tls(settings_of()) is None


def test_files_that_are_missing_or_wrong_are_named(authority: Authority, tmp_path: Path) -> None:
    good = flags_of(authority.sign("node"), authority)
    other = flags_of(authority.sign("other"), authority)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for flags, setting in (
        ({"link_tls_ca": good["link_tls_ca"]}, "--link-tls-cert"),
        ({"link_tls_cert": good["link_tls_cert"], "link_tls_key": good["link_tls_key"]}, "--link-tls-ca"),
        ({**good, "link_tls_key": other["link_tls_key"]}, "--link-tls-key"),
        ({**good, "link_tls_cert": str(wrong)}, "--link-tls-cert"),
        ({**good, "link_tls_ca": str(wrong)}, "--link-tls-ca"),
    ):
        with pytest.raises(SettingsError, match=setting):
            link_tls(settings_of(**flags))
