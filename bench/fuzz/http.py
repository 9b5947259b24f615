"""Requests to the HTTP API: every path and method of the OpenAPI document, with bodies that fit or do not."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from urllib.parse import quote

from bench.fuzz import values
from bench.fuzz.amqp import PASSWORD, USER, VHOST
from bench.fuzz.cases import Case, Ending, Mutator

AUTHORIZATION = b"Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode())
# What would take the fuzzer's own rights, or wait for more than a request's time.
LEFT_OUT = re.compile(r"/stream|/events|/whoami|/api/login|/api/auth|/shutdown|/provision")
BODIES: tuple[dict[str, Any], ...] = (
    {"auto_delete": False, "durable": True, "arguments": {}},
    {"type": "direct", "auto_delete": False, "durable": True, "internal": False, "arguments": {}},
    {"routing_key": "a", "arguments": {}},
    {"pattern": "^q", "definition": {"max-length": 10}, "priority": 0, "apply-to": "queues"},
    {"password": "x", "tags": "management"},
    {"configure": ".*", "write": ".*", "read": ".*"},
    {"properties": {}, "routing_key": "q0", "payload": "x", "payload_encoding": "string"},
    {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 50},
    {"queues": [], "exchanges": [], "bindings": [], "users": [], "policies": [], "permissions": []},
    {"value": {"a": 1}, "name": "x", "component": "y"},
)
QUERIES = (
    "", "?page=1&page_size=10", "?sort=name&sort_reverse=true", "?columns=name,messages", "?if-empty=true",
    "?name=q&use_regex=true&page=1", "?name=(&use_regex=true&page=1", "?page=0", "?page_size=100000&page=1",
    "?sort=a.b.c.d", "?columns=%00", "?lengths_age=60&lengths_incr=5", "?msg_rates_age=9999999999&msg_rates_incr=0",
    "?vhost=%2F",
)  # fmt: skip


class HttpSource:
    """Makes connections of HTTP clients, with several requests each."""

    def __init__(self, chance: Random, operations: Sequence[tuple[str, str]]) -> None:
        """`operations` are methods and paths, as in `operations_of`."""
        self._chance = chance
        self._mutator = Mutator(chance)
        self._operations = operations

    def case(self) -> Case:
        """Return a connection with some requests."""
        chance = self._chance
        frames = [self.request() for _ in range(chance.randrange(1, 12))]
        case = Case("http", tuple(frames))
        if chance.random() < 0.25:
            case = self._mutator.mutate(case)
        ending = Ending.RESET if chance.random() < 0.1 else Ending.FINISH
        return Case("http", case.frames, ending, frames_per_write=chance.choice((0, 1)))

    def request(self) -> bytes:
        chance = self._chance
        method, path = chance.choice(self._operations)
        if chance.random() < 0.05:
            method = chance.choice(("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "X"))
        target = re.sub(r"\{(\w+)\}", lambda found: self._part(found[1]), path)
        target += chance.choice(QUERIES) if chance.random() < 0.3 else ""
        target += "/" if chance.random() < 0.03 else ""
        body = b""
        if method in ("PUT", "POST", "DELETE") and chance.random() < 0.9:
            body = values.encoded(chance, self._body())
        authorization = AUTHORIZATION
        if chance.random() < 0.02:
            authorization = chance.choice((b"", b"Basic", b"Basic \xff", b"Basic OnY6", b"Bearer x", b"Basic 4pyT"))
        size = len(body) if chance.random() < 0.98 else max(0, values.number(chance))
        head = b"%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\n" % (
            method.encode(),
            target.encode("utf-8", "replace"),
            authorization,
        )
        if body:
            head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % size
        if chance.random() < 0.05:
            head += b"%s: %s\r\n" % (
                chance.choice((b"Accept", b"Cookie", b"If-None-Match", b"Range", b"X-Forwarded-For", b"Expect")),
                values.raw_text(chance).replace(b"\n", b""),
            )
        return head + b"\r\n" + body

    def _part(self, name: str) -> str:
        chance = self._chance
        if chance.random() < 0.06:
            return quote(values.text(chance), safe="")
        if name == "vhost":
            return chance.choice((VHOST, VHOST, "%2F", "h0", "none"))
        if name in ("queue", "name", "destination", "destination_queue"):
            return quote(values.name(chance), safe="") or "q0"
        if name in ("exchange", "source"):
            return chance.choice(("amq.default", "amq.topic", "e0", "e1"))
        return chance.choice(values.OTHERS[:6])

    def _body(self) -> Any:
        chance = self._chance
        if chance.random() < 0.15:
            return values.document(chance)
        body: dict[str, Any] = dict(chance.choice(BODIES))
        for key in list(body):
            if chance.random() < 0.15:
                body[key] = values.document(chance)
            elif chance.random() < 0.05:
                del body[key]
        if chance.random() < 0.1:
            body[values.text(chance)] = values.document(chance)
        return body


def operations_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return methods and paths of an OpenAPI document, without those that would end the fuzzing."""
    return [
        (method.upper(), path)
        for path, found in document["paths"].items()
        for method in found
        if not LEFT_OUT.search(path)
    ]


def corpus(operations: Sequence[tuple[str, str]]) -> list[Case]:
    """Return one request for each operation, in connections of ten."""
    requests: list[bytes] = []
    for method, path in operations:
        target = re.sub(r"\{(\w+)\}", lambda found: VHOST if found[1] == "vhost" else "q0", path)
        body = json.dumps(BODIES[0]).encode() if method in ("PUT", "POST") else b""
        size = b"Content-Length: %d\r\n" % len(body) if body else b""
        head = b"%s %s HTTP/1.1\r\nHost: h\r\nAuthorization: %s\r\n" % (
            method.encode(),
            target.encode(),
            AUTHORIZATION,
        )
        requests.append(head + size + b"\r\n" + body)
    return [Case("http", tuple(requests[at : at + 10])) for at in range(0, len(requests), 10)]
