"""Address of a node with credentials: an AMQP URL, or host and port."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from flyball.client.errors import InvalidValue
from flyball.client.http import DEFAULT_PORT as HTTP_PORT
from flyball.client.http import Place
from flyball.model import DEFAULT_VHOST

PORT, TLS_PORT = 5672, 5671

_HOST_PORT = re.compile(r"(?:\[([^\[\]\s]+)\]|([^\[\]:/\s]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node, with a user and a vhost."""

    host: str
    port: int
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = DEFAULT_VHOST
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        user: str | None = None,
        password: str | None = None,
        vhost: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Parse `amqp://user:password@host:port/vhost`, `amqps://...` or `host:port`; arguments override the URL.

        Raises InvalidValue, without the text, as it may contain a password.
        """
        wanted = "use host:port, [ipv6]:port or amqp://user:password@host:port/vhost"
        found = _HOST_PORT.fullmatch(text)
        if found is not None:
            host, port, path, name, secret = found[1] or found[2], int(found[3]), "", None, None
            is_tls = tls is not None
        else:
            try:
                parts = urlsplit(text)
                is_tls = parts.scheme == "amqps"
                port = parts.port or (TLS_PORT if is_tls else PORT)
            except ValueError:
                raise InvalidValue(f"invalid port in the address: {wanted}") from None
            if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
                raise InvalidValue(f"invalid address: {wanted}")
            host, path, name, secret = parts.hostname, parts.path, parts.username, parts.password
        if not 0 < port < 65536:
            raise InvalidValue(f"invalid port in the address: {wanted}")
        return cls(
            host,
            port,
            user if user is not None else unquote(name or "guest"),
            password if password is not None else unquote(secret or "guest"),
            vhost if vhost is not None else unquote(path[1:]) or DEFAULT_VHOST,
            (tls or ssl.create_default_context()) if is_tls else None,
        )

    def at(self, text: str) -> NodeAddress:
        """Return the address of another node at host:port, with the same credentials."""
        other = NodeAddress.parse(text)
        return NodeAddress(other.host, other.port, self.user, self.password, self.vhost, self.tls)

    def http_place(self, port: int | None) -> Place:
        """Return the address of the same node's HTTP API."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return Place(f"http://{user}@{host}:{port or HTTP_PORT}")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
