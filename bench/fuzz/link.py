"""Frames of the inter-node link, before and after the proof of the domain's secret."""

from __future__ import annotations

import struct
from random import Random

from bench.fuzz import values
from bench.fuzz.cases import Case, Ending, Mutator
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import Content
from flyball.model import Order, Selector

LONG = (-(1 << 63), (1 << 63) - 1)
# Far from those of real nodes.
NODE_ID = 1 << 40
COMMANDS = ("catch_up", "none", "queues.list", "domain.show", "console.overview", "")


class LinkSource:
    """Makes connections of what claims to be another node, and is one in most of them."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._mutator = Mutator(chance)

    def case(self) -> Case:
        """Return a connection."""
        chance = self._chance
        is_trusted = chance.random() < 0.8
        frames = [self.frame() for _ in range(chance.randrange(1, 100))]
        if not is_trusted:
            hello = wire.Hello(1, chance.choice((0, 1, NODE_ID)), values.number(chance) % 1000, bytes(32))
            frames = [wire.encode_hello(hello), wire.encode_proof(bytes(32)), *frames[:5]]
        case = Case("link", tuple(frames), is_trusted=is_trusted)
        if chance.random() < 0.3:
            case = self._mutator.mutate(case)
        ending = Ending.RESET if chance.random() < 0.1 else Ending.FINISH
        return Case("link", case.frames, ending, is_trusted, chance.choice((0, 0, 1, 5)))

    def frame(self) -> bytes:
        """Return a frame that a peer may send, with any numbers in it."""
        chance = self._chance
        match chance.randrange(15):
            case 0 | 1 | 2 | 3:
                queues = [self._queue() for _ in range(chance.choice((1, 1, 2, 10)))]
                return wire.encode_put(self._number(), queues, self._content())
            case 4:
                prefetch = chance.choice((0.0, 1.0, 2.5, 100.0, 1e308, float("inf")))
                priority = max(-(1 << 31), min((1 << 31) - 1, values.number(chance)))
                consume = wire.Consume(self._small(), self._queue(), prefetch, priority, chance.random() < 0.1, None)
                return wire.encode_consume(consume)
            case 5 | 6:
                ids = [self._number() for _ in range(chance.choice((0, 1, 5)))]
                return wire.encode_settle(self._small(), chance.choice((0, 1, 2, 3, 4, 255)), ids)
            case 7:
                return wire.encode_window(self._small(), chance.choice((0.0, 1.0, 1e308, float("inf"))))
            case 8:
                return chance.choice((wire.encode_pause, wire.encode_resume, wire.encode_cancel))(self._small())
            case 9:
                return wire.encode_get(self._number(), self._queue())
            case 10:
                selector = Selector(
                    self._small() if chance.random() < 0.5 else None,
                    chance.random() < 0.5,
                    None,
                    self._number() if chance.random() < 0.2 else None,
                    chance.choice(list(Order)),
                )
                return wire.encode_read(
                    wire.Read(self._number(), self._queue(), selector, chance.random() < 0.5, chance.randrange(4))
                )
            case 11:
                return wire.encode_reply(values.text(chance), self._content())
            case 12 if chance.random() < 0.3:
                command = {"command": chance.choice(COMMANDS), "arguments": {}}
                return wire.encode_request(self._number(), values.encoded(chance, command))
            case 13 if chance.random() < 0.1:
                return chance.choice(
                    (
                        wire.encode_put_done(chance.randrange(6), [self._number()]),
                        wire.encode_consuming(self._small()),
                        wire.encode_failure(self._number(), "QueueNotFound", values.text(chance)),
                        wire.encode_handed(self._number(), chance.randrange(6)),
                        struct.pack(">IB", 1, chance.randrange(256)),
                    )
                )
            case _:
                return wire.encode_put(self._number(), [self._queue()], self._content())

    def _content(self) -> Content:
        chance = self._chance
        return Content(
            values.raw_text(chance) if chance.random() < 0.99 else bytes(100_000),
            b"\0\0" if chance.random() < 0.5 else chance.randbytes(chance.randrange(12)),
            b"\0\0" if chance.random() < 0.8 else chance.randbytes(chance.randrange(6)),
            chance.random() < 0.5,
            max(-(1 << 31), min((1 << 31) - 1, values.number(chance))) if chance.random() < 0.2 else 0,
            self._number() if chance.random() < 0.2 else None,
            self._number() if chance.random() < 0.2 else None,
            self._number() if chance.random() < 0.1 else None,
            self._number() if chance.random() < 0.1 else None,
        )

    def _queue(self) -> int:
        """Return the id of a queue that fuzzed clients may use, or of none."""
        if self._chance.random() < 0.95:
            return self._chance.randrange(1, 40)
        return self._chance.choice((0, -1, -(1 << 63), 1 << 31, (1 << 63) - 1))

    def _small(self) -> int:
        return self._chance.randrange(0, 6) if self._chance.random() < 0.95 else self._number()

    def _number(self) -> int:
        if self._chance.random() < 0.8:
            return self._chance.randrange(0, 1000)
        return max(LONG[0], min(LONG[1], values.number(self._chance)))
