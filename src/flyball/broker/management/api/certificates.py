"""Until when a certificate is valid, read from its file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509

from flyball.errors import SettingsError


def valid_until(path: Path) -> datetime:
    """Return when the first certificate of a PEM file ends. Raises SettingsError if there is none."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError) as error:
        raise SettingsError("--tls-cert", f"{path} holds no certificate that can be read: {error}") from error
