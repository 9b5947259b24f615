"""The parts of the schema that readers of traces rely on."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest

from flyball.trace.schema import ADMISSION_SCHEMA, SCHEMA, Kind, Outcome, Protocol, Result, names_of

TRACES_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "traces.md"


@pytest.mark.parametrize("codes", [Kind, Protocol, Result, Outcome])
def test_the_codes_count_from_0_so_that_each_is_the_place_of_its_text(codes: type[enum.IntEnum]) -> None:
    assert [code.value for code in codes] == list(range(len(codes)))
    assert names_of(codes).to_pylist() == [code.name.lower() for code in codes]


def test_every_column_and_every_code_is_documented() -> None:
    page = TRACES_PAGE.read_text()
    codes = [code.name.lower() for codes in (Kind, Protocol, Result, Outcome) for code in codes]
    words = [*SCHEMA.names, *ADMISSION_SCHEMA.names, *codes]
    assert [word for word in words if f"`{word}`" not in page] == []
