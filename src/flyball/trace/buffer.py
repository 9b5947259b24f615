"""Buffers of packed trace records, and their conversion to Arrow columns.

Records are packed with `struct` in native order: they never leave the process. Numpy views the same bytes as columns
and computes durations without a Python loop.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flyball.trace.files import Table

Numbers = npt.NDArray[np.int64]
# A column for each field of a record, and for each computed value.
Columns = dict[str, npt.NDArray[Any]]

_WORD_BYTES = 8


class Texts:
    """Numbers texts in order of first use, up to a maximum count."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._codes: dict[str, int] = {}

    def code_of(self, text: str) -> int:
        """Return the text's number. Raises ValueError when there are too many texts."""
        code = self._codes.get(text)
        if code is None:
            code = len(self._codes)
            if code > self._most:
                raise ValueError(f"more than {self._most + 1} different texts in a column: {text!r}")
            self._codes[text] = code
        return code

    def emptied(self) -> Texts:
        """Return an empty instance with the same maximum."""
        return Texts(self._most)

    def column(self) -> pa.Array:
        # Another thread may add texts; the atomic copy contains every text that existing records refer to.
        return pa.array([_encodable(text) for text in list(self._codes)], pa.string())


def _encodable(text: str) -> str:
    """Escape lone surrogates: a client may name a queue by octets that are not UTF-8, and Parquet has only UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _nothing(columns: Columns, epoch_ns: int) -> Columns:
    return {}


@dataclass(frozen=True)
class Layout:
    """The packed format of a kind of record, and how its table's columns are derived.

    `fields` are `struct` codes and field names, ordered so that no padding is needed at the end. Fields in `texts`
    are numbers of texts. `derived` gets the columns, and the offset from timestamps to 1970.
    """

    table: Table
    fields: tuple[tuple[str, tuple[str, ...]], ...]
    # The column with the recording process; empty for none.
    origin: str = ""
    texts: Mapping[str, pa.Array] = field(default_factory=dict)
    derived: Callable[[Columns, int], Columns] = _nothing
    packed: struct.Struct = field(init=False)
    dtype: np.dtype[Any] = field(init=False)

    def __post_init__(self) -> None:
        each = [(name, code) for code, names in self.fields for name in names]
        object.__setattr__(self, "packed", struct.Struct("".join(code for _, code in each)))
        object.__setattr__(self, "dtype", np.dtype(each, align=True))
        if self.dtype.itemsize != self.packed.size or self.packed.size % _WORD_BYTES:
            raise ValueError(f"the record size of {self.table.name} is not a multiple of the word size")


class RecordBuffer:
    """A buffer for `capacity` records of one kind. One thread packs records, another reads them.

    Lock-free: only the packing thread writes `used_bytes`, after a record is complete; only the other thread writes
    `taken`. So records can be read while the buffer is being filled.
    """

    __slots__ = (
        "_layout",
        "capacity_bytes",
        "first_sequence",
        "record_bytes",
        "taken",
        "texts",
        "used_bytes",
        "words",
    )

    def __init__(self, layout: Layout, capacity: int, texts: Mapping[str, Texts]) -> None:
        self._layout = layout
        # Those that the buffer's records refer to.
        self.texts = texts
        self.record_bytes = layout.packed.size
        self.capacity_bytes = capacity * self.record_bytes
        self.words = array("q", bytes(self.capacity_bytes))
        self.used_bytes = 0
        self.taken = 0
        self.first_sequence = 0

    @property
    def waiting(self) -> int:
        """Records not read yet."""
        return self.used_bytes // self.record_bytes - self.taken

    def columns(self, start_bytes: int, count: int) -> Columns:
        """Return the fields of records from a position on."""
        records = np.frombuffer(self.words, self._layout.dtype, count, start_bytes)
        return {name: np.ascontiguousarray(records[name]) for name in self._layout.dtype.names or ()}

    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        """Return the next `count` unread records as columns.

        `epoch_ns` is the offset from timestamps to 1970.
        """
        layout, first = self._layout, self.first_sequence + self.taken
        numbers = self.columns(self.taken * self.record_bytes, count)
        self.taken += count
        columns: dict[str, Any] = {
            "sequence": np.arange(first, first + count),
            "weight": np.ones(count, np.int64),
            **numbers,
            **layout.derived(numbers, epoch_ns),
        }
        if layout.origin:
            columns[layout.origin] = coded(np.zeros(count, np.int8), pa.array([origin], pa.string()))
        for name, texts in layout.texts.items():
            columns[name] = coded(numbers[name], texts)
        for name, met in self.texts.items():
            columns[name] = coded(numbers[name], met.column())
        schema = layout.table.schema
        return pa.RecordBatch.from_arrays(
            # NaN marks a missing value.
            [pa.array(columns[each.name], from_pandas=each.nullable).cast(each.type) for each in schema],
            schema=schema,
        )

    def clear(self) -> None:
        """Empty the buffer. Only while neither thread uses it."""
        self.used_bytes = 0
        self.taken = 0


def coded(codes: npt.NDArray[np.integer[Any]], texts: pa.Array) -> pa.Array:
    """Return the texts of codes, as a column."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts)
