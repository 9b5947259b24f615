"""The recorded sessions of the original Telesto, replayed against a node on PostgreSQL."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import RunningNode

Step = dict[str, Any]

STEPS: list[Step] = json.loads((Path(__file__).parents[3] / "vectors" / "telesto-vectors.json").read_text())
SESSIONS = {name: list(steps) for name, steps in groupby(STEPS, key=lambda step: step["session"])}

CLOSED = "closed"

MENDED: dict[str, str] = {
    # Defects of the original, and the answer that telesto.md suggests instead (method id and error code, or closed).
    "S01/26": "2e",
    "S01/44": "03",
    "S04/05": "14",
    "S04/06": "26",
    "S04/08": "05 00",
    "S04/09": "05 01",
    "S04/10": "05 00",
    "S04/11": "05 05",
    "S04/12": "12",
    "S10/17": "05 07",
    "S10/22": "05 0a",
    "S10/23": "05 0a",
    "S13/04": "05 00",
    "S13/05": "05 00",
    "S13/06": "05 00",
    "S13/07": "05 00",
    "S13/08": "05 00",
    "S13/09": "05 00",
    "S15/22": "12",
    "S15/23": "12",
    "S15/24": "12",
    "S17/06": "05 01",
    "S18/133": "05 00",
}


for later in SESSIONS["S01"][45:]:
    # The put into two queues, which the original fails to do, uses up two message ids here.
    if later["response_hex"][4:6] == "34":
        later["vary"].append({"offset": 7, "length": 4})


@pytest.mark.parametrize("session", SESSIONS)
def test_a_recorded_session_gets_the_recorded_answers(session: str, start_node: Callable[..., RunningNode]) -> None:
    node = start_node()
    connections: dict[str, socket.socket] = {}
    for step in SESSIONS[session]:
        if step["conn"] not in connections:
            connections[step["conn"]] = node.connect("telesto")
        connection = connections[step["conn"]]
        replay(connection, step)


def replay(connection: socket.socket, step: Step) -> None:
    name = step["name"].split()[0]
    send(connection, step)
    if step["compare"] == "race":
        return
    if step.get("defect"):
        expect_mended(connection, name, step)
    elif step["outcome"] == CLOSED:
        assert receive_end(connection), f"{name}: the connection should be closed"
    else:
        answers = list(receive_frames(connection, len(step["response_hex"]) // 2, step["compare"]))
        assert is_match(b"".join(answers), step), f"{step['name']}: got {b''.join(answers).hex()}"


def send(connection: socket.socket, step: Step) -> None:
    request = bytes.fromhex(step["request_hex"])
    try:
        for size in step.get("chunks") or [len(request)]:
            connection.sendall(request[:size])
            request = request[size:]
    except (BrokenPipeError, ConnectionResetError):
        assert step.get("defect"), f"{step['name']}: the server closed the connection too early"


def expect_mended(connection: socket.socket, name: str, step: Step) -> None:
    wanted = bytes.fromhex(MENDED.get(name, ""))
    if not wanted:
        assert step["session"] == "S15", f"{name}: say what is to be expected"
        assert receive_end(connection), f"{name}: the connection should be closed"
        return
    answer = receive_frame(connection)
    assert answer[2:3] == wanted[:1], f"{name}: got {answer.hex()}"
    if len(wanted) > 1:
        assert answer[7:8] == wanted[1:], f"{name}: got {answer.hex()}"


def is_match(answer: bytes, step: Step) -> bool:
    recorded = bytes.fromhex(step["response_hex"])
    compare = step["compare"]
    if step.get("unspecified"):
        return answer[2:7] == recorded[2:7]
    if compare == "error-code":
        return answer[2:8] == recorded[2:8]
    if compare == "unordered-frames":
        return sorted(split_frames(answer)) == sorted(split_frames(recorded))
    if compare == "unordered-array":
        return answer[:11] == recorded[:11] and sorted(split_queues(answer)) == sorted(split_queues(recorded))
    masked, expected = bytearray(answer), bytearray(recorded)
    if len(masked) != len(expected):
        return False
    for place in step.get("vary") or ():
        span = slice(place["offset"], place["offset"] + place["length"])
        masked[span] = expected[span]
    return masked == expected


def receive_frames(connection: socket.socket, total_bytes: int, compare: str) -> Iterator[bytes]:
    """Yield the frames of an answer: one, or as many as were recorded."""
    received = 0
    while received < total_bytes:
        frame = receive_frame(connection)
        received += len(frame)
        yield frame
        if compare == "error-code":
            return


def receive_frame(connection: socket.socket) -> bytes:
    head = receive(connection, 2)
    return head + receive(connection, int.from_bytes(head, "big"))


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, f"closed after {data.hex()}"
        data += more
    return data


def receive_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def split_frames(data: bytes) -> list[bytes]:
    frames = []
    while data:
        end = 2 + int.from_bytes(data[:2], "big")
        frames.append(data[:end])
        data = data[end:]
    return frames


def split_queues(answer: bytes) -> list[bytes]:
    entries, data = [], answer[11:]
    while data:
        end = 6 + int.from_bytes(data[4:6], "big")
        entries.append(data[:end])
        data = data[end:]
    return entries
