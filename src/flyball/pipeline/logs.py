"""The logs of the systems that the papers measured, as tables of the pipeline.

ThorBangMQ's appendix B describes two formats. Telesto's says only that the duration of each phase goes into a log, so
its format is defined here. Times in the logs count from the start of a process; here from `LOG_START_US`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from flyball.pipeline.log_formats import TELESTO_HEADER, LogFormat
from flyball.pipeline.rules import MOST, RULES, Rules
from flyball.pipeline.trace_reader import REASON, Malformed, Part, Source, part_of

LOG_NAMES = ("*.log", "*.txt", "*.csv")
"""What logs are called."""
LOG_START_US = 946_684_800_000_000
"""The first of January 2000: when every process started whose log does not say when it did."""

_EPOCH_MS = 10**12
"""Milliseconds from here on count from 1970, as in the oldest logs of the ThorBangMQ report."""
_LINES = "lines"
_BATCH_LINES = 1 << 16
_SEPARATOR = re.compile(r"\s*[,\t]\s*")
_KINDS_BY_NAME = {"push": "put", "peek": "peek", "pop": "take"}


Row = Mapping[str, Any]
Parser = Callable[[str, int, Sequence[str]], Mapping[str, Row]]
"""Turns the name of a log, the number of a line and its fields into a row for each table. Raises ValueError."""


def opener_of(log_format: LogFormat) -> Callable[[Path], Source]:
    """Return what opens logs of a format."""
    return partial(_open, log_format)


def _open(log_format: LogFormat, path: Path) -> Source:
    """Open a log; how many lines it has shows when it is read."""
    return Source(parts=lambda: _parts(_PARSERS[log_format], path), rows=0)


def _parts(parse: Parser, path: Path) -> Iterator[Part]:
    """Read a log, some lines at a time. Raises Malformed if it cannot be read, or is not text."""
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
        if not line.strip() or line.strip() == TELESTO_HEADER:
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
    if len(fields) != 7:
        raise ValueError("is no line of seven numbers")
    ms, pushes, pops, answers, total_ns, worker_ns, persistence_ns = (_whole(text) for text in fields)
    counts = {"pushes": pushes, "pops": pops, "answers": answers}
    times = {"total_ns": total_ns, "worker_ns": worker_ns, "persistence_ns": persistence_ns}
    return {"intervals": {"node": name, "at_us": _at_us(ms), **counts, **times}}


def _client_line(name: str, number: int, fields: Sequence[str], unit_ns: int) -> Mapping[str, Row]:
    if len(fields) != 2:
        raise ValueError("is no line of two numbers")
    response_ns = round(_number(fields[1]) * unit_ns)
    kind = next((kind for word, kind in _KINDS_BY_NAME.items() if word in name.lower()), "other")
    # A line is written when its request has finished.
    intended_us = _at_us(_whole(fields[0])) - response_ns // 1000
    return {"calls": _call(name, number, "thorbang", kind, intended_us, response_ns)}


def _telesto_line(name: str, number: int, fields: Sequence[str]) -> Mapping[str, Row]:
    if len(fields) != 7:
        raise ValueError("is no line of seven fields")
    kind = fields[1]
    ms, parse_ns, store_ns, emit_ns, response_ns, downtime_ns = (_whole(text) for text in (fields[0], *fields[2:]))
    at_us = _at_us(ms)
    phases = {"wait_ns": 0, "parse_ns": parse_ns, "engine_ns": 0, "store_ns": store_ns, "emit_ns": emit_ns}
    request = {
        **_what(number, "telesto", kind),
        "queue_id": 0,
        "received_us": at_us,
        **phases,
        "node": name,
    }
    return {
        "requests": request,
        "calls": _call(name, number, "telesto", kind, at_us, response_ns),
        "downtimes": {"node": name, "at_us": at_us, "downtime_ns": downtime_ns},
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
    """What requests and calls have in common. A log does not say how a request ended: it was answered."""
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
        raise ValueError("holds something that is no whole number")
    return int(text)


def _number(text: str) -> float:
    # Java writes a decimal point or, under some locales, a comma: that makes a third field, which is refused.
    if not re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", text, re.ASCII) or abs(float(text)) > MOST:
        raise ValueError("holds something that is no number")
    return float(text)


_PARSERS: Mapping[LogFormat, Parser] = {
    LogFormat.THORBANG_SERVER: _server_line,
    LogFormat.THORBANG_CLIENT: partial(_client_line, unit_ns=1_000_000),
    LogFormat.THORBANG_CLIENT_NS: partial(_client_line, unit_ns=1),
    LogFormat.TELESTO: _telesto_line,
}
