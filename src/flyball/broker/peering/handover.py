"""Hand-over of transient messages from a member of a clustered queue to a member on another node, in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from flyball.broker.core.directory import RemoteQueue
from flyball.broker.peering.link.peers import Peers
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import PutOutcome
from flyball.errors import FlyballError, PeerLost
from flyball.faults import Faults
from flyball.model import Message


class _Batch:
    __slots__ = ("done", "messages", "number", "queue_id")

    def __init__(self, number: int, queue_id: int, messages: Sequence[Message], done: Callable[[bool], None]) -> None:
        self.number = number
        self.queue_id = queue_id
        self.messages = messages
        self.done = done


class Handover:
    """The batches in transit, sent to each node one after the other, and again if the link was lost."""

    def __init__(self, peers: Peers, faults: Faults) -> None:
        self._peers = peers
        self._faults = faults
        self._batches: dict[int, deque[_Batch]] = {}
        self._last_number = 0

    def hand(self, remote: RemoteQueue, messages: Sequence[Message], done: Callable[[bool], None]) -> None:
        """Hand unacked transient messages over to a member on another node.

        `done` is called with whether the other node accepted them; otherwise the caller keeps them. While both nodes
        run, link failures neither lose nor duplicate messages. The messages should be smaller than a megabyte.
        """
        self._last_number += 1
        batches = self._batches.setdefault(remote.owner, deque())
        batches.append(_Batch(self._last_number, remote.queue.id, messages, done))
        if len(batches) == 1:
            self._send(remote.owner)

    def node_changed(self, node_id: int) -> None:
        """Return the unconfirmed batches of a node that was lost to their callers."""
        if not self._peers.can_reach(node_id):
            for batch in self._batches.pop(node_id, deque()):
                self._faults.guard("messages handed to another node", batch.done, False)

    def _send(self, node_id: int) -> None:
        batches = self._batches.get(node_id)
        if not batches:
            self._batches.pop(node_id, None)
            return
        batch = batches[0]
        link = self._peers.link(node_id)
        if link is None:
            self.node_changed(node_id)
            return

        def answered(frame: wire.Frame | None, error: FlyballError | None) -> None:
            if self._batches.get(node_id) is not batches or not batches or batches[0] is not batch:
                return
            # If the link was lost the outcome is unknown: send the batch again; the node recognises its number. If
            # the node failed before it accepted the batch, a retry would only fail again.
            if not isinstance(error, PeerLost):
                batches.popleft()
                batch.done(isinstance(frame, wire.Handed) and frame.outcome == PutOutcome.STORED)
            self._send(node_id)

        link.ask(lambda number: wire.encode_hand(number, batch.number, batch.queue_id, batch.messages), answered)
