"""Sessions of Telesto's protocol, plain and extended, from the recorded ones and from the packets' own fields."""

from __future__ import annotations

import json
import struct
from random import Random

from bench.fuzz import values
from bench.fuzz.cases import Case, Ending, Mutator
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import WireDraft, WireMessage, WireSelector

ASK = wire.encode(wire.IdentifyClient(1, wire.EXTENSION_CLIENT_ID))
INT = (-(1 << 31), (1 << 31) - 1)
BYTE = (-128, 127)
LONG = (-(1 << 63), (1 << 63) - 1)
SHORT = (-(1 << 15), (1 << 15) - 1)
COMMANDS = (
    "user.list", "user.add", "user.put", "user.delete", "vhost.list", "vhost.add", "vhost.delete", "permission.list",
    "permission.set", "permission.clear", "policy.list", "policy.set", "policy.delete", "queue.list", "node.show",
    "domain.show", "definitions.export", "loop.list", "trace.status", "none",
)  # fmt: skip
DOUBLES = (0.0, 0.3, 1.0, 2.5, 20.0, 1e9, 1e308, float("inf"), float("nan"), -1.0, -0.0)


class TelestoSource:
    """Makes connections of Telesto clients."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._mutator = Mutator(chance)

    def case(self) -> Case:
        """Return a connection, plain or extended, that breaks the protocol late or never."""
        chance = self._chance
        frames = self.extended() if chance.random() < 0.6 else self.plain()
        case = Case("telesto", tuple(frames))
        if chance.random() < 0.3:
            case = self._mutator.mutate(case)
        ending = Ending.RESET if chance.random() < 0.1 else Ending.FINISH
        return Case("telesto", case.frames, ending, frames_per_write=chance.choice((0, 0, 0, 1, 5)))

    def plain(self) -> list[bytes]:
        chance = self._chance
        register = wire.RegisterClient(1, chance.choice(values.OTHERS), chance.choice((1, 2, 3)))
        identify = wire.IdentifyClient(2, chance.randrange(1, 6))
        frames = [wire.encode(register), wire.encode(identify)]
        return frames + [wire.encode(self._plain_packet(number)) for number in range(3, chance.randrange(10, 120))]

    def extended(self) -> list[bytes]:
        chance = self._chance
        frames = [ASK]
        if chance.random() < 0.95:
            frames.append(wire.encode_wide(wire.Join(1, chance.choice(values.OTHERS), chance.choice((1, 2, 3)))))
        for number in range(2, chance.randrange(10, 120)):
            extended = chance.random() < 0.75
            packet = self._extended_packet(number) if extended else self._plain_packet(number)
            frames.append(wire.encode_wide(packet))
        return frames

    def _plain_packet(self, number: int) -> wire.Packet:
        chance = self._chance
        match chance.randrange(13):
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
            case _:
                others = [self._queue() for _ in range(chance.choice((0, 0, 1, 3, 20)))]
                return wire.PutMessage(number, self._message(), others)

    def _extended_packet(self, number: int) -> wire.Packet:
        chance = self._chance
        match chance.randrange(17):
            case 0 | 1 | 2 | 3:
                queues = [self._queue() for _ in range(chance.choice((1, 1, 2, 10)))]
                return wire.Put(number, queues, [self._draft() for _ in range(chance.choice((0, 1, 1, 4)))])
            case 4:
                most, wait_ms = chance.choice((1, 5, 1000, *INT)), chance.choice((0, 0, 0, 1, 50, -1, INT[1]))
                return wire.Take(number, self._queue(), self._selector(), most, wait_ms)
            case 5:
                return wire.Peek(number, self._queue(), self._selector())
            case 6:
                kind = chance.choice((wire.ListMessages, wire.ListIds))
                return kind(number, self._queue(), self._long(), chance.choice((0, 1, 10, *INT)))
            case 7 | 8:
                return wire.Consume(number, self._queue(), self._selector(), chance.choice(DOUBLES))
            case 9:
                return wire.Prefetch(number, chance.randrange(4), chance.choice(DOUBLES))
            case 10:
                ids = [self._long() for _ in range(chance.choice((0, 1, 5)))]
                return wire.Settle(number, chance.randrange(4), chance.choice((1, 2, 3, 0, -1)), ids)
            case 11:
                return wire.Cancel(number, chance.randrange(4))
            case 12:
                return wire.Remove(number, self._queue(), self._long(), chance.choice((0, 1, 10, *INT)))
            case 13:
                return chance.choice((wire.Status, wire.ListClients))(number)
            case 14:
                return wire.Manage(number, self._command())
            case 15:
                topic, key = chance.choice(values.OTHERS[:4]), values.text(chance)[:200]
                if chance.random() < 0.4:
                    return wire.Subscribe(number, topic, chance.choice(("", "s1")), chance.choice(values.KEYS))
                return wire.Publish(number, topic, key, [self._draft() for _ in range(2)])
            case _:
                return chance.choice(
                    (
                        wire.Purge(number, self._queue()),
                        wire.RemoveClient(number, self._id()),
                        wire.Arrive(number, values.text(chance)),
                        wire.Leave(number, values.text(chance)),
                        wire.Place(number, *self._place()),
                    )
                )

    def _place(self) -> tuple[int, str, str, str, str, str]:
        texts = [values.text(self._chance) for _ in range(5)]
        return self._chance.choice((0, 1, 2, 127, -128)), texts[0], texts[1], texts[2], texts[3], texts[4]

    def _command(self) -> bytes:
        chance = self._chance
        arguments = {
            "name": chance.choice(values.OTHERS[:5]),
            "vhost": chance.choice(("/", "fuzz", "none")),
            "user": chance.choice(values.OTHERS[:5]),
            "pattern": chance.choice(("^a", "[", "", "(")),
            "definition": values.document(chance),
            "tags": values.document(chance),
        }
        chosen = {key: value for key, value in arguments.items() if chance.random() < 0.4}
        wanted: object = {"command": chance.choice(COMMANDS), "arguments": chosen}
        return values.encoded(chance, wanted if chance.random() < 0.8 else values.document(chance))

    def _name(self) -> str:
        return values.name(self._chance) if self._chance.random() < 0.9 else values.text(self._chance)

    def _queue(self) -> int:
        """Return the id of a queue that fuzzed clients may use, or of none."""
        if self._chance.random() < 0.92:
            return self._chance.randrange(1, 16)
        return self._chance.choice((0, -1, 1 << 30, *INT))

    def _id(self) -> int:
        return self._chance.randrange(0, 6) if self._chance.random() < 0.9 else self._bounded(INT)

    def _long(self) -> int:
        return self._chance.randrange(0, 500) if self._chance.random() < 0.8 else self._bounded(LONG)

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

    def _draft(self) -> WireDraft:
        chance = self._chance
        return WireDraft(
            values.raw_text(chance) if chance.random() < 0.98 else bytes(100_000),
            self._id(),
            self._long(),
            self._bounded(INT),
            chance.random() < 0.5,
            chance.choice((0, 0, 1, 100, INT[1], -1)),
            chance.randbytes(chance.randrange(20)) if chance.random() < 0.1 else b"",
        )

    def _selector(self) -> WireSelector:
        chance = self._chance
        return WireSelector(
            chance.random() < 0.8,
            self._id() if chance.random() < 0.3 else None,
            self._long() if chance.random() < 0.3 else None,
            chance.choice((1, 1, 2, 3, 0, 255)),
        )


def corpus() -> list[Case]:
    """Return one packet of each kind that the codec knows, with fields that fit."""
    message = WireMessage(0, 1, 0, 1, 9, 5, 0, "text")
    plain: list[wire.Packet] = [
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
    wide: list[wire.Packet] = [
        wire.Join(1, "corpus wide", 1),
        wire.Put(2, [1, 2], [WireDraft(b"body"), WireDraft(b"more", 1, 2, 3, False, 1000, b"properties")]),
        wire.Peek(3, 1, WireSelector()),
        wire.ListMessages(4, 1, 0, 10),
        wire.Consume(5, 1, WireSelector(sender=1, context=2, order=3), 1.5),
        wire.Prefetch(7, 1, 3.0),
        wire.Settle(8, 1, 1, [1, 2]),
        wire.Cancel(9, 1),
        wire.Take(10, 1, WireSelector(), 5, 0),
        wire.Status(12),
        wire.ListClients(13),
        wire.Purge(14, 2),
        wire.RemoveClient(15, 99),
        wire.ListIds(16, 1, 0, 10),
        wire.Remove(17, 1, 5, 10),
        wire.Manage(18, json.dumps({"command": "queue.list", "arguments": {}}).encode()),
        wire.Publish(19, "topic", "a.b", [WireDraft(b"body")]),
        wire.Subscribe(20, "topic", "", "a.*"),
        wire.Arrive(21, "session"),
        wire.Leave(22, "session"),
        wire.Forwarded(23),
    ]
    return [
        Case("telesto", tuple(wire.encode(packet) for packet in plain)),
        Case("telesto", (ASK, *(wire.encode_wide(packet) for packet in wide))),
        # A wide frame that announces more than it has.
        Case("telesto", (ASK, struct.pack(">IBi", 1 << 24, 0x43, 1))),
    ]
