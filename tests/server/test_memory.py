"""Whatever clients make a node hold stays within its limits, and others are served meanwhile.

Each attacker works on a node of its own process with small limits; what the process takes of the machine is compared
with `--memory-bytes` + `--resident-bytes` + `memory.BASE_BYTES`.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pika import spec

from flyball.wire import telesto
from tests.amqp.peer import BODY, HEADER, Peer, frame, method_frame
from tests.nodes import ServeProcess
from tests.server.peers import TelestoPeer, ThorBangPeer

MIB = 1024 * 1024


def rss_bytes(node: ServeProcess) -> int:
    return int(psutil.Process(node.pid).memory_info().rss)


def peak_rss_bytes(node: ServeProcess) -> int:
    """Return the most that the process has ever taken."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def settles_below(node: ServeProcess, limit_bytes: int, within_s: float = 10.0) -> bool:
    """Whether the process gives memory back: nothing tells when the system has taken it."""
    deadline = time.monotonic() + within_s
    while rss_bytes(node) >= limit_bytes and time.monotonic() < deadline:
        time.sleep(0.02)
    return rss_bytes(node) < limit_bytes


@pytest.fixture
def plain_node(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path, store="memory", log_level="error") as node:
        yield node


def unfinished_content(channel: int, body_bytes: int) -> bytes:
    """Return a publish that lacks the last byte of its body."""
    head = struct.pack(">HHQ", spec.Basic.INDEX, 0, body_bytes + 1) + b"\0\0"
    parts = [method_frame(spec.Basic.Publish(routing_key="queue"), channel), frame(HEADER, channel, head)]
    piece = bytes(100_000)
    for at in range(0, body_bytes, len(piece)):
        parts.append(frame(BODY, channel, piece[: body_bytes - at]))
    return b"".join(parts)


# Before login


def test_contents_before_login_are_refused_and_not_kept(plain_node: ServeProcess) -> None:
    before = rss_bytes(plain_node)
    with contextlib.ExitStack() as all_:
        for _ in range(10):
            peer = all_.enter_context(Peer(*plain_node.address("amqp")))
            peer.start()
            piece = bytes(8000)
            head = struct.pack(">HHQ", spec.Basic.INDEX, 0, 100 * MIB) + b"\0\0"
            with contextlib.suppress(OSError):
                for channel in range(1, 9):
                    peer.send_bytes(method_frame(spec.Basic.Publish(), channel) + frame(HEADER, channel, head))
                    peer.send_bytes(frame(BODY, channel, piece) * 125)
        assert rss_bytes(plain_node) - before < 20 * MIB


def test_contents_of_channels_that_are_not_open_end_the_connection(plain_node: ServeProcess) -> None:
    with Peer(*plain_node.address("amqp")) as peer:
        peer.open()
        peer.send_bytes(unfinished_content(5, 1000))
        peer.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", spec.Basic.Publish)


# After a connection is gone


def unfinished_telesto(node: ServeProcess) -> Callable[[], None]:
    peer = TelestoPeer(node.connect("telesto"))
    peer.widen()
    peer.send_raw(struct.pack(">IBi", 15 * MIB, telesto.Put.METHOD, 1) + bytes(8 * MIB))
    return peer.close


def unfinished_thorbang(node: ServeProcess) -> Callable[[], None]:
    peer = ThorBangPeer(node.connect("thorbang"))
    peer.send_raw(b"MSG,0,1,1,1,0," + b"x" * 8 * MIB)
    return peer.close


def unfinished_amqp(node: ServeProcess) -> Callable[[], None]:
    peer = Peer(*node.address("amqp")).open()
    peer.send_bytes(unfinished_content(1, 8 * MIB))
    return lambda: peer.__exit__(None, None, None)


@pytest.mark.parametrize("attack", [unfinished_telesto, unfinished_thorbang, unfinished_amqp])
def test_what_a_connection_held_is_free_when_it_is_gone(
    plain_node: ServeProcess, attack: Callable[[ServeProcess], Callable[[], None]]
) -> None:
    before = rss_bytes(plain_node)
    ends = [attack(plain_node) for _ in range(12)]
    for end in ends:
        end()
    assert settles_below(plain_node, before + 30 * MIB)
