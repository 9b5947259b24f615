"""Names of types and texts of values, which reply texts quote as RabbitMQ does."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from flyball.broker.engine.routing.values import shown, type_name
from flyball.model import Timestamp


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "void", "undefined"),
        (True, "bool", "true"),
        (7, "signedint", "7"),
        (1 << 40, "long", "1099511627776"),
        (0.5, "double", "0.5"),
        ("a", "longstr", "a"),
        (b"a", "binary", "a"),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), "timestamp", "60"),
        (Timestamp(1 << 60), "timestamp", "1152921504606846976"),
        (Decimal("0.25"), "decimal", "0.25"),
        ([1, b"a"], "array", '[{signedint,1},{binary,<<"a">>}]'),
        ({"a": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}, "table", '[{<<"a">>,timestamp,60}]'),
    ],
)
def test_values_are_named_and_written_as_in_rabbitmq(value: Any, kind: str, text: str) -> None:
    assert (type_name(value), shown(value)) == (kind, text)
