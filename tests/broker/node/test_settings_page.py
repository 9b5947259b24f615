"""docs/reference/settings.md has every setting as it is declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.broker.settings import Option, options

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "settings.md").read_text()


@pytest.mark.parametrize("option", list(options()), ids=lambda option: option.name)
def test_the_page_tells_the_setting_as_declared(option: Option) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{option.flag}` |")]
    assert f"`{option.variable}`" in row
    assert option.meaning in row
    assert option.default is None or f"`{option.default}`" in row
    assert option.key is None or f"`{option.place}`" in row
