"""Recognises clients with another protocol than that of the port, by their first bytes."""

from __future__ import annotations

# Number of bytes that are sufficient.
OPENING_BYTES = 8

# The first bytes of HTTP requests. A web page can make a browser send any body to any port of the user's machine; it
# must not be executed as requests.
HTTP_OPENINGS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")

# Errors of a TLS handshake with a peer that does not speak TLS.
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL")


def spoken(opening: bytes) -> str | None:
    """Return the protocol of these first bytes, or None if it is unknown."""
    if opening.startswith(HTTP_OPENINGS):
        return "HTTP"
    # A record with a ClientHello of any version; bytes 3 and 4 are its length.
    if opening[:2] == b"\x16\x03" and opening[2:3] <= b"\x04" and opening[5:6] == b"\x01":
        return "TLS"
    if opening.startswith(b"AMQP"):
        return "AMQP 1.0" if opening[4:8] in (b"\x00\x01\x00\x00", b"\x03\x01\x00\x00") else "AMQP"
    return None


def plain_text(reason: str) -> bytes:
    """Return the response to an HTTP request on a port that does not serve HTTP."""
    body = f"{reason}\n".encode()
    head = (
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
