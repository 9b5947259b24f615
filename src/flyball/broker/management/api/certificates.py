"""Until when a certificate is valid, read from its file: the one field of DER that the health check needs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from flyball.errors import SettingsError

_SEQUENCE = 0x30
_VERSION = 0xA0
_UTC_TIME = 0x17
_END = "-----END CERTIFICATE-----"


def valid_until(path: Path) -> datetime:
    """Return when the first certificate of a PEM file ends. Raises SettingsError if there is none."""
    try:
        first, found, _ = path.read_text().partition(_END)
        return _end_of(ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN") :] + found))
    except (OSError, ValueError, IndexError) as error:
        raise SettingsError("--tls-cert", f"{path} holds no certificate that can be read: {error}") from error


def _end_of(der: bytes) -> datetime:
    certificate = _content(der, 0, _SEQUENCE)
    signed = _content(certificate, 0, _SEQUENCE)
    place = 0
    if signed[0] == _VERSION:
        place = _after(signed, place)
    # Serial number, algorithm, issuer.
    for _ in range(3):
        place = _after(signed, place)
    validity = _content(signed, place, _SEQUENCE)
    place = _after(validity, 0)
    text = _content(validity, place, validity[place]).decode("ascii")
    form = "%y%m%d%H%M%SZ" if validity[place] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC)


def _bounds(der: bytes, place: int) -> tuple[int, int]:
    """Return where the content of the value at a place begins and ends."""
    length = der[place + 1]
    begin = place + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[begin : begin + count])
        begin += count
    if begin + length > len(der):
        raise ValueError("it is cut off")
    return begin, begin + length


def _content(der: bytes, place: int, tag: int) -> bytes:
    if der[place] != tag:
        raise ValueError("it has another form than X.509 says")
    begin, end = _bounds(der, place)
    return der[begin:end]


def _after(der: bytes, place: int) -> int:
    return _bounds(der, place)[1]
