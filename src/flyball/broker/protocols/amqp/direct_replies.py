"""Direct replies: a consumer of `amq.rabbitmq.reply-to` has an unguessable reply name instead of a queue."""

from __future__ import annotations

import base64
import secrets
from typing import Protocol

from flyball.broker.core.queues import Queues
from flyball.broker.wire.link import Content

# The pseudo-queue for direct replies; reply names start with it.
REPLY_TO = "amq.rabbitmq.reply-to"


class ReplyReceiver(Protocol):
    """A channel that receives direct replies."""

    def receive_reply(self, origin: bytes, properties: bytes, body: bytes) -> None:
        """Send a reply to the peer."""


class DirectReplies:
    """The reply receivers of this node; replies to other receivers are sent to their nodes."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._receivers: dict[str, ReplyReceiver] = {}

    def begin(self, receiver: ReplyReceiver) -> str:
        """Return an unguessable reply name for the channel."""
        token = base64.urlsafe_b64encode(secrets.token_bytes(24)).decode().rstrip("=")
        name = f"{REPLY_TO}.{self._queues.peering.node_id}.{token}"
        self._receivers[name] = receiver
        return name

    def end(self, name: str) -> None:
        self._receivers.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether a channel of this node has the reply name, or a channel of a reachable node may have it."""
        return name in self._receivers or self._node_of(name) is not None

    def _node_of(self, name: str) -> int | None:
        """Return the id of the reachable remote node in a reply name."""
        node_id = name.removeprefix(REPLY_TO + ".").partition(".")[0]
        return int(node_id) if node_id.isdecimal() and self._queues.peering.can_reach(int(node_id)) else None

    def send(self, name: str, origin: bytes, properties: bytes, body: bytes) -> None:
        """Send a direct reply to its receiver, if it still exists."""
        receiver = self._receivers.get(name)
        if receiver is not None:
            receiver.receive_reply(origin, properties, body)
            return
        node_id = self._node_of(name)
        if node_id is not None:
            self._queues.peering.reply(node_id, name, Content(body, properties, origin))
