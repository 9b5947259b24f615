"""Records outcome and cost of an application's requests under admission control.

Cheap enough for every request; the writer's thread turns records into files.
"""

from __future__ import annotations

from pathlib import Path

from flyball.trace.buffer import Columns, Layout, Texts
from flyball.trace.files import ADMISSIONS, TraceFiles
from flyball.trace.schema import Outcome, names_of
from flyball.trace.writer import RecordWriter

# The key of requests beyond the maximum number of distinct keys.
OTHER = "other"

BUFFER_RECORDS = 8_192

_CODES = {outcome.name.lower(): int(outcome) for outcome in Outcome}


def _derived(columns: Columns, epoch_ns: int) -> Columns:
    return {"arrived_us": (columns["arrived_ns"] + epoch_ns) // 1000}


ADMISSION = Layout(
    ADMISSIONS,
    (
        ("b", ("outcome",)),
        ("h", ("key",)),
        ("i", ("class_number",)),
        ("q", ("arrived_ns", "waited_ns", "served_ns", "connections", "busy_ns", "pool_ns")),
    ),
    "application",
    {"outcome": names_of(Outcome)},
    _derived,
)


class AdmissionWriter(RecordWriter):
    """Writes the outcomes of one application's requests as Parquet files.

    `record` must be called in one thread, the event loop's, whose clock is the monotonic one. Memory is bounded: when
    the disk is too slow, records are dropped and counted in `dropped`.
    """

    __slots__ = ("_keys", "_other")

    def __init__(
        self,
        folder: Path,
        name: str,
        rotate_s: float = 5.0,
        rotate_bytes: int = 64 * 2**20,
        keep_bytes: int = 2**62,
        max_buffers: int = 8,
        buffer_records: int = BUFFER_RECORDS,
        most_keys: int = 2**15 - 1,
        files: TraceFiles | None = None,
    ) -> None:
        """Does not touch files or start the thread before `start`.

        `name` is the application's. Beyond `keep_bytes` the oldest files are removed; by default all are kept.
        `files` replaces the destination: tests pass one that blocks or fails.
        """
        self._keys = Texts(most=most_keys)
        self._other = self._keys.code_of(OTHER)
        files = files or TraceFiles(folder, name, 1.0, rotate_bytes, keep_bytes, table=ADMISSIONS)
        super().__init__(files, name, ADMISSION, rotate_s, max_buffers, buffer_records, {"key": self._keys})

    def record(
        self,
        key: str,
        class_number: int,
        outcome: str,
        arrived_s: float,
        waited_s: float,
        served_s: float,
        connections: int,
        busy_s: float,
        pool_s: float,
    ) -> None:
        """Record the outcome of a request: the name of an `Outcome` in lower case. Never blocks.

        `arrived_s` is by the event loop's clock. `waited_s` is the wait for admission; `served_s` follows it and
        includes `pool_s`, the wait for database connections. `busy_s` is the time for which these were in use.
        """
        self._put(
            _CODES[outcome],
            self._code_of(key),
            class_number,
            round(arrived_s * 1e9),
            round(waited_s * 1e9),
            round(served_s * 1e9),
            connections,
            round(busy_s * 1e9),
            round(pool_s * 1e9),
        )

    def _code_of(self, key: str) -> int:
        try:
            return self._keys.code_of(key)
        except ValueError:
            return self._other
