"""Converts logs to trace files, which Spark reads like others. Logs are small, so the driver does this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flyball.pipeline.log_formats import LogFormat
from flyball.pipeline.logs import opener_of
from flyball.pipeline.places import Files, join, path_of
from flyball.pipeline.rules import FIRST_US, LAST_US, RULES
from flyball.pipeline.schemas import SCHEMA_VERSION
from flyball.pipeline.trace_reader import REASON, TABLE_KEY, VERSION_KEY, Malformed, Part


def as_traces(places: Sequence[str], log_format: LogFormat, folder: str, files: Files) -> list[dict[str, Any]]:
    """Write trace files of logs into `folder`; return the facts of each, and of unreadable logs.

    `lines` are the unusable lines of a log, `rejected` their number by reason.
    """
    open_log = opener_of(log_format)
    found: list[dict[str, Any]] = []
    for number, place in enumerate(places):
        try:
            parts = list(open_log(path_of(place)).parts())
        except Malformed as error:
            found.append({**_NOTHING, "file": place, "uri": place, "problem": str(error)})
            continue
        lines = [{**line, "file": place} for part in parts for line in part.bad.to_pylist()]
        written = [
            _written(place, table, parts, join(folder, f"{number}-{table}.parquet"), files)
            for table in dict.fromkeys(part.table for part in parts if part.good.num_rows)
        ]
        # A log without any usable row has been processed as well.
        written = written or [{**_NOTHING, "file": place, "uri": place, "problem": None}]
        written[0] |= {"rejected": dict(Counter(line[REASON] for line in lines)), "lines": lines}
        found += written
    return found


_NOTHING: dict[str, Any] = {"table": None, "rows": 0, "factor": 1, "dropped": 0, "first_us": None, "last_us": None}


def _written(place: str, table: str, parts: Sequence[Part], target: str, files: Files) -> dict[str, Any]:
    batches = [part.good for part in parts if part.table == table and part.good.num_rows]
    rows = pa.Table.from_batches(batches).unify_dictionaries()
    sink = pa.BufferOutputStream()
    described = rows.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION), TABLE_KEY: table})
    pq.write_table(described, sink, compression="zstd")
    files.write(target, sink.getvalue().to_pybytes())
    times = [time for time in rows.column(RULES[table].time_column).to_pylist() if FIRST_US <= time <= LAST_US]
    extent = {"first_us": min(times, default=None), "last_us": max(times, default=None)}
    return {
        **_NOTHING,
        "file": place,
        "uri": target,
        "table": table,
        "rows": rows.num_rows,
        **extent,
        "problem": None,
    }
