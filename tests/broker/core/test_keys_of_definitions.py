"""The keys of definitions in the store: different for different values, whatever clients choose."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import combinations

from flyball.broker.core.topology import _key_of_binding
from flyball.model import Binding

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

ALIKE = [
    b"x",
    "b'x'",
    MOMENT,
    repr(MOMENT),
    Decimal("1.5"),
    "Decimal('1.5')",
    1.5,
    1,
    True,
    None,
    "None",
    {"$": "bytes b'x'"},
    {"$$": "bytes b'x'"},
    [b"x"],
    ["b'x'"],
]


def test_values_that_look_alike_have_different_keys() -> None:
    keys = [_key_of_binding(Binding("x", "q", arguments={"a": value})) for value in ALIKE]
    for (one, first), (another, second) in combinations(zip(ALIKE, keys, strict=True), 2):
        assert first != second, (one, another)
