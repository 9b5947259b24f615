"""The recorded sessions of the original ThorBangMQ, replayed against a node on PostgreSQL.

The sessions of the original's two other stores are left out: they record that it checks nothing there. Flyball's
behave like PostgreSQL, but for durability.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import RunningNode

Exchange = dict[str, Any]

EXCHANGES: list[Exchange] = [
    exchange
    for exchange in json.loads((Path(__file__).parents[3] / "vectors" / "thorbangmq-vectors.json").read_text())
    if exchange["store"] == "postgres"
]
SESSIONS = {name: list(exchanges) for name, exchanges in groupby(EXCHANGES, key=lambda e: e["session"])}


@pytest.mark.parametrize("session", SESSIONS)
def test_a_recorded_session_gets_the_recorded_answers(session: str, start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    if session != "setup":
        replay_all(node, SESSIONS["setup"])
    replay_all(node, SESSIONS[session])


def replay_all(node: RunningNode, exchanges: list[Exchange]) -> None:
    connections: dict[str, socket.socket] = {}
    for exchange in exchanges:
        if exchange["connection"] not in connections:
            connections[exchange["connection"]] = node.connect("thorbang")
        connection = connections[exchange["connection"]]
        for piece in pieces_of(exchange):
            connection.sendall(piece)
        answer = receive(connection, exchange["response"].count("\0"))
        assert is_match(answer, exchange), f"{exchange['name']}: got {answer!r}, not {exchange['response']!r}"
        if answer.endswith("BAD REQUEST\0"):
            # The original goes on. Nothing depends on the connection: the rest of the session is as well on another.
            assert connection.recv(1) == b"", "it goes on after a malformed request"
            del connections[exchange["connection"]]


def pieces_of(exchange: Exchange) -> list[bytes]:
    if "segments_hex" in exchange:
        return [bytes.fromhex(piece) for piece in exchange["segments_hex"]]
    if "segments" in exchange:
        return [piece.encode() for piece in exchange["segments"]]
    return [exchange["request"].encode()]


def receive(connection: socket.socket, answers: int) -> str:
    data = b""
    while data.count(b"\0") < answers:
        more = connection.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    return data.decode()


def is_match(answer: str, exchange: Exchange) -> bool:
    recorded: str = exchange["response"]
    compare = exchange["compare"]
    if compare in ("message-id-varies", "original-defect", "unspecified-order") and recorded.startswith("MSG,"):
        ours, theirs = answer.split(",", 4), recorded.split(",", 4)
        if compare == "unspecified-order":
            return ours[:3] == theirs[:3]
        return ours[:3] == theirs[:3] and ours[4] == theirs[4]
    return answer == recorded
