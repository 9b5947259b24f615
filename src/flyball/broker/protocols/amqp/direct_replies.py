"""Direct replies: a consumer of `amq.rabbitmq.reply-to` gets a name that nobody can guess, and no queue."""

from __future__ import annotations

import base64
import secrets
from typing import Protocol

from flyball.broker.core.queues import Queues
from flyball.broker.wire.link import Content

# Stands for the channel itself where a client asks for direct replies; the names that it gets begin so.
REPLY_TO = "amq.rabbitmq.reply-to"


class ReplyReceiver(Protocol):
    """A channel that waits for direct replies."""

    def receive_reply(self, origin: bytes, properties: bytes, body: bytes) -> None:
        """Send the peer a reply."""


class DirectReplies:
    """Who waits for direct replies on this node; other nodes are asked for the others."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._receivers: dict[str, ReplyReceiver] = {}

    def begin(self, receiver: ReplyReceiver) -> str:
        """Return a name for direct replies to the channel, which nobody can guess."""
        token = base64.urlsafe_b64encode(secrets.token_bytes(24)).decode().rstrip("=")
        name = f"{REPLY_TO}.{self._queues.peering.node_id}.{token}"
        self._receivers[name] = receiver
        return name

    def end(self, name: str) -> None:
        self._receivers.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether a channel waits for replies of that name, as far as this node knows."""
        return name in self._receivers or self._node_of(name) is not None

    def _node_of(self, name: str) -> int | None:
        """Return the other node whose channel waits for direct replies of that name."""
        node_id = name.removeprefix(REPLY_TO + ".").partition(".")[0]
        return int(node_id) if node_id.isdecimal() and self._queues.peering.can_reach(int(node_id)) else None

    def send(self, name: str, origin: bytes, properties: bytes, body: bytes) -> None:
        """Hand a direct reply to the channel that waits for it, if it still does."""
        receiver = self._receivers.get(name)
        if receiver is not None:
            receiver.receive_reply(origin, properties, body)
            return
        node_id = self._node_of(name)
        if node_id is not None:
            self._queues.peering.reply(node_id, name, Content(body, properties, origin))
