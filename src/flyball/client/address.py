"""Where a node is, and who we are there: as an AMQP URL or as host and port."""

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
    """One node, as one user in one virtual host."""

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
        """Read `amqp://user:password@host:port/vhost`, `amqps://...` or `host:port`; the arguments go before.

        Raises InvalidValue, which leaves the text out: it may hold a password.
        """
        wanted = "an address is host:port, [ipv6]:port or amqp://user:password@host:port/vhost"
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
                raise InvalidValue(f"{wanted}; this one has no valid port") from None
            if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
                raise InvalidValue(wanted)
            host, path, name, secret = parts.hostname, parts.path, parts.username, parts.password
        if not 0 < port < 65536:
            raise InvalidValue(f"{wanted}; this one has no valid port")
        return cls(
            host,
            port,
            user if user is not None else unquote(name or "guest"),
            password if password is not None else unquote(secret or "guest"),
            vhost if vhost is not None else unquote(path[1:]) or DEFAULT_VHOST,
            (tls or ssl.create_default_context()) if is_tls else None,
        )

    def at(self, text: str) -> NodeAddress:
        """Return the same user's way to another node, at host:port."""
        other = NodeAddress.parse(text)
        return NodeAddress(other.host, other.port, self.user, self.password, self.vhost, self.tls)

    def http_place(self, port: int | None) -> Place:
        """Return where the HTTP API of the same node is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return Place(f"http://{user}@{host}:{port or HTTP_PORT}")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
