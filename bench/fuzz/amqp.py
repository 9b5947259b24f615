"""Sessions of AMQP 0-9-1 from the method descriptions in `wire/amqp/protocol.txt`.

A connection has many short lives of channels, since an error ends the channel: what is sent on it afterwards tests
nothing. Fields are written here and not by Flyball's codec, which would refuse most of what is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from random import Random

from bench.fuzz import values
from bench.fuzz.cases import Case, Ending, Mutator

HEADER = b"AMQP\x00\x00\x09\x01"
VHOST = "fuzz"
USER, PASSWORD = "fuzz", "fuzz"
FRAME_MAX = 131_072
CHANNELS = 200


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Method:
    class_id: int
    method_id: int
    name: str
    fields: tuple[Field, ...]


def methods_from_clients() -> dict[str, Method]:
    """Return the methods that clients send, by name, as protocol.txt describes them."""
    domains: dict[str, str] = {}
    found: list[tuple[int, int, str, list[Field]]] = []
    class_id, class_name = 0, ""
    fields: list[Field] = []
    for line in files("flyball.broker.wire.amqp").joinpath("protocol.txt").read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "domain":
            domains[words[1]] = words[2]
        elif words[0] == "class":
            class_id, class_name = int(words[1]), words[2]
        elif words[0] == "method":
            fields = []
            if words[3] in ("client", "both"):
                found.append((class_id, int(words[1]), f"{class_name}.{words[2]}", fields))
        elif line.startswith(" "):
            fields.append(Field("" if words[0] == "-" else words[0], domains.get(words[1], words[1])))
    return {name: Method(of_class, number, name, tuple(its)) for of_class, number, name, its in found}


METHODS = methods_from_clients()


def shortstr(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return bytes([min(len(raw), 255)]) + raw[:255]


def longstr(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel & 0xFFFF, len(payload)) + payload + b"\xce"


def pair(name: str, value: bytes) -> bytes:
    return shortstr(name) + value


def text_value(text: str | bytes) -> bytes:
    return b"S" + longstr(text.encode() if isinstance(text, str) else text)


def number_value(value: int) -> bytes:
    return b"l" + (value & ((1 << 64) - 1)).to_bytes(8, "big")


def table(*pairs: bytes) -> bytes:
    return longstr(b"".join(pairs))


def death(queue: str, reason: str, count: int) -> bytes:
    """Return an entry of x-death, as a value of a table."""
    return b"F" + table(
        pair("queue", text_value(queue)),
        pair("reason", text_value(reason)),
        pair("exchange", text_value("")),
        pair("count", number_value(count)),
        pair("routing-keys", b"A" + longstr(text_value(queue))),
    )


# Queues by name with their arguments: what is declared again must be the same, or the channel ends.
ARGUMENTS: dict[str, tuple[bytes, ...]] = {
    "q0": (),
    "q1": (),
    "q2": (pair("x-max-length", number_value(20)),),
    "q3": (pair("x-max-length", number_value(20)), pair("x-overflow", text_value("reject-publish"))),
    "q4": (
        pair("x-message-ttl", number_value(5)),
        pair("x-dead-letter-exchange", text_value("")),
        pair("x-dead-letter-routing-key", text_value("q5")),
    ),
    "q5": (pair("x-max-length", number_value(50)),),
    "q6": (pair("x-max-priority", number_value(10)), pair("x-max-length", number_value(100))),
    "q7": (pair("x-dead-letter-exchange", text_value("e0")), pair("x-max-length", number_value(20))),
    "q8": (pair("x-single-active-consumer", b"t\x01"), pair("x-max-length", number_value(20))),
    "q9": (pair("x-max-length-bytes", number_value(10_000)),),
    "q10": (pair("x-message-ttl", number_value(0)), pair("x-dead-letter-exchange", text_value("amq.fanout"))),
    "q11": (pair("x-expires", number_value(2000)), pair("x-max-length", number_value(20))),
}
TYPES = {"e0": "direct", "e1": "fanout", "e2": "topic", "e3": "headers"}
ARGUMENT_NAMES = (
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-overflow",
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-queue-type", "x-queue-mode", "x-priority",
    "x-single-active-consumer", "x-match", "alternate-exchange", "x-death", "CC", "BCC", "x-queue-master-locator",
    "x-stream-offset", "x-cancel-on-ha-failover", "x-first-death-queue", "x-delay", "x-order", "x-context",
    "x-sender", "x-receiver", "x-prefetch", "x-delivery-limit", "x-delivery-count", "x-flyball-sender",
    "x-flyball-context",
)  # fmt: skip
# Whatever their fields: these end the connection.
LETHAL_METHODS = ("channel.flow-ok", "basic.cancel-ok")
# How often each is among the steps of a channel.
STEPS: dict[str, int] = {
    "basic.publish": 40, "basic.get": 8, "basic.ack": 10, "basic.nack": 4, "basic.reject": 5, "basic.consume": 6,
    "basic.cancel": 2, "basic.qos": 3, "basic.recover": 2, "basic.recover-async": 1, "queue.bind": 4,
    "queue.unbind": 2, "queue.purge": 1, "queue.declare": 3, "queue.delete": 1, "exchange.declare": 2,
    "exchange.delete": 1, "exchange.bind": 2, "exchange.unbind": 1, "confirm.select": 2, "tx.select": 3,
    "tx.commit": 4, "tx.rollback": 2, "channel.flow": 1, "channel.flow-ok": 1, "access.request": 1,
    "channel.close": 1, "basic.cancel-ok": 1,
}  # fmt: skip


class AmqpSource:
    """Makes connections of AMQP clients."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._mutator = Mutator(chance)
        # Whether what is made now may end the connection, and with it all that follows.
        self._is_lethal = False
        self._names = list(STEPS)
        self._weights = list(STEPS.values())
        fillers: dict[str, Callable[[str, bool], bytes]] = {
            "octet": lambda name, wild: self._integer(1),
            "short": lambda name, wild: self._integer(2) if wild else struct.pack(">H", self._chance.randrange(50)),
            "long": lambda name, wild: self._integer(4) if self._is_lethal else bytes(4),
            "longlong": self._longlong,
            "shortstr": self._shortstr,
            "longstr": lambda name, wild: longstr(values.raw_text(self._chance)),
            "table": self._table,
        }
        self._fillers = fillers

    def case(self) -> Case:
        """Return a connection that logs in, works on many channels and breaks the protocol late or never."""
        chance = self._chance
        frames = [*self.opening()]
        self._is_lethal = False
        if chance.random() < 0.01:
            self._is_lethal = True
            frames = self._strange_opening()
        for number in chance.sample(range(1, CHANNELS), chance.randrange(1, 25)):
            frames += self.channel(number)
        if chance.random() < 0.3:
            frames = self._interleave(frames)
        case = Case("amqp", tuple(frames))
        if chance.random() < 0.35:
            case = self._mutator.mutate(case)
        ending = Ending.RESET if chance.random() < 0.1 else Ending.FINISH
        pace = chance.choice((0, 0, 0, 0, 1, 7))
        return Case("amqp", case.frames, ending, frames_per_write=pace if len(case.frames) < 100 else 0)

    def opening(self) -> list[bytes]:
        """Return a handshake, all at once: a client need not wait for the answers if it knows them."""
        capabilities = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked")
        wanted = [pair(name, b"t\x01") for name in capabilities if self._chance.random() < 0.8]
        properties = table(pair("capabilities", b"F" + table(*wanted)))
        response = longstr(f"\0{USER}\0{PASSWORD}".encode())
        return [
            HEADER,
            self.method(0, 10, 11, properties + shortstr("PLAIN") + response + shortstr("en_US")),
            self.method(0, 10, 31, struct.pack(">HIH", 2047, FRAME_MAX, 0)),
            self.method(0, 10, 40, shortstr(VHOST) + shortstr("") + b"\0"),
        ]

    def _strange_opening(self) -> list[bytes]:
        chance = self._chance
        frames = self.opening()
        at = chance.randrange(len(frames))
        match chance.randrange(5):
            case 0:
                frames[at] = self._mutator.mutate_bytes(frames[at])
            case 1:
                del frames[at]
            case 2:
                frames[1] = self.method(
                    0, 10, 11, self._table("", True) + self._shortstr("", True) + longstr(b"x") + b"\0"
                )
            case 3:
                frames[2] = self.method(0, 10, 31, chance.randbytes(8))
            case _:
                frames[3] = self.method(0, 10, 40, self._shortstr("", True) * 2 + b"\0")
        return frames

    def method(self, channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
        return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)

    def channel(self, number: int) -> list[bytes]:
        """Return the short life of a channel."""
        chance = self._chance
        frames = [self.method(number, 20, 10, shortstr(""))]
        mode = chance.random()
        if mode < 0.25:
            frames.append(self.method(number, 85, 10, b"\0"))
        elif mode < 0.45:
            frames.append(self.method(number, 90, 10, b""))
        queue = chance.choice(values.QUEUES)
        frames.append(self.declare(number, queue))
        if chance.random() < 0.3:
            exchange = chance.choice(list(TYPES))
            declare = struct.pack(">H", 0) + shortstr(exchange) + shortstr(TYPES[exchange]) + b"\x12" + table()
            frames.append(self.method(number, 40, 10, declare))
            bind = struct.pack(">H", 0) + shortstr(queue) + shortstr(exchange) + shortstr(chance.choice(values.KEYS))
            frames.append(self.method(number, 50, 20, bind + b"\1" + table()))
        if chance.random() < 0.3:
            consume = struct.pack(">H", 0) + shortstr(queue) + shortstr("") + b"\x08" + table()
            frames.append(self.method(number, 60, 20, consume))
        for name in chance.choices(self._names, self._weights, k=chance.randrange(1, 14)):
            wild = chance.random() < 0.12
            self._is_lethal = wild and chance.random() < 0.03
            if name in LETHAL_METHODS and not self._is_lethal:
                continue
            if name == "basic.publish":
                frames += self.publish(number, queue, wild)
            elif name == "queue.declare" and not wild:
                frames.append(self.declare(number, chance.choice(values.QUEUES)))
            else:
                frames.append(self.filled(number, METHODS[name], wild))
            if name == "channel.close" and not self._is_lethal:
                break
        return frames

    def declare(self, number: int, queue: str) -> bytes:
        arguments = struct.pack(">H", 0) + shortstr(queue) + b"\x12" + table(*ARGUMENTS[queue])
        return self.method(number, 50, 10, arguments)

    def publish(self, number: int, queue: str, wild: bool) -> list[bytes]:
        """Return the frames of a message."""
        chance = self._chance
        if wild:
            exchange, key = (values.text(chance).encode()[:255].decode("utf-8", "ignore") for _ in range(2))
        elif chance.random() < 0.6:
            exchange, key = "", queue
        else:
            exchange, key = chance.choice(values.EXCHANGES), chance.choice(values.KEYS)
        bits = 0 if chance.random() < 0.8 else chance.randrange(4 if self._is_lethal else 2)
        method = struct.pack(">H", 0) + shortstr(exchange) + shortstr(key) + bytes([bits])
        size = chance.choice((0, 1, 1, 10, 10, 60, 200, 3000)) if chance.random() < 0.99 else 300_000
        body = bytes(size)
        told = size if not self._is_lethal else abs(values.number(chance))
        head = struct.pack(">HHQ", 60, 0, told & ((1 << 64) - 1)) + self.properties(wild)
        frames = [self.method(number, 60, 40, method), frame(2, number, head)]
        step = FRAME_MAX - 8 if size > 200 else chance.choice((FRAME_MAX, 7))
        frames += [frame(3, number, body[at : at + step]) for at in range(0, size, step)]
        return frames

    def properties(self, wild: bool) -> bytes:
        """Return the flags and values of a message's properties."""
        chance = self._chance
        if not wild and chance.random() < 0.6:
            return struct.pack(">H", 1 << 12) + bytes([chance.choice((1, 2))])
        flags = chance.getrandbits(16) & 0xFFFC if wild else chance.choice((0, 1 << 12, 1 << 8, 1 << 11, 1 << 13))
        parts: list[bytes] = []
        for bit in range(15, 1, -1):
            if not flags >> bit & 1:
                continue
            match bit:
                case 13:
                    parts.append(self.headers())
                case 12:
                    parts.append(bytes([chance.choice((0, 1, 2, 255))]))
                case 11:
                    parts.append(bytes([chance.choice((0, 5, 10, 255))]))
                case 8:
                    expiration = ("0", "1", "5", "1000", "-1", "abc", "9" * 20, "1.5", "")
                    parts.append(shortstr(chance.choice(expiration[:4] if not wild else expiration)))
                case 6:
                    parts.append(self._integer(8))
                case 9:
                    parts.append(shortstr(chance.choice(("amq.rabbitmq.reply-to", "q0", values.text(chance)))))
                case 4:
                    parts.append(shortstr(chance.choice((USER, "guest"))))
                case _:
                    parts.append(shortstr(values.raw_text(chance)))
        return struct.pack(">H", flags) + b"".join(parts)

    def headers(self) -> bytes:
        """Return a table of headers, often with what the broker itself reads or writes there."""
        chance = self._chance
        pairs: list[bytes] = []
        if chance.random() < 0.5:
            deaths = [
                death(chance.choice(values.QUEUES), chance.choice(("expired", "rejected", "maxlen")), self._count())
                for _ in range(chance.choice((1, 1, 2, 30)))
            ]
            pairs.append(pair("x-death", b"A" + longstr(b"".join(deaths))))
        if chance.random() < 0.3:
            keys = b"".join(text_value(chance.choice(values.QUEUES)) for _ in range(chance.choice((1, 3, 40))))
            pairs.append(pair(chance.choice(("CC", "BCC")), b"A" + longstr(keys)))
        while chance.random() < 0.5:
            pairs.append(pair(chance.choice(ARGUMENT_NAMES), self.value()))
        return table(*pairs)

    def _count(self) -> int:
        return self._chance.choice((0, 1, 5, (1 << 62), (1 << 63) - 1, -1, -(1 << 63)))

    def value(self, depth: int = 0) -> bytes:
        """Return a value of a table with its type, rarely of a type that there is not."""
        chance = self._chance
        kind = chance.choice("tbBsuIilLfdDSSSxTVAF" if depth < 3 else "tlSdTV")
        match kind:
            case "t" | "b" | "B":
                return kind.encode() + chance.randbytes(1)
            case "s" | "u":
                return kind.encode() + self._integer(2)
            case "I" | "i" | "f":
                return kind.encode() + self._integer(4)
            case "l" | "L" | "d" | "T":
                return kind.encode() + self._integer(8)
            case "D":
                return b"D" + chance.randbytes(1) + self._integer(4)
            case "V":
                return b"V" if not self._is_lethal else chance.randbytes(1)
            case "A":
                if chance.random() < 0.02:
                    return self._deep()
                return b"A" + longstr(b"".join(self.value(depth + 1) for _ in range(chance.randrange(4))))
            case "F":
                return b"F" + table(
                    *(pair(values.text(chance), self.value(depth + 1)) for _ in range(chance.randrange(4)))
                )
            case _:
                return kind.encode() + longstr(values.raw_text(chance))

    def _deep(self) -> bytes:
        nested = b"V"
        for _ in range(self._chance.choice((50, 90) if not self._is_lethal else (99, 100, 101, 1000))):
            nested = b"A" + longstr(nested)
        return nested

    def filled(self, channel: int, method: Method, wild: bool) -> bytes:
        """Return a method with fields that fit, or with some that do not."""
        parts: list[bytes] = []
        bits, bit_count = 0, 0
        for one in (*method.fields, Field("", "end")):
            if one.type == "bit":
                is_set = self._chance.random() < self._likely(method.name, one.name)
                bits |= is_set << bit_count
                bit_count += 1
                continue
            if bit_count:
                parts.append(bytes([bits]))
                bits = bit_count = 0
            if one.type != "end":
                parts.append(self._fillers[one.type](one.name, wild))
        return self.method(channel, method.class_id, method.method_id, b"".join(parts))

    def _likely(self, method: str, field: str) -> float:
        if method.startswith("basic.recover"):
            # Anything else is not implemented, and ends the connection.
            return 1.0 if not self._is_lethal else 0.0
        if field == "passive":
            return 0.1
        if field == "active" and not self._is_lethal:
            return 1.0
        if field in ("exclusive", "immediate", "internal", "no-local"):
            return 0.05
        return 0.3

    def _longlong(self, name: str, wild: bool) -> bytes:
        return self._integer(8) if wild else struct.pack(">Q", self._chance.choice((0, 1, 1, 2, 3, 4)))

    def _shortstr(self, name: str, wild: bool) -> bytes:
        chance = self._chance
        if wild and (name != "type" or self._is_lethal):
            if not self._is_lethal:
                return shortstr(values.text(chance).encode()[:255].decode("utf-8", "ignore"))
            raw = shortstr(values.raw_text(chance))
            return raw if chance.random() < 0.5 else bytes([chance.randrange(256)]) + raw[1:]
        if name == "queue":
            return shortstr(chance.choice(values.QUEUES))
        if name in ("exchange", "source", "destination"):
            return shortstr(chance.choice(values.EXCHANGES[1:]))
        if name == "type":
            return shortstr(chance.choice(("direct", "fanout", "topic", "headers")))
        if name == "consumer-tag":
            # One that is used twice on a channel ends the connection.
            return shortstr("" if chance.random() < 0.5 else f"c{chance.getrandbits(24)}")
        return shortstr(chance.choice(values.KEYS))

    def _table(self, name: str, wild: bool) -> bytes:
        chance = self._chance
        if not wild and chance.random() < 0.8:
            return table()
        pairs = [pair(chance.choice(ARGUMENT_NAMES), self.value()) for _ in range(chance.randrange(1, 5))]
        raw = table(*pairs)
        return raw if not self._is_lethal else self._mutator.mutate_bytes(raw)

    def _integer(self, size: int) -> bytes:
        return (values.number(self._chance) & ((1 << 8 * size) - 1)).to_bytes(size, "big")

    def _interleave(self, frames: Sequence[bytes]) -> list[bytes]:
        """Mix the frames of different channels; those of one keep their order."""
        head, rest = list(frames[:4]), frames[4:]
        by_channel: dict[bytes, list[bytes]] = {}
        for one in rest:
            by_channel.setdefault(one[1:3], []).append(one)
        lines = [list(reversed(line)) for line in by_channel.values()]
        mixed: list[bytes] = []
        while lines:
            line = self._chance.choice(lines)
            mixed.append(line.pop())
            if not line:
                lines.remove(line)
        return head + mixed
