"""AMQP over TLS: which clients are let in, as which user, and the errors about files that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest
from pika import spec
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPConnectionError, ProbableAuthenticationError

from flyball.broker.transport import tls_listener
from tests.broker.peers import Closed
from tests.broker.peers import Peer as RawPeer
from tests.broker.protocols.amqp.compatibility.peer import PROTOCOL_HEADER, Peer
from tests.broker.protocols.amqp.compatibility.queues import count
from tests.nodes import RunningNode, ServeProcess, StartFailed


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """An authority that signs certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.identity = Identity(folder / "ca.crt", folder / "ca.key")
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self.identity.key, "-out", self.identity.cert, *_subject("ca")
        )

    def sign(self, common_name: str) -> Identity:
        """Return a new certificate, good for the loopback address as well."""
        signed = Identity(self._folder / f"{common_name}.crt", self._folder / f"{common_name}.key")
        request, extensions = self._folder / "request", self._folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl("req", *_NEW_KEY, "-keyout", signed.key, "-out", request, *_subject(common_name))
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.identity.cert, "-CAkey", self.identity.key),
            *("-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", signed.cert),
        )
        return signed

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def _subject(common_name: str) -> tuple[str, str]:
    return "-subj", f"/O=Flyball/CN={common_name}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that the node trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.sign("server")


@pytest.fixture(scope="module")
def guest(authority: Authority) -> Identity:
    return authority.sign("guest")


@pytest.fixture
def node(start_memory_node: Callable[..., RunningNode], server: Identity) -> RunningNode:
    """A node that shows its certificate and asks for none."""
    return start_memory_node(amqps="127.0.0.1:0", tls_cert=server.cert, tls_key=server.key)


@pytest.fixture
def mutual_node(start_memory_node: Callable[..., RunningNode], server: Identity, authority: Authority) -> RunningNode:
    """A node that requires a certificate of every client."""
    ca = authority.identity.cert
    return start_memory_node(amqps="127.0.0.1:0", tls_cert=server.cert, tls_key=server.key, tls_ca=ca)


def client_tls(authority: Authority, identity: Identity | None = None) -> ssl.SSLContext:
    """Trust what the authority has signed, and show that certificate."""
    context = ssl.create_default_context(cafile=authority.identity.cert)
    if identity is not None:
        context.load_cert_chain(identity.cert, identity.key)
    return context


def connected(node: RunningNode, tls: ssl.SSLContext, credentials: Any = None) -> Any:
    """Connect with pika."""
    host, port = node.address("amqps")
    credentials = credentials or pika.PlainCredentials("guest", "guest")
    options = pika.SSLOptions(tls, host)
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, credentials=credentials, ssl_options=options, heartbeat=0)
    )


def expect_service(connection: Any, body: bytes = b"body") -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("queue", exclusive=True)
    channel.basic_publish("", "queue", body)
    assert channel.basic_get("queue", auto_ack=True)[2] == body
    connection.close()


# A node with a certificate


def test_pika_is_served_over_tls(node: RunningNode, authority: Authority) -> None:
    expect_service(connected(node, client_tls(authority)))


def test_large_messages_go_over_tls_both_ways(node: RunningNode, authority: Authority) -> None:
    expect_service(connected(node, client_tls(authority)), bytes(range(256)) * 40_000)


def test_aio_pika_is_served_over_tls(node: RunningNode, authority: Authority) -> None:
    async def talk() -> None:
        host, port = node.address("amqps")
        url = f"amqps://guest:guest@{host}:{port}/?cafile={authority.identity.cert}"
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("queue", exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"body"), "queue")
            message = await queue.get()
            assert message.body == b"body"
            await message.ack()

    asyncio.run(talk())


def test_a_client_that_does_not_trust_the_node_leaves_and_nobody_else_notices(
    node: RunningNode, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(node, ssl.create_default_context())
    expect_service(connected(node, client_tls(authority)))
    assert complaints(caplog) == []


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors of all but pika."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and not record.name.startswith(("pika", "aio"))
    ]


def test_the_end_of_a_connection_is_nothing_to_complain_of(
    node: RunningNode, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connected(node, client_tls(authority))
    with TlsPeer(node, client_tls(authority)) as peer:
        peer.open()
    with TlsPeer(node, client_tls(authority)) as peer:
        peer.open().unwrap()
    connection.close()
    node.wait_until(lambda node: not node.hub.connections)
    assert complaints(caplog) == []


def test_a_client_without_tls_is_disconnected_from_the_tls_port(
    node: RunningNode, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(node.address("amqps"), timeout=20) as connection:
        connection.sendall(PROTOCOL_HEADER)
        # An alert of TLS may come before the end, but no answer.
        assert b"AMQP" not in everything(connection)
    with socket.create_connection(node.address("amqps"), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in everything(connection)
    expect_service(connected(node, client_tls(authority)))
    assert complaints(caplog) == ["dropped 127.0.0.1: this port speaks TLS, and the client does not"] * 2
    assert all(record.exc_info is None for record in caplog.records)


def everything(connection: socket.socket) -> bytes:
    """Return all that comes until the node closes the connection."""
    received = b""
    with contextlib.suppress(Closed):
        while True:
            received += RawPeer(connection).receive_raw()
    return received


def test_a_client_with_tls_is_disconnected_from_the_plain_port(node: RunningNode, authority: Authority) -> None:
    with (
        socket.create_connection(node.address("amqp"), timeout=20) as connection,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        client_tls(authority).wrap_socket(connection, server_hostname="127.0.0.1")


def test_a_client_that_never_begins_tls_is_disconnected(
    start_memory_node: Callable[..., RunningNode], server: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tls_listener.HANDSHAKE_S == 10.0
    monkeypatch.setattr(tls_listener, "HANDSHAKE_S", 0.2)
    node = start_memory_node(amqps="127.0.0.1:0", tls_cert=server.cert, tls_key=server.key)
    with socket.create_connection(node.address("amqps"), timeout=20) as connection:
        assert RawPeer(connection).is_closed_by_node()
    node.wait_until(lambda node: not len(node.hub.entrance.handshakes))


def test_clients_that_never_begin_tls_make_way_for_others(
    start_memory_node: Callable[..., RunningNode], server: Identity, authority: Authority
) -> None:
    node = start_memory_node(
        amqps="127.0.0.1:0", tls_cert=server.cert, tls_key=server.key, max_connections=10, max_unauthenticated=4
    )
    with contextlib.ExitStack() as all_:
        silent = [
            all_.enter_context(
                socket.create_connection(node.address("amqps"), timeout=20, source_address=("127.0.0.2", 0))
            )
            for _ in range(6)
        ]
        # Of the address that has the most the newest go, as of those that do not log in.
        assert [RawPeer(each).is_closed_by_node() for each in silent[4:]] == [True, True]
        assert node.call(lambda node: len(node.hub.entrance.handshakes)) == 4
        for number in range(3):
            all_.enter_context(TlsPeer(node, client_tls(authority))).open()
            if number == 0:
                assert RawPeer(silent[3]).is_closed_by_node()
        assert node.call(lambda node: (node.hub.entrance.clients, len(node.hub.entrance.handshakes))) == (3, 3)
    node.wait_until(lambda node: (node.hub.entrance.clients, len(node.hub.entrance.handshakes)) == (0, 0))


def test_client_that_speaks_no_tls_on_its_port_leaves_nothing_behind(
    start_memory_node: Callable[..., RunningNode], server: Identity
) -> None:
    node = start_memory_node(amqps="127.0.0.1:0", tls_cert=server.cert, tls_key=server.key)
    with socket.create_connection(node.address("amqps"), timeout=20) as connection:
        connection.sendall(PROTOCOL_HEADER)
        assert everything(connection)[:1] in (b"", b"\x15")
    node.wait_until(lambda node: not len(node.hub.entrance.handshakes) and not node.hub.tasks_under_way)


def test_a_peer_that_does_not_read_is_sent_little_over_tls_too(node: RunningNode, authority: Authority) -> None:
    channel = connected(node, client_tls(authority)).channel()
    channel.queue_declare("queue", auto_delete=True)
    for _ in range(200):
        channel.basic_publish("", "queue", bytes(200_000))
    while count(channel, "queue") < 200:
        pass
    with TlsPeer(node, client_tls(authority)) as peer:
        peer.open().send(spec.Basic.Consume(queue="queue", consumer_tag="tag", no_ack=True))
        node.wait_until(
            lambda node: any(getattr(other, "are_deliveries_paused", False) for other in node.hub.connections)
        )
        assert count(channel, "queue") > 150
        # When it reads, everything comes.
        peer.expect(spec.Basic.ConsumeOk)
        assert all(len(peer.expect_content(spec.Basic.Deliver).body) == 200_000 for _ in range(200))
    channel.connection.close()


# Clients with certificates


class TlsPeer(Peer):
    """A peer below the level of client libraries, over TLS."""

    def __init__(self, node: RunningNode, tls: ssl.SSLContext) -> None:
        host, port = node.address("amqps")
        super().__init__(host, port)
        self._tls = self._socket = tls.wrap_socket(self._socket, server_hostname=host)

    def unwrap(self) -> None:
        """End TLS as one should: with a word to the other side."""
        with contextlib.suppress(OSError):
            self._tls.unwrap()


def mechanisms(node: RunningNode, tls: ssl.SSLContext) -> list[str]:
    with TlsPeer(node, tls) as peer:
        return str(peer.start().mechanisms, "ascii").split()


def test_external_is_offered_to_those_who_have_shown_a_certificate(
    node: RunningNode, mutual_node: RunningNode, authority: Authority, guest: Identity
) -> None:
    assert mechanisms(mutual_node, client_tls(authority, guest)) == ["PLAIN", "AMQPLAIN", "EXTERNAL"]
    # The node has not asked for the certificate, and so has not seen it.
    assert mechanisms(node, client_tls(authority, guest)) == ["PLAIN", "AMQPLAIN"]
    assert mechanisms(node, client_tls(authority)) == ["PLAIN", "AMQPLAIN"]


def test_the_common_name_of_a_certificate_is_the_user(
    mutual_node: RunningNode, authority: Authority, guest: Identity
) -> None:
    connection = connected(mutual_node, client_tls(authority, guest), ExternalCredentials())
    users = mutual_node.call(lambda node: [getattr(session, "user", None) for session in node.hub.connections])
    assert [user.name for user in users if user is not None] == ["guest"]
    expect_service(connection)


def test_a_certificate_does_not_replace_a_password_where_that_is_asked_for(
    mutual_node: RunningNode, authority: Authority, guest: Identity
) -> None:
    expect_service(connected(mutual_node, client_tls(authority, guest)))
    with pytest.raises(ProbableAuthenticationError):
        connected(mutual_node, client_tls(authority, guest), pika.PlainCredentials("guest", "wrong"))


def test_a_certificate_of_an_unknown_user_is_refused(mutual_node: RunningNode, authority: Authority) -> None:
    stranger = authority.sign("stranger")
    with TlsPeer(mutual_node, client_tls(authority, stranger)) as peer:
        peer.log_in(mechanism="EXTERNAL", response=b"")
        closed = peer.expect(spec.Connection.Close, 0)
    text = "Login was refused using authentication mechanism EXTERNAL. For details see the broker logfile."
    assert (closed.reply_code, closed.reply_text) == (403, f"ACCESS_REFUSED - {text}")


def test_who_asks_for_external_without_a_certificate_is_refused(node: RunningNode, authority: Authority) -> None:
    with TlsPeer(node, client_tls(authority)) as peer:
        peer.log_in(mechanism="EXTERNAL", response=b"guest")
        assert peer.read_to_end() == []


@pytest.mark.parametrize("signer", [None, "another"])
def test_a_client_without_a_certificate_that_is_trusted_is_refused(
    mutual_node: RunningNode, authority: Authority, guest: Identity, tmp_path: Path, signer: str | None
) -> None:
    identity = None if signer is None else Authority(tmp_path / signer).sign("guest")
    # In TLS 1.3 a client learns only when it reads that it was not wanted.
    with pytest.raises((OSError, AMQPConnectionError)):
        connected(mutual_node, client_tls(authority, identity), ExternalCredentials())
    assert mutual_node.call(lambda node: len(node.hub.connections)) == 0
    expect_service(connected(mutual_node, client_tls(authority, guest)))


# Files that are wrong


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.pem"
    path.write_text("this is no certificate")
    return path


def failure(tmp_path: Path, **flags: object) -> str:
    """Try to serve; return the one line of complaint."""
    with (
        pytest.raises(StartFailed) as failed,
        ServeProcess(tmp_path / "data", store="memory", amqps="127.0.0.1:0", **flags),
    ):
        pass
    assert failed.value.code == 2
    (line,) = failed.value.complaints.splitlines()
    return line


def test_tls_without_a_certificate_is_told(tmp_path: Path) -> None:
    assert failure(tmp_path) == "flyball: --tls-cert: is missing; --amqps needs a certificate"


def test_a_certificate_that_is_missing_or_none_is_told(tmp_path: Path, wrong: Path) -> None:
    for path in (tmp_path / "absent", wrong):
        line = failure(tmp_path, tls_cert=path)
        assert line.startswith(f"flyball: --tls-cert: {path} cannot be used: ")
        assert line.endswith("; use a PEM file")
        assert "_ssl.c" not in line
        assert "[" not in line


def test_a_key_that_is_missing_or_does_not_fit_is_told(
    tmp_path: Path, wrong: Path, server: Identity, guest: Identity
) -> None:
    for path in (tmp_path / "absent", wrong, guest.key):
        line = failure(tmp_path, tls_cert=server.cert, tls_key=path)
        assert line.startswith(f"flyball: --tls-key: {path} cannot be used with {server.cert}: ")


def test_a_key_that_is_not_given_at_all_is_told(tmp_path: Path, server: Identity) -> None:
    line = failure(tmp_path, tls_cert=server.cert)
    assert line.startswith(f"flyball: --tls-key: is missing, and {server.cert} has no matching key: ")


def test_a_key_with_a_password_is_told_and_not_asked_for(tmp_path: Path, server: Identity) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(server.key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    line = failure(tmp_path, tls_cert=server.cert, tls_key=locked)
    assert line.startswith(f"flyball: --tls-key: {locked} cannot be used with {server.cert}: ")


def test_an_authority_that_is_missing_or_none_is_told(tmp_path: Path, wrong: Path, server: Identity) -> None:
    for path in (tmp_path / "absent", wrong):
        line = failure(tmp_path, tls_cert=server.cert, tls_key=server.key, tls_ca=path)
        assert line.startswith(f"flyball: --tls-ca: {path} cannot be used: ")
