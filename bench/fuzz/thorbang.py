"""Requests of ThorBangMQ's text protocol."""

from __future__ import annotations

from random import Random

from bench.fuzz import values
from bench.fuzz.cases import Case, Ending, Mutator


class ThorBangSource:
    """Makes connections of ThorBangMQ clients."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._mutator = Mutator(chance)

    def case(self) -> Case:
        """Return a connection with many requests."""
        chance = self._chance
        frames = [b"HELLO\0"]
        if chance.random() < 0.2:
            frames += [b"CREATECLIENT,%s\0" % self._name(), b"CREATEQUEUE,%s\0" % self._name()]
        frames += [self.request() for _ in range(chance.randrange(1, 150))]
        case = Case("thorbang", tuple(frames))
        if chance.random() < 0.3:
            case = self._mutator.mutate(case)
        ending = Ending.RESET if chance.random() < 0.1 else Ending.FINISH
        return Case("thorbang", case.frames, ending, frames_per_write=chance.choice((0, 0, 0, 1, 5)))

    def request(self) -> bytes:
        """Return a request that means something, or nearly so."""
        chance = self._chance
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                count = chance.choice((1, 1, 1, 2, 5, 30)) if chance.random() < 0.998 else 50_000
                queues = b";".join([self._id() for _ in range(count)])
                parts = [self._id(), self._id(), queues, self._small(), self._number(), self._text()]
                return b"MSG," + b",".join(parts) + b"\0"
            case 4 | 5:
                return b"PEEKQ," + b",".join([self._id(), self._id(), self._small()]) + b"\0"
            case 6:
                return b"PEEKS," + b",".join([self._id(), self._id(), self._id(), self._small()]) + b"\0"
            case 7 | 8:
                return b"POPQ," + b",".join([self._id(), self._id(), self._small()]) + b"\0"
            case 9:
                return b"POPS," + b",".join([self._id(), self._id(), self._id(), self._small()]) + b"\0"
            case 10 if chance.random() < 0.2:
                kind = chance.choice((b"CREATEQUEUE", b"CREATECLIENT", b"REMOVEQUEUE", b"REMOVECLIENT"))
                return kind + b"," + (self._name() if kind.startswith(b"C") else self._later_id()) + b"\0"
            case _:
                return b"HELLO\0" if chance.random() < 0.9 else values.raw_text(chance).replace(b"\0", b"") + b"\0"

    def _id(self) -> bytes:
        return b"%d" % self._chance.randrange(0, 16) if self._chance.random() < 0.95 else self._number()

    def _later_id(self) -> bytes:
        """Return an id of something that other requests do not need."""
        return b"%d" % self._chance.randrange(40, 200)

    def _small(self) -> bytes:
        return self._chance.choice((b"0", b"1", b"1", b"5", b"-5"))

    def _number(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.8:
            return b"%d" % values.number(chance)
        return chance.choice((b"", b" 1", b"+1", b"00001", b"1.0", b"0x1", b"9" * 30, "٣".encode(), b"1_0"))

    def _name(self) -> bytes:
        chance = self._chance
        name = values.name(chance) if chance.random() < 0.9 else values.text(chance)
        return name.encode().replace(b"\0", b"") + chance.choice((b"", b"", b"  "))

    def _text(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.99:
            return values.raw_text(chance).replace(b"\0", b"")
        return b"x" * chance.choice((2000, 20_000, 200_000))
