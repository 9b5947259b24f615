"""The object that a model describes: the domain, a node, a queue, an application or a control loop. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import quote, unquote

from flyball.errors import InvalidArgument
from flyball.model import DEFAULT_VHOST

MAX_SCOPE_LENGTH = 600
_UNUSABLE = f"invalid scope: use at most {MAX_SCOPE_LENGTH} printable characters, the vhost percent-encoded"


class ScopeKind(enum.StrEnum):
    """The kind of object that a model describes."""

    DOMAIN = "domain"
    NODE = "node"
    QUEUE = "queue"
    APPLICATION = "application"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Scope:
    """The object that a model describes; `vhost` belongs to queues only."""

    kind: ScopeKind
    name: str = ""
    vhost: str = ""

    @classmethod
    def queue(cls, vhost: str, name: str) -> Scope:
        return cls(ScopeKind.QUEUE, name, vhost)

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read `domain`, `node:NAME`, `queue:NAME`, `queue:VHOST/NAME`, `application:NAME` or `loop:NAME`.

        The vhost is percent-encoded, as in paths of the HTTP API. Raises InvalidArgument.
        """
        if text == ScopeKind.DOMAIN:
            return DOMAIN
        word, colon, name = text.partition(":")
        if not colon or not name or word == ScopeKind.DOMAIN or word not in list(ScopeKind):
            raise InvalidArgument(
                f"invalid scope {text[:100]!r}: use domain, node:NAME, queue:VHOST/NAME, application:NAME or"
                " loop:NAME"
            )
        if not text.isprintable():
            raise InvalidArgument(_UNUSABLE)
        if word != ScopeKind.QUEUE:
            found = cls(ScopeKind(word), name)
        else:
            vhost, slash, queue_name = name.partition("/")
            if slash and not (vhost and queue_name):
                raise InvalidArgument(f"invalid scope {text[:100]!r}: use queue:VHOST/NAME; the vhost / is %2F")
            found = cls.queue(unquote(vhost), queue_name) if slash else cls.queue(DEFAULT_VHOST, name)
        # As it is written, which is how it is kept and read again: an encoded vhost is longer than its name.
        if len(str(found)) > MAX_SCOPE_LENGTH:
            raise InvalidArgument(_UNUSABLE)
        return found

    def __str__(self) -> str:
        if self.kind is ScopeKind.DOMAIN:
            return str(self.kind)
        if self.kind is ScopeKind.QUEUE:
            return f"{self.kind}:{quote(self.vhost, safe='')}/{self.name}"
        return f"{self.kind}:{self.name}"


DOMAIN = Scope(ScopeKind.DOMAIN)
