"""Until when a certificate is valid is read from its file."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flyball.broker.management.api.health import valid_until
from flyball.errors import SettingsError


@pytest.mark.parametrize("days", [1, 400, 20_000])
def test_the_end_is_found_in_both_forms_of_a_date(
    days: int, new_certificate: Callable[[int], tuple[Path, Path]]
) -> None:
    path, _ = new_certificate(days)
    assert abs(valid_until(path) - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=5)


@pytest.mark.parametrize("text", ["", "nothing", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_certificate_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"--tls-cert: .*cert\.pem"):
        valid_until(path)
