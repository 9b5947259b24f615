"""Values that hurt, and plausible ones: numbers at their bounds, names, texts, patterns and JSON documents."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 7, 10, 100, 127, 128, 255, 256, 1000, 32766, 32767, 32768, 65535, 65536, 1_000_000,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    -1, -2, -128, -(1 << 31), -(1 << 63),
)  # fmt: skip

TEXTS = (
    "", " ", "a", "a" * 25, "a" * 255, "a" * 256, "#", "*", "a.#.b.*", "a,b", "a;b", "a b", "..", "/", "%", "%2F",
    "%00", "\0", "\n", "\r\n", "\x1b[31m", "ü", "日本", "\u202e", "\ufffd", "\U0001f600", "' OR 1=1", "$1", "<b>",
    "{}", "[]", "null", "true", "-0", "1e308", "NaN", "amq.default", "amq.direct", "amq.rabbitmq.reply-to",
    "amq.gen-x", "^(a+)+$",
)  # fmt: skip

# Names that are used again and again, so that what one connection declares another one uses.
QUEUES = tuple(f"q{number}" for number in range(12))
EXCHANGES = ("", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "e0", "e1", "e2", "e3")
KEYS = ("", "a", "a.b", "a.b.c", "q0", "q1", "q2", "q3", "#", "a.*", "*.b.#")
# Names of rarely used things; few, so that a node's definitions stay few.
OTHERS = tuple(f"h{number}" for number in range(40))


def number(chance: Random) -> int:
    """Return an integer, most often one at a bound."""
    if chance.random() < 0.7:
        return chance.choice(NUMBERS)
    return chance.randrange(-1000, 1000) if chance.random() < 0.7 else chance.getrandbits(64) - (1 << 63)


def text(chance: Random) -> str:
    """Return a text that is not a name, most often."""
    kind = chance.random()
    if kind < 0.6:
        return chance.choice(TEXTS)
    if kind < 0.8:
        return chance.choice(QUEUES + KEYS + OTHERS)
    return "".join(chr(chance.randrange(1, 0x2FF)) for _ in range(chance.randrange(0, 40)))


def raw_text(chance: Random) -> bytes:
    """Return the octets of a text, sometimes such as are not UTF-8."""
    return chance.randbytes(chance.randrange(0, 30)) if chance.random() < 0.1 else text(chance).encode()


def name(chance: Random) -> str:
    """Return the name of a queue, most often one that is there."""
    kind = chance.random()
    if kind < 0.85:
        return chance.choice(QUEUES)
    return chance.choice(OTHERS) if kind < 0.97 else text(chance)


def document(chance: Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kind = chance.randrange(8 if depth < 4 else 6)
    match kind:
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return number(chance)
        case 3:
            return chance.choice((0.0, -0.0, 1.5, 1e308, 5e-324))
        case 4 | 5:
            return text(chance)
        case 6:
            return [document(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return {text(chance): document(chance, depth + 1) for _ in range(chance.randrange(4))}


def encoded(chance: Random, value: Any) -> bytes:
    """Return JSON, sometimes broken, nested too deep or with what only some parsers take."""
    kind = chance.random()
    if kind < 0.9:
        return json.dumps(value).encode()
    if kind < 0.92:
        depth = chance.choice((10, 500, 5000))
        return b"[" * depth + b"]" * depth
    if kind < 0.94:
        return b'{"a":NaN,"b":Infinity,"c":-Infinity}'
    if kind < 0.96:
        return b'{"a":' + b"9" * chance.choice((20, 400, 5000)) + b"}"
    whole = json.dumps(value).encode()
    return whole[: chance.randrange(len(whole) + 1)] + chance.randbytes(chance.randrange(3))
