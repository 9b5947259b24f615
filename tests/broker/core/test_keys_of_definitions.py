"""The keys of definitions in the store: different for different values, whatever clients choose."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.core.topology import _key_of_binding
from flyball.model import Binding, Destination

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


NAMES = st.text(st.characters(exclude_categories=()), max_size=20)


@given(NAMES, NAMES, NAMES, NAMES, st.sampled_from(Destination))
def test_key_of_a_binding_without_arguments_is_json_as_of_one_with_them(
    vhost: str, source: str, destination: str, routing_key: str, kind: Destination
) -> None:
    # Stores have such keys: those of another node, or of an earlier version, are to be found.
    binding = Binding(source, destination, kind, routing_key, {}, vhost)
    parts = [vhost, source, str(kind), destination, routing_key, {}]
    assert _key_of_binding(binding) == json.dumps(parts, ensure_ascii=False, sort_keys=True)
