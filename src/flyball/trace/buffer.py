"""Buffers of packed trace records, and the way from there to Arrow columns.

A record is packed as `struct` packs it, in native order: it never leaves the process. Numpy views the same bytes as
columns and computes what lies between the points in time, without a loop in Python.
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
# A column for each field of a record, and for what was computed of them.
Columns = dict[str, npt.NDArray[Any]]

_WORD_BYTES = 8


class Texts:
    """Numbers texts in the order in which they are first met, from 0 up to a most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._codes: dict[str, int] = {}

    def code_of(self, text: str) -> int:
        """Return the text's number. Raises ValueError when there are too many of them."""
        code = self._codes.get(text)
        if code is None:
            code = len(self._codes)
            if code > self._most:
                raise ValueError(f"there are more than {self._most + 1} texts in one column: {text!r}")
            self._codes[text] = code
        return code

    def column(self) -> pa.Array:
        # Another thread may add texts meanwhile; a copy made in one step has all that any record can name by now.
        return pa.array(list(self._codes), pa.string())


def _nothing(columns: Columns, epoch_ns: int) -> Columns:
    return {}


@dataclass(frozen=True)
class Layout:
    """How one kind of record is packed, and how the columns of its table follow from that.

    `fields` are the codes of `struct` and their fields' names, so that no padding is needed at the end. Fields of
    `texts` are numbers of texts. `derived` gets the columns, and what to add to points in time to count from 1970.
    """

    table: Table
    fields: tuple[tuple[str, tuple[str, ...]], ...]
    # The column that says who has recorded it; none if empty.
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
            raise ValueError(f"a record of {self.table.name} has no whole number of words")


class RecordBuffer:
    """Room for `capacity` records of one kind. One thread packs records in, another takes them out.

    `used_bytes` belongs to the packing thread and grows only after a record is whole; `taken` belongs to the
    other. So the taking thread may take what is there while the buffer is still being filled.
    """

    __slots__ = (
        "_layout",
        "_texts",
        "capacity_bytes",
        "first_sequence",
        "record_bytes",
        "taken",
        "used_bytes",
        "words",
    )

    def __init__(self, layout: Layout, capacity: int, texts: Mapping[str, Texts]) -> None:
        self._layout = layout
        self._texts = texts
        self.record_bytes = layout.packed.size
        self.capacity_bytes = capacity * self.record_bytes
        self.words = array("q", bytes(self.capacity_bytes))
        self.used_bytes = 0
        self.taken = 0
        self.first_sequence = 0

    @property
    def waiting(self) -> int:
        """How many records nobody has taken yet."""
        return self.used_bytes // self.record_bytes - self.taken

    def columns(self, start_bytes: int, count: int) -> Columns:
        """Return the fields of the records from a place on."""
        records = np.frombuffer(self.words, self._layout.dtype, count, start_bytes)
        return {name: np.ascontiguousarray(records[name]) for name in self._layout.dtype.names or ()}

    def take(self, count: int, origin: str, epoch_ns: int) -> pa.RecordBatch:
        """Return the next `count` of the waiting records as columns, made by `origin`.

        `epoch_ns` is what must be added to points in time to count from 1970.
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
        for name, met in self._texts.items():
            columns[name] = coded(numbers[name], met.column())
        schema = layout.table.schema
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[each.name]).cast(each.type) for each in schema], schema=schema
        )

    def clear(self) -> None:
        """Make the buffer empty again. Only when neither thread uses it."""
        self.used_bytes = 0
        self.taken = 0


def coded(codes: npt.NDArray[np.integer[Any]], texts: pa.Array) -> pa.Array:
    """Return the text that each code stands for, as a column."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts)
