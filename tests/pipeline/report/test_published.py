"""Published numbers are compared with ours."""

from __future__ import annotations

import math

import pytest

from flyball.pipeline.report.published import difference_text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.12, "+12 %"), (0.7, "−30 %"), (1.0, "+0.0 %"), (5.0, "5.0 ×"), (0.2, "0.200 ×"), (math.nan, "–")],
)
def test_difference_is_percent_or_a_multiple_where_it_is_large(ratio: float, text: str) -> None:
    assert difference_text(ratio) == text
