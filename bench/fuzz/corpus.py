"""The seed corpus: JSON lines of cases in `corpus/`, one file for each protocol, and what once broke a node.

    python -m bench.fuzz.corpus

rewrites the files from the recorded vectors in tests/vectors, AMQP's method descriptions and the OpenAPI document.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from bench.fuzz import http, telesto
from bench.fuzz.amqp import (
    METHODS,
    AmqpSource,
    death,
    longstr,
    number_value,
    pair,
    shortstr,
    table,
    text_value,
)
from bench.fuzz.amqp import frame as amqp_frame
from bench.fuzz.cases import PROTOCOLS, Case, load, save
from bench.fuzz.link import LinkSource

FOLDER = Path(__file__).parent / "corpus"
VECTORS = Path(__file__).parents[2] / "tests" / "vectors"


def load_corpus() -> list[Case]:
    """Return all cases of the corpus, those that once broke a node first."""
    return [*findings(), *(case for path in sorted(FOLDER.glob("*.jsonl")) for case in load(path))]


def _recorded(path: Path, connection: str, request: str) -> list[tuple[bytes, ...]]:
    """Return the requests of recorded sessions, a connection each, without repetitions."""
    sessions: dict[tuple[str, str], list[bytes]] = {}
    seen: set[bytes] = set()
    for vector in json.loads(path.read_text()):
        text = vector.get(request) or ""
        data = bytes.fromhex(text) if request.endswith("hex") else text.encode("utf-8", "surrogateescape")
        if data and data not in seen and len(data) < 5000:
            seen.add(data)
            sessions.setdefault((vector["session"], vector.get(connection, "")), []).append(data)
    return [tuple(requests) for requests in sessions.values()]


def _amqp() -> list[Case]:
    source = AmqpSource(Random(1))
    # Every method of clients once, on a channel of its own.
    frames = source.opening()
    for number, (name, method) in enumerate(METHODS.items(), 1):
        if not name.startswith("connection."):
            frames += [source.method(number, 20, 10, shortstr("")), source.declare(number, "q0")]
            is_publish = name == "basic.publish"
            frames += source.publish(number, "q0", False) if is_publish else [source.filled(number, method, False)]
    others = [case for case in (source.case() for _ in range(100)) if sum(map(len, case.frames)) < 3000]
    return [Case("amqp", tuple(frames)), *others[:10]]


def findings() -> list[Case]:
    """Return what once stopped a node, or made it lose messages of others."""
    source = AmqpSource(Random(2))
    opening = [*source.opening(), source.method(1, 20, 10, shortstr(""))]

    def declare(queue: str, *arguments: bytes) -> bytes:
        return source.method(1, 50, 10, struct.pack(">H", 0) + shortstr(queue) + b"\x02" + table(*arguments))

    def publish(queue: str, *headers: bytes) -> list[bytes]:
        method = struct.pack(">H", 0) + shortstr("") + shortstr(queue) + b"\0"
        head = struct.pack(">HHQH", 60, 0, 1, 1 << 13 | 1 << 12) + table(*headers) + b"\2"
        return [source.method(1, 60, 40, method), amqp_frame(2, 1, head), amqp_frame(3, 1, b"x")]

    to_q0 = pair("x-dead-letter-exchange", text_value("")), pair("x-dead-letter-routing-key", text_value("q0"))
    ttl = pair("x-message-ttl", number_value(1))
    counted = death("h1", "expired", (1 << 63) - 1)
    get_and_reject = [
        source.method(1, 60, 70, struct.pack(">H", 0) + shortstr("h3") + b"\0"),
        source.method(1, 60, 90, struct.pack(">QB", 1, 0)),
    ]
    names = (b"1;" * 1_000_000)[:-1]
    return [
        # The count of x-death no longer fits into 64 bits.
        Case(
            "amqp",
            (*opening, declare("h1", ttl, *to_q0), *publish("h1", pair("x-death", b"A" + longstr(counted)))),
        ),
        Case(
            "amqp",
            (
                *opening,
                declare("h3", *to_q0),
                *publish("h3", pair("x-death", b"A" + longstr(death("h3", "rejected", (1 << 63) - 1)))),
                *get_and_reject,
            ),
        ),
        # A dead letter's routing key does not fit into a short string.
        Case(
            "amqp",
            (
                *opening,
                declare("h2", ttl, to_q0[0], pair("x-dead-letter-routing-key", text_value("k" * 300))),
                *publish("h2"),
            ),
        ),
        # An argument that the store cannot encode.
        Case("amqp", (*opening, declare("h4", pair("x-any", b"T" + struct.pack(">Q", 1 << 62))))),
        # An array where a text is wanted.
        Case("amqp", (*opening, declare("h5", pair("x-queue-type", b"A" + longstr(text_value("classic")))))),
        # A message that names its queue a million times.
        Case("thorbang", (b"CREATECLIENT,h\0", b"CREATEQUEUE,h\0", b"MSG,0,1," + names + b",1,0,x\0")),
        # Credentials that are not ASCII, and a pattern that takes exponential time in a backtracking engine.
        Case("http", (b"GET /api/overview HTTP/1.1\r\nHost: h\r\nAuthorization: Basic \xc3\xbc\r\n\r\n",)),
        Case("http", (_put_policy("^(a+)+$"), _put_queue("a" * 40 + "b"))),
    ]


def _put(path: str, body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    head = f"PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(text)}\r\n".encode()
    return head + b"Authorization: " + http.AUTHORIZATION + b"\r\n\r\n" + text


def _put_policy(pattern: str) -> bytes:
    return _put("/api/policies/fuzz/h0", {"pattern": pattern, "definition": {"max-length": 5}, "apply-to": "queues"})


def _put_queue(name: str) -> bytes:
    return _put(f"/api/queues/fuzz/{name}", {"durable": True, "arguments": {}})


def make(openapi: Mapping[str, Any]) -> None:
    """Write all files."""
    found: dict[str, list[Case]] = {protocol: [] for protocol in PROTOCOLS}
    found["amqp"] = _amqp()
    found["http"] = http.corpus(http.operations_of(openapi))
    recorded = _recorded(VECTORS / "telesto-vectors.json", "conn", "request_hex")
    found["telesto"] = [*telesto.corpus(), *(Case("telesto", frames) for frames in recorded)]
    recorded = _recorded(VECTORS / "thorbangmq-vectors.json", "connection", "request")
    found["thorbang"] = [Case("thorbang", frames) for frames in recorded]
    source = LinkSource(Random(3))
    found["link"] = [source.case() for _ in range(6)]
    FOLDER.mkdir(exist_ok=True)
    for name, cases in found.items():
        save(FOLDER / f"{name}.jsonl", cases)


if __name__ == "__main__":
    import tempfile

    from bench.fuzz.node import FuzzedNode

    with tempfile.TemporaryDirectory() as folder:
        node = FuzzedNode(Path(folder) / "node", "memory")
        node.start()
        make(node.request("GET", "/api/openapi.json"))
        node.stop()
