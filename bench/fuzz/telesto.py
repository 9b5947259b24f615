"""Sessions of Telesto's protocol, from the recorded ones and from the packets' own fields."""

from __future__ import annotations

from random import Random

from bench.fuzz import values
from bench.fuzz.cases import Case, Ending, Mutator
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import WireMessage

INT = (-(1 << 31), (1 << 31) - 1)
BYTE = (-128, 127)
LONG = (-(1 << 63), (1 << 63) - 1)


class TelestoSource:
    """Makes connections of Telesto clients."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._mutator = Mutator(chance)

    def case(self) -> Case:
        """Return a connection that breaks the protocol late or never."""
        chance = self._chance
        case = Case("telesto", tuple(self.frames()))
        if chance.random() < 0.3:
            case = self._mutator.mutate(case)
        ending = Ending.RESET if chance.random() < 0.1 else Ending.FINISH
        return Case("telesto", case.frames, ending, frames_per_write=chance.choice((0, 0, 0, 1, 5)))

    def frames(self) -> list[bytes]:
        chance = self._chance
        register = wire.RegisterClient(1, chance.choice(values.OTHERS), chance.choice((1, 2, 3)))
        identify = wire.IdentifyClient(2, chance.randrange(1, 6))
        frames = [wire.encode(register), wire.encode(identify)]
        return frames + [wire.encode(self._packet(number)) for number in range(3, chance.randrange(10, 120))]

    def _packet(self, number: int) -> wire.Packet:
        chance = self._chance
        match chance.randrange(14):
            case 0:
                return wire.Ping(number)
            case 1:
                return wire.CreateQueue(number, self._name())
            case 2:
                return wire.GetQueueId(number, self._name())
            case 3:
                return wire.GetQueueName(number, self._queue())
            case 4:
                return wire.GetQueues(number) if chance.random() < 0.3 else wire.GetActiveQueues(number)
            case 5 if chance.random() < 0.3:
                return wire.GetMessages(number, self._queue())
            case 6 if chance.random() < 0.1:
                return wire.DeleteQueue(number, chance.randrange(40, 200))
            case 7 | 8:
                return wire.ReadMessage(number, self._queue(), self._id(), chance.choice((1, 2, *BYTE)))
            case 9:
                return wire.ReadResponse(number, self._queue(), self._bounded(INT))
            case 10 if chance.random() < 0.1:
                return wire.Error(number, chance.randrange(0, 14), "x")
            case 11 if chance.random() < 0.3:
                return chance.choice(
                    (
                        wire.DeleteClient(number),
                        wire.RegisterClient(number, self._name(), chance.choice((1, 2, *BYTE))),
                        wire.IdentifyClient(number, self._id()),
                        wire.MessageTest(number, self._message()),
                        wire.Success(number),
                    )
                )
            case _:
                others = [self._queue() for _ in range(chance.choice((0, 0, 1, 3, 20)))]
                return wire.PutMessage(number, self._message(), others)

    def _name(self) -> str:
        return values.name(self._chance) if self._chance.random() < 0.9 else values.text(self._chance)

    def _queue(self) -> int:
        """Return the id of a queue that fuzzed clients may use, or of none."""
        if self._chance.random() < 0.92:
            return self._chance.randrange(1, 16)
        return self._chance.choice((0, -1, 1 << 30, *INT))

    def _id(self) -> int:
        return self._chance.randrange(0, 6) if self._chance.random() < 0.9 else self._bounded(INT)

    def _bounded(self, bounds: tuple[int, int]) -> int:
        return max(bounds[0], min(bounds[1], values.number(self._chance)))

    def _message(self) -> WireMessage:
        chance = self._chance
        text = values.text(chance) if chance.random() < 0.97 else "x" * chance.choice((1999, 2000, 2001, 20_000))
        return WireMessage(
            self._bounded(INT),
            self._queue(),
            self._id(),
            self._id(),
            self._bounded(INT),
            chance.choice((0, 1, 5, 10, 127, -128)),
            self._bounded(LONG),
            text,
        )


def corpus() -> list[Case]:
    """Return one packet of each kind that the codec knows, with fields that fit."""
    message = WireMessage(0, 1, 0, 1, 9, 5, 0, "text")
    packets: list[wire.Packet] = [
        wire.Ping(1),
        wire.RegisterClient(2, "corpus", 1),
        wire.CreateQueue(3, "corpus"),
        wire.GetQueueId(4, "corpus"),
        wire.GetQueueName(5, 1),
        wire.GetQueues(6),
        wire.PutMessage(7, message, [1]),
        wire.GetActiveQueues(8),
        wire.GetMessages(9, 1),
        wire.ReadResponse(10, 1, 9),
        wire.ReadMessage(11, 1, 0, 2),
        wire.DeleteQueue(12, 99),
        wire.ComplexTest(13, 1, True, 2, 3, 4, 1.0, 2.0, "s"),
        wire.MessageTest(14, message),
        wire.Pong(15),
        wire.Success(16),
        wire.DeleteClient(17),
    ]
    return [
        Case("telesto", tuple(wire.encode(packet) for packet in packets)),
        # A frame that announces more than it has.
        Case("telesto", (b"\x7f\xff\x31\0\0\0\1",)),
    ]
