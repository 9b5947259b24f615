"""Logins by AMQP: however many fail, those of others go on, and logins that are no longer needed are not checked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pika.data import encode_table

from flyball.broker.core.attempts import MAX_DELAYED, TRIES
from flyball.broker.core.passwords import MAX_CONCURRENT_RUNS, Passwords
from flyball.broker.core.refusals import why_refused
from flyball.broker.node.node import Node
from tests.broker.peers import thorbang
from tests.broker.protocols.amqp.compatibility.peer import ConnectionEnded, Peer
from tests.nodes import ANSWER_LIMIT_S, RunningNode

pytestmark = pytest.mark.usefixtures("usual_password_cost")

GUESSER = "127.0.0.2"
GUESSES = 400


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path, store="memory") as running:
        yield running


@pytest.fixture
def peers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def passwords_of(node: Node) -> Passwords:
    return node.hub.authority._passwords


def guess(node: RunningNode, peers: ExitStack, source: str, name: str = "guest") -> Peer:
    peer = peers.enter_context(Peer(*node.address("amqp"), source))
    peer.log_in(name, "wrong")
    return peer


@pytest.mark.parametrize("name", ["guest", "nobody"])
def test_many_wrong_logins_do_not_delay_the_login_of_another(node: RunningNode, peers: ExitStack, name: str) -> None:
    before = node.call(lambda node: passwords_of(node).runs)
    for _ in range(GUESSES):
        guess(node, peers, GUESSER, name)
    peers.enter_context(Peer(*node.address("amqp"))).open()
    runs = node.call(lambda node: passwords_of(node).runs) - before
    # Those that were let try and the honest one, with some more for a slow machine: each takes 2 s to be allowed.
    assert runs <= TRIES + MAX_DELAYED + 11


class StuckHasher:
    """Checks passwords, and is stuck until the test lets it go on."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def verify(self, password_hash: str, password: bytes) -> bool:
        assert self.goes_on.wait(ANSWER_LIMIT_S)
        return True


def test_passwords_of_peers_that_have_gone_are_not_checked(node: RunningNode, peers: ExitStack) -> None:
    hasher = StuckHasher()

    def install(node: Node) -> int:
        passwords_of(node)._hasher = hasher  # type: ignore[assignment]
        return passwords_of(node).runs

    before = node.call(install)
    guessers = [guess(node, peers, f"127.0.1.{number}", f"user{number}") for number in range(1, 51)]
    node.wait_until(lambda node: passwords_of(node)._turns.waiting == len(guessers) - MAX_CONCURRENT_RUNS)
    for peer in guessers:
        peer.hang_up()
    node.wait_until(lambda node: passwords_of(node)._turns.waiting == 0)
    hasher.goes_on.set()
    peers.enter_context(Peer(*node.address("amqp"))).open()
    assert node.call(lambda node: passwords_of(node).runs) - before == MAX_CONCURRENT_RUNS + 1


def test_peers_that_never_log_in_do_not_keep_others_out(tmp_path: Path, peers: ExitStack) -> None:
    with RunningNode(tmp_path, store="memory", max_unauthenticated=10) as node:
        silent = [peers.enter_context(Peer(*node.address("amqp"), GUESSER)) for _ in range(10)]
        for peer in silent:
            peer.start()
        with pytest.raises(ConnectionEnded):
            peers.enter_context(Peer(*node.address("amqp"), GUESSER)).start()
        for _ in range(20):
            # A client that has logged in no longer counts.
            peers.enter_context(Peer(*node.address("amqp"))).open()
        silent[-1].expect_end()
        assert node.call(lambda node: len(node.hub.entrance.handshakes)) == 9


def test_peers_that_never_log_in_make_way_when_all_connections_are_in_use(tmp_path: Path, peers: ExitStack) -> None:
    with RunningNode(tmp_path, store="memory", max_connections=10) as node:
        silent = [peers.enter_context(Peer(*node.address("amqp"), GUESSER)) for _ in range(10)]
        for peer in silent:
            peer.start()
        for expected in (9, 8):
            assert thorbang(node).ask("HELLO") == ["OK"]
            silent[expected].expect_end()
        for number in range(7):
            peers.enter_context(Peer(*node.address("amqp"))).open()
            silent[7 - number].expect_end()
        # Among equals the one that came first may stay.
        with pytest.raises(ConnectionEnded):
            peers.enter_context(Peer(*node.address("amqp"))).start()
        assert node.call(lambda node: (node.hub.entrance.clients, len(node.hub.entrance.handshakes))) == (9, 1)


def amqplain(user: str, password: str) -> bytes:
    """Return the response of AMQPLAIN: a table without its length."""
    pieces: list[bytes] = []
    encode_table(pieces, {"LOGIN": user, "PASSWORD": password})
    return b"".join(pieces)[4:]


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line.partition(" peer=")[2].partition(" ")[2] for line in lines if line.startswith("login refused")]


@pytest.mark.parametrize(
    ("user", "source", "reason"),
    [
        ("guest", "127.0.0.1", "wrong password"),
        ("nobody", "127.0.0.1", "no such user"),
        ("machine", "127.0.0.1", "user has no password"),
        ("@owner", "127.0.0.1", "wrong token"),
    ],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_refused_login_is_logged_with_its_reason_and_without_the_password(
    node: RunningNode,
    peers: ExitStack,
    caplog: pytest.LogCaptureFixture,
    user: str,
    source: str,
    reason: str,
    mechanism: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    node.administer(lambda authority: authority.add_user("machine", None))
    peer = peers.enter_context(Peer(*node.address("amqp"), source))
    response = amqplain(user, "a password of mine") if mechanism == "AMQPLAIN" else None
    peer.log_in(user, "a password of mine", mechanism=mechanism, response=response)
    peer.read_to_end()
    assert refusals(caplog) == [f"user={user!r} mechanism={mechanism} reason={reason}"]
    assert "a password of mine" not in caplog.text


def test_reasons_of_refused_logins_name_limits_of_place(node: RunningNode) -> None:
    why = node.call(lambda node: why_refused(node.hub.authority, "guest", False))
    assert why == "user may connect from the node's machine only (--loopback-users)"


def test_long_name_of_a_refused_login_is_cut_in_the_log(
    node: RunningNode, peers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    peer = peers.enter_context(Peer(*node.address("amqp")))
    peer.log_in("x" * 3000, "wrong")
    peer.read_to_end()
    assert refusals(caplog) == [f"user={'x' * 100!r} mechanism=PLAIN reason=no such user"]


def test_malformed_response_is_logged(node: RunningNode, peers: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    peer = peers.enter_context(Peer(*node.address("amqp")))
    peer.log_in(response=b"no separators")
    peer.read_to_end()
    assert refusals(caplog) == ["user='' mechanism=PLAIN reason=malformed response"]


def test_refused_virtual_host_is_logged_with_the_user(
    node: RunningNode, peers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    node.administer(lambda authority: authority.add_user("ann", "secret"))
    for vhost, reason in (("/", "access to vhost '/' refused for user 'ann'"), ("absent", "vhost absent not found")):
        peer = peers.enter_context(Peer(*node.address("amqp")))
        with pytest.raises(AssertionError, match="NOT_ALLOWED"):
            peer.open("ann", "secret", vhost)
        assert refusals(caplog)[-1] == f"user='ann' vhost={vhost!r} mechanism=PLAIN reason={reason}"


def test_connections_are_logged_when_they_open_and_close(
    node: RunningNode, peers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peer = peers.enter_context(Peer(*node.address("amqp"))).open()
    peer.hang_up()
    node.wait_until(lambda node: not node.hub.connections)
    other = thorbang(node)
    other.ask("HELLO")
    node.wait_until(lambda node: len(node.hub.connections) == 1)
    node.stop()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("connection ")]
    assert [" ".join(line.split()[:3]) for line in lines] == [
        "connection opened protocol=amqp",
        "connection closed protocol=amqp",
        "connection opened protocol=thorbang",
        "connection closed protocol=thorbang",
    ]
    assert lines[0].endswith(" user='guest' vhost='/'")
    assert " user='guest' vhost='/' duration_s=" in lines[1]


def test_silent_peers_are_not_logged_as_connections(
    node: RunningNode, peers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peer = peers.enter_context(Peer(*node.address("amqp")))
    peer.start()
    peer.hang_up()
    node.wait_until(lambda node: not node.hub.connections)
    assert "connection opened" not in caplog.text
    assert "connection closed" not in caplog.text
