"""The sans-IO half: a decoder reads the same whole and in pieces, and raises no errors but its own.

What a decoder has read must also be writable again: a node stores and forwards it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Protocol

from bench.fuzz.cases import Case
from flyball.broker.wire import amqp, link, telesto, thorbang
from flyball.errors import ProtocolError

FRAME_MAX = 131_072
BODY_MAX = 1 << 20


class Difference(Exception):
    """A decoder says something else when its bytes come in pieces, or cannot write what it has read."""


class Reader(Protocol):
    """A decoder, whatever its protocol."""

    def feed(self, data: bytes) -> None: ...

    def events(self) -> Iterator[Any]:
        """Yield what is complete. Raises ProtocolError or AmqpError."""
        ...


class _Amqp:
    def __init__(self) -> None:
        self._decoder = amqp.Decoder(FRAME_MAX, BODY_MAX)
        self.feed = self._decoder.feed

    def events(self) -> Iterator[Any]:
        while (command := self._decoder.next_command()) is not None:
            yield command
            if isinstance(command, amqp.Publish):
                try:
                    amqp.essentials(command.properties)
                    amqp.read_origin(command.origin)
                except amqp.AmqpError as error:
                    yield str(error)
            elif isinstance(command, amqp.Method):
                command.encode()


class _Link:
    def __init__(self) -> None:
        self._decoder = link.LinkDecoder(BODY_MAX)
        self.feed = self._decoder.feed

    def events(self) -> Iterator[Any]:
        while (frame := self._decoder.next_frame()) is not None:
            yield frame


class _Telesto:
    def __init__(self) -> None:
        self._decoder = telesto.PacketDecoder()
        self.feed = self._decoder.feed

    def events(self) -> Iterator[Any]:
        while (packet := self._decoder.next_packet()) is not None:
            yield packet


class _ThorBang:
    def __init__(self) -> None:
        self._decoder = thorbang.RequestDecoder(BODY_MAX)
        self.feed = self._decoder.feed

    def events(self) -> Iterator[Any]:
        while (request := self._decoder.next_request()) is not None:
            yield request


READERS: dict[str, Callable[[], Reader]] = {
    "amqp": _Amqp,
    "link": _Link,
    "telesto": _Telesto,
    "thorbang": _ThorBang,
}


def read(protocol: str, pieces: Iterator[bytes]) -> list[str]:
    """Return what a decoder makes of the pieces: its events and the error that ends them."""
    reader = READERS[protocol]()
    events: list[str] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            for event in reader.events():
                events.append(repr(event))
    except (ProtocolError, amqp.AmqpError) as error:
        events.append(f"{type(error).__name__}: {error}")
    return events


def check(case: Case, chance: Random) -> None:
    """Feed a case whole and in pieces. Raises Difference, or whatever the decoder should not have raised."""
    data = b"".join(case.frames)
    whole = read(case.protocol, iter([data]))
    step = 1 if chance.random() < 0.25 and len(data) < 20_000 else chance.randrange(2, 4096)
    in_pieces = read(case.protocol, (data[at : at + step] for at in range(0, len(data), step)))
    if whole != in_pieces:
        pairs = zip([*whole, "the end"], [*in_pieces, "the end"], strict=False)
        one, other = next((one, other) for one, other in pairs if one != other)
        raise Difference(f"{case.protocol} whole: {one[:500]}; in pieces of {step}: {other[:500]}")


def problem_of(case: Case, chance: Random) -> str:
    """Return the traceback of what is wrong with how a case is read, or nothing."""
    try:
        check(case, chance)
    except Exception:
        return traceback.format_exc()
    return ""
