"""Logins by AMQP: however many fail, those of others go on, and logins that are no longer needed are not checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flyball.broker.core.attempts import MAX_DELAYED, TRIES
from flyball.broker.core.passwords import MAX_CONCURRENT_RUNS, Passwords
from flyball.broker.node.node import Node
from tests.broker.peers import thorbang
from tests.broker.protocols.amqp.compatibility.peer import ConnectionEnded, Peer
from tests.nodes import ANSWER_LIMIT_S, RunningNode

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
