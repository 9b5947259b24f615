"""The logs of the systems that the papers measured, as tables of the pipeline.

ThorBangMQ's appendix B describes two formats, and its sources write some more. Telesto's paper says only that the
duration of each phase is logged; its `Stopwatch` writes five tab-separated columns, whose meaning in the clients
differs from that in the middleware. Times since the start of a process count from `LOG_START_US` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.rules import MOST, RULES, Rules
from flyball.pipeline.trace_reader import REASON, Malformed, Part, Source, part_of

LOG_NAMES = ("*.log", "*.txt", "*.csv")
# The first of January 2000: assumed start of every process whose log does not contain its start time.
LOG_START_US = 946_684_800_000_000

# Milliseconds from this value on count from 1970, as in Telesto's logs and the oldest ones of ThorBangMQ.
_EPOCH_MS = 10**12
_LINES = "lines"
_BATCH_LINES = 1 << 16
_SEPARATOR = re.compile(r"\s*[,\t]\s*")
_KINDS_BY_NAME = {"push": "put", "peek": "peek", "pop": "take"}
# Java's text for a phase that a worker did not enter.
_NULL = "null"
# Requests of Telesto's clients, by the packet's id.
_KINDS_BY_PACKET = {
    0x01: "ping",
    0x11: "register",
    0x13: "identify",
    0x15: "other",
    0x21: "create_queue",
    0x23: "delete_queue",
    **dict.fromkeys((0x25, 0x27, 0x29, 0x2B), "look_up"),
    0x2D: "list",
    0x31: "put",
    **dict.fromkeys((0x33, 0x35), "take"),
}
_ERROR_PACKET = 0x05
# Packet ids of its middleware's answers.
_ANSWER_PACKETS = frozenset((0x02, 0x03, _ERROR_PACKET, 0x12, 0x14, 0x22, 0x26, 0x28, 0x2A, 0x2C, 0x2E, 0x34))
_KINDS_WITH_MESSAGE = ("put", "take")


Row = Mapping[str, Any]
# Converts the name of a log, the number of a line and its fields to a row for each table. Raises ValueError.
Parser = Callable[[str, int, Sequence[str]], Mapping[str, Row]]


def opener_of(log_format: LogFormat) -> Callable[[Path], Source]:
    """Return the function that opens logs of a format."""
    return partial(_open, log_format)


def _open(log_format: LogFormat, path: Path) -> Source:
    """Open a log; the number of its lines is known only after reading it."""
    return Source(parts=lambda: _parts(_PARSERS[log_format], path), rows=0)


def _parts(parse: Parser, path: Path) -> Iterator[Part]:
    """Read a log in parts of some lines. Raises Malformed if it cannot be read, or is not text."""
    try:
        with path.open(encoding="utf-8") as file:
            first = 1
            while lines := list(islice(file, _BATCH_LINES)):
                yield from _batch(parse, path.stem, first, lines)
                first += len(lines)
    except OSError as error:
        raise Malformed(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Malformed("is not text") from error


def _batch(parse: Parser, name: str, first: int, lines: Sequence[str]) -> Iterator[Part]:
    rows: dict[str, list[Row]] = {}
    wrong: list[Row] = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            parsed = parse(name, number, _SEPARATOR.split(line.strip()))
        except ValueError as error:
            wrong.append({"line": number, "text": line.rstrip("\n"), REASON: str(error)})
            continue
        for table, row in parsed.items():
            rows.setdefault(table, []).append(row)
    for table, found in rows.items():
        yield part_of(table, _arrow(found, RULES[table]))
    if wrong:
        bad = pa.RecordBatch.from_pylist(wrong)
        yield Part(_LINES, bad.slice(0, 0), bad)


def _arrow(rows: list[Row], rules: Rules) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, schema=rules.schema)
    columns = [column.dictionary_encode() if column.type == pa.string() else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _server_line(name: str, number: int, fields: Sequence[str]) -> Mapping[str, Row]:
    if len(fields) not in (3, 7):
        raise ValueError("is not a line of three or seven numbers")
    ms, pushes, pops, *timed = (_whole(text) for text in fields)
    # Without the number of answers there are no mean times: phases omit such intervals.
    answers, total_ns, worker_ns, persistence_ns = timed or (0, 0, 0, 0)
    counts = {"pushes": pushes, "pops": pops, "answers": answers}
    times = {"total_ns": total_ns, "worker_ns": worker_ns, "persistence_ns": persistence_ns}
    return {"intervals": {"node": name, "at_us": _at_us(ms), **counts, **times}}


def _client_line(name: str, number: int, fields: Sequence[str], unit_ns: int) -> Mapping[str, Row]:
    if len(fields) != 2:
        raise ValueError("is not a line of two numbers")
    response_ns = round(_number(fields[1]) * unit_ns)
    kind = next((kind for word, kind in _KINDS_BY_NAME.items() if word in name.lower()), "other")
    # A line is written when its request has finished.
    intended_us = _at_us(_whole(fields[0])) - response_ns // 1000
    return {"calls": _call(name, number, "thorbang", kind, intended_us, response_ns)}


def _telesto_line(name: str, number: int, fields: Sequence[str]) -> Mapping[str, Row]:
    if len(fields) != 5:
        raise ValueError("is not a line of five fields")
    at_us = _at_us(_whole(fields[0]))
    waiting, *phases = (None if text == _NULL else _whole(text) for text in fields[1:])
    first, middle, last = phases
    # Packet ids are below 128; no worker parses a packet and sends an answer in fewer nanoseconds.
    if middle is not None and first in _KINDS_BY_PACKET and last in _ANSWER_PACKETS:
        return {"calls": _telesto_call(name, number, at_us, waiting or 0, first, middle, last)}
    rows: dict[str, Row] = {}
    if waiting is not None:
        rows["downtimes"] = {"node": name, "at_us": at_us, "downtime_ns": waiting}
    # A worker that received an incomplete packet did not process it.
    if first is not None and middle is not None and last is not None:
        times = {"wait_ns": 0, "parse_ns": first, "engine_ns": 0, "store_ns": middle, "emit_ns": last}
        received_us = at_us - (first + middle + last) // 1000
        what = {**_what(number, "telesto", "other"), "queue_id": 0, "received_us": received_us}
        rows["requests"] = {**what, **times, "node": name}
    return rows


def _telesto_call(
    name: str, number: int, at_us: int, think_ns: int, sent: int, response_ns: int, received: int
) -> Row:
    """Return the call of a client, which logs it when the answer arrives. For an error only its packet id is
    known.
    """
    kind = _KINDS_BY_PACKET[sent]
    is_error = received == _ERROR_PACKET
    # A client polls until there is a message: almost no read fails for another reason.
    result = "ok" if not is_error else "empty" if kind == "take" else "refused"
    return {
        **_call(name, number, "telesto", kind, at_us - response_ns // 1000, response_ns),
        "think_ns": think_ns,
        "result": result,
        "message_count": int(kind in _KINDS_WITH_MESSAGE and not is_error),
    }


def _call(name: str, number: int, protocol: str, kind: str, intended_us: int, response_ns: int) -> Row:
    return {
        **_what(number, protocol, kind),
        "role": "client",
        "queue": "",
        "intended_us": intended_us,
        "late_ns": 0,
        "response_ns": response_ns,
        "think_ns": 0,
        "target": "",
        "worker": name,
    }


def _what(number: int, protocol: str, kind: str) -> Row:
    """Return the common columns of requests and calls. A log does not contain results: the request was answered."""
    return {
        "kind": kind,
        "protocol": protocol,
        "client_id": 0,
        "size_bytes": 0,
        "result": "ok",
        "message_count": 1,
        "sequence": number,
        "weight": 1,
    }


def _at_us(ms: int) -> int:
    return ms * 1000 if ms >= _EPOCH_MS else LOG_START_US + ms * 1000


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise ValueError("has a field that is not a whole number")
    return int(text)


def _number(text: str) -> float:
    # Java writes a decimal point or, under some locales, a comma: that makes a third field, which is refused.
    if not re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", text, re.ASCII) or abs(float(text)) > MOST:
        raise ValueError("has a field that is not a number")
    return float(text)


_PARSERS: Mapping[LogFormat, Parser] = {
    LogFormat.THORBANG_SERVER: _server_line,
    LogFormat.THORBANG_CLIENT: partial(_client_line, unit_ns=1_000_000),
    LogFormat.THORBANG_CLIENT_NS: partial(_client_line, unit_ns=1),
    LogFormat.TELESTO: _telesto_line,
}
