"""Decodes SASL responses that carry a password."""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball.broker.wire.amqp import AmqpError, read_table, write_longstr


@dataclass(slots=True, frozen=True)
class Credentials:
    name: str
    password: bytes = field(repr=False)


def read_response(mechanism: str, response: bytes) -> Credentials | None:
    """Return user name and password; None for a malformed response."""
    return _read_plain(response) if mechanism == "PLAIN" else _read_amqplain(response)


def _read_plain(response: bytes) -> Credentials | None:
    parts = response.split(b"\0")
    # Acting on behalf of another user (the first part) is not supported.
    if len(parts) != 3 or parts[0]:
        return None
    try:
        return Credentials(parts[1].decode(), parts[2])
    except UnicodeDecodeError:
        return None


def _read_amqplain(response: bytes) -> Credentials | None:
    """Decode a field table without its length."""
    table = write_longstr(response)
    try:
        fields, _ = read_table(table, 0, len(table))
    except AmqpError:
        return None
    name, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str | bytes):
        return None
    return Credentials(name, password.encode() if isinstance(password, str) else password)
