"""Puts into remote queues: in order per queue, over the link to its owner, one frame per node.

A put that cannot be sent at once waits here until its queue has an owner, its link has room, or earlier puts were
confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from flyball.broker.core.broker import Broker
from flyball.broker.core.directory import Directory, RemoteQueue
from flyball.broker.core.intake import Intake
from flyball.broker.core.peering import PutDone
from flyball.broker.core.pending import PendingMark
from flyball.broker.peering.lines import Lines, Waiting
from flyball.broker.peering.link.outgoing import Link
from flyball.broker.peering.link.peers import Peers
from flyball.broker.wire.link import Content, PutOutcome
from flyball.errors import FlyballError
from flyball.model import Queue

# Size of a link's unconfirmed puts above which further puts to its node wait, and so do their publishers.
CONGESTED_BYTES = 8 * 1024 * 1024

# Retry interval for a node that owns a queue and does not serve it yet.
UNAWARE_S = 0.1

# Precedence of the outcomes of the parts of a put: the highest one counts.
_BADNESS: Mapping[int, int] = {
    PutOutcome.NOT_FOUND: 0,
    PutOutcome.STORED: 1,
    PutOutcome.FULL: 2,
    PutOutcome.UNKNOWN: 3,
}


class _Put:
    """A message for queues of one other node, until it is stored or times out.

    A queue that is listed several times gets that number of copies. If a member of a clustered queue was deleted, the
    message goes to another member.
    """

    __slots__ = (
        "_content",
        "_done",
        "_is_part",
        "_link",
        "_missing",
        "_puts",
        "_queues",
        "_token",
        "deadline_s",
        "number",
    )

    def __init__(
        self,
        puts: RemotePuts,
        queues: list[Queue],
        content: Content,
        done: PutDone,
        token: int,
        deadline_s: float,
        number: int,
        missing: list[int] | None,
        *,
        is_part: bool = False,
    ) -> None:
        """The ids of deleted queues are added to `missing`, if given."""
        self._puts = puts
        self._queues = queues
        self._content = content
        self._done = done
        self._token = token
        self._link: Link | None = None
        self.deadline_s = deadline_s
        self._missing = missing
        # Whether it is one of several parts of a put, each of them with the whole message.
        self._is_part = is_part
        # Its sequence number.
        self.number = number

    def send(self) -> None:
        """Send the message to the current owner of the queue, or wait until the queue has one."""
        puts = self._puts
        queue_id = self._queues[0].id
        remote = puts.directory.get(queue_id)
        link = self._link = None if remote is None else puts.peers.link(remote.owner)
        if link is not None and self._is_part and _is_crowded(link):
            puts.park_for_room(queue_id, self, link.node_id)
        elif link is not None and puts.set_out(self._queues, link):
            try:
                link.put([queue.id for queue in self._queues], self._content, self._answered, 0)
            except Exception:
                # It was not sent: later puts must not wait for its response.
                puts.arrive(self._queues)
                raise
        elif self._has_several_queues:
            # Their owner is dead, or no longer serves all of them: each may now have a different owner, or none.
            self._send_apart()
        elif remote is not None:
            puts.park(queue_id, self, remote.owner)
        elif puts.broker.engine.has_queue(queue_id):
            puts.put_here([queue_id] * len(self._queues), self._content, self._done, self._token)
        else:
            self._send_to_another()

    @property
    def _has_several_queues(self) -> bool:
        queues = self._queues
        return len(queues) > 1 and any(queue.id != queues[0].id for queue in queues)

    def _send_apart(self) -> None:
        """Send the message to each queue separately.

        Each frame has the whole message: parts for which a link has no room wait until other puts are confirmed.
        """
        by_id: dict[int, list[Queue]] = {}
        for queue in self._queues:
            by_id.setdefault(queue.id, []).append(queue)
        joined = _Joined(len(by_id), self._done, self._token)
        for queues in by_id.values():
            part = _Put(
                self._puts,
                queues,
                self._content,
                joined.one,
                0,
                self.deadline_s,
                self.number,
                self._missing,
                is_part=True,
            )
            part.send()

    def _send_to_another(self) -> None:
        """Send the message of a deleted queue to another member, if the queue was a member of a clustered queue."""
        other = self._puts.other_member(self._queues[0])
        if other is None:
            if self._missing is not None:
                self._missing.append(self._queues[0].id)
            self.end(PutOutcome.NOT_FOUND)
        elif asyncio.get_running_loop().time() >= self.deadline_s:
            self.end(PutOutcome.UNKNOWN)
        else:
            self._queues = [other] * len(self._queues)
            self.send()

    def _answered(self, _: int, outcome: int) -> None:
        puts, queues = self._puts, self._queues
        puts.arrive(queues)
        self._take(outcome)
        if puts.has_parked:
            puts.let_follow(queues)

    def _take(self, outcome: int) -> None:
        if outcome not in (PutOutcome.MOVED, PutOutcome.NOT_FOUND):
            self._done(self._token, outcome)
        elif self._has_several_queues:
            self._send_apart()
        elif asyncio.get_running_loop().time() >= self.deadline_s:
            self.end(PutOutcome.UNKNOWN)
        elif outcome == PutOutcome.NOT_FOUND and self._puts.other_member(self._queues[0]) is not None:
            self._puts.look()
            self._send_to_another()
        else:
            self._try_again()

    def _try_again(self) -> None:
        queue_id = self._queues[0].id
        remote = self._puts.directory.get(queue_id)
        assert self._link is not None
        if remote is not None and remote.owner == self._link.node_id and self._link.is_ready:
            # The owner has reported that it does not serve the queue: either a change is about to arrive here, or the
            # owner has yet to apply one.
            self._puts.park(queue_id, self, remote.owner)
            self._puts.look()
            self._puts.try_again_later(queue_id)
        else:
            self.send()

    def end(self, outcome: PutOutcome) -> None:
        self._done(self._token, outcome)


class _Joined:
    """Joins the parts of a put into queues on several nodes; the worst outcome counts.

    NOT_FOUND ranks below STORED, since a deleted local queue is not an error either. It is the outcome only if all
    queues were deleted.
    """

    __slots__ = ("_done", "_left", "_token", "_worst")

    def __init__(self, left: int, done: PutDone, token: int) -> None:
        self._left = left
        self._done = done
        self._token = token
        self._worst = int(PutOutcome.NOT_FOUND)

    def one(self, _: int, outcome: int) -> None:
        if _BADNESS[outcome] > _BADNESS[self._worst]:
            self._worst = outcome
        self._left -= 1
        if self._left == 0:
            self._done(self._token, self._worst)


class RemotePuts:
    """All puts of this node into remote queues."""

    def __init__(
        self, broker: Broker, directory: Directory, peers: Peers, look: Callable[[], None], *, wait_s: float
    ) -> None:
        """`look` applies changes of other nodes. `wait_s` is the timeout of puts to unreachable queues."""
        self.broker = broker
        self.directory = directory
        self.peers = peers
        self.look = look
        self.wait_s = wait_s
        self._intake = Intake(broker)
        self._last_put = 0
        self._parked: dict[int, deque[_Put]] = {}
        # By queue with parked puts, its node; and the number of such queues by node.
        self._parked_at: dict[int, int] = {}
        self._parked_counts: Counter[int] = Counter()
        # By node, queues whose parked puts wait until the node's link has room, in order; never holds an empty dict.
        self._crowded: dict[int, dict[int, None]] = {}
        # By queue, the link of its unconfirmed puts and their number.
        self._ways: dict[int, tuple[Link, int]] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}
        # Actions that wait for congested nodes.
        self._lines = Lines(self._is_congested_at, broker.faults)
        self._sweep: asyncio.TimerHandle | None = None

    def placed(self, queue_id: int) -> None:
        """Send the parked puts of a queue whose owner has, or may have, changed."""
        parked = self._unpark(queue_id)
        if parked is not None:
            # Sorted: puts that were sent and returned are older than those never sent.
            for put in sorted(parked, key=_number_of):
                self.broker.faults.guard("put to another node", put.send)
            self._lines.go_on()

    def node_changed(self, node_id: int) -> None:
        """Send the parked puts for a node that was lost or is reachable again."""
        for queue_id in list(self._parked):
            remote = self.directory.get(queue_id)
            if remote is None or remote.owner == node_id:
                self.placed(queue_id)

    def put(
        self,
        remotes: Sequence[RemoteQueue],
        content: Content,
        done: PutDone,
        token: int,
        owner: object = None,
        missing: list[int] | None = None,
    ) -> None:
        """Put a message into remote queues, in one frame per node, even if a queue is listed several times.

        `done` is called once, possibly before this returns. As with local queues, a deleted queue among several is
        not an error; its id is added to `missing`. While a node of these queues is congested, the message waits for
        earlier ones to its nodes. A waiting put is charged to the `owner`, not to a link; when the owner is closed,
        `forget` must be called.
        """
        queues = _owners(remotes)
        nodes = self._lines.nodes_of(queues)
        if self._lines.must_wait(nodes):
            act = partial(self._put, remotes, content, done, token, missing)
            self._lines.join(Waiting(nodes, act, queues, owner, partial(done, token, PutOutcome.UNKNOWN)))
        else:
            self._put(remotes, content, done, token, missing)

    def forget(self, owner: object) -> None:
        """Drop the waiting puts of a closed owner. Those that were sent are not affected."""
        if self._lines.forget(owner):
            # In a later turn of the event loop: the actions that continue may belong to the same owner.
            asyncio.get_running_loop().call_soon(self._lines.go_on)

    def _put(
        self,
        remotes: Sequence[RemoteQueue],
        content: Content,
        done: PutDone,
        token: int,
        missing: list[int] | None,
    ) -> None:
        deadline_s = asyncio.get_running_loop().time() + self.wait_s
        self._last_put += 1
        if len(remotes) == 1:
            _Put(self, [remotes[0].queue], content, done, token, deadline_s, self._last_put, missing).send()
            return
        by_owner: dict[int, list[Queue]] = {}
        for remote in remotes:
            by_owner.setdefault(remote.owner, []).append(remote.queue)
        joined = _Joined(len(by_owner), done, token)
        for queues in by_owner.values():
            _Put(self, queues, content, joined.one, 0, deadline_s, self._last_put, missing).send()

    def other_member(self, gone: Queue) -> Queue | None:
        """Return another member of a deleted queue's clustered queue, preferably a local one; None without one."""
        if not gone.member:
            return None
        own = self.broker.engine.find_queue(gone.name, gone.vhost)
        members = [] if own is None else [own.queue]
        members += [remote.queue for remote in self.directory.members(gone.vhost, gone.name)]
        return next((queue for queue in members if queue.member and queue.id != gone.id), None)

    def put_here(self, queue_ids: Sequence[int], content: Content, done: PutDone, token: int) -> None:
        """Put a message into queues that have moved to this node meanwhile."""
        first_id = self.broker.engine.next_message_id
        outcome = self._intake.put_content([self.broker.engine.queue(queue_id) for queue_id in queue_ids], content)
        if outcome is None:

            def stored(error: FlyballError | None) -> None:
                done(token, PutOutcome.STORED if error is None else PutOutcome.UNKNOWN)

            self.broker.journal.mark(PendingMark(stored, (), first_id, self.broker.engine.next_message_id))
        else:
            done(token, outcome)

    def set_out(self, queues: Sequence[Queue], link: Link) -> bool:
        """Record that a put is sent over a link. Return False if it must wait, to keep the order.

        It must wait while earlier puts of a queue are parked, or were sent over another link: those may be returned
        if the queue has moved, and must be sent first.
        """
        ways, parked = self._ways, self._parked
        for queue in queues:
            way = ways.get(queue.id)
            if queue.id in parked or (way is not None and way[0] is not link):
                return False
        for queue in queues:
            way = ways.get(queue.id)
            ways[queue.id] = (link, 1 if way is None else way[1] + 1)
        return True

    def arrive(self, queues: Sequence[Queue]) -> None:
        """Record that a sent put was answered."""
        for queue in queues:
            link, count = self._ways.pop(queue.id)
            if count > 1:
                self._ways[queue.id] = (link, count - 1)

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def let_follow(self, queues: Sequence[Queue]) -> None:
        """Send puts that waited for puts on another link, unless they wait for something else."""
        for queue in queues:
            if queue.id in self._parked and queue.id not in self._ways and queue.id not in self._retries:
                self.placed(queue.id)

    def park(self, queue_id: int, put: _Put, node_id: int) -> None:
        """Park a put until its queue, whose last known owner is the node, has a reachable owner."""
        parked = self._parked.get(queue_id)
        if parked is None:
            self._parked[queue_id] = parked = deque()
            self._parked_at[queue_id] = node_id
            self._parked_counts[node_id] += 1
        parked.append(put)
        self._sweep_later()

    def park_for_room(self, queue_id: int, put: _Put, node_id: int) -> None:
        """Park a put until the link to the node, the owner of its queue, has room."""
        self.park(queue_id, put, node_id)
        self._crowded.setdefault(self._parked_at[queue_id], {})[queue_id] = None

    def _unpark(self, queue_id: int) -> deque[_Put] | None:
        """Remove and return the parked puts of a queue."""
        parked = self._parked.pop(queue_id, None)
        if parked is None:
            return None
        node_id = self._parked_at.pop(queue_id)
        self._parked_counts[node_id] -= 1
        if not self._parked_counts[node_id]:
            del self._parked_counts[node_id]
        crowded = self._crowded.get(node_id)
        if crowded is not None:
            crowded.pop(queue_id, None)
            if not crowded:
                del self._crowded[node_id]
        return parked

    def use_room(self) -> None:
        """Send puts that waited for room, and resume publishers, after confirms."""
        for node_id in list(self._crowded):
            while (queues := self._crowded.get(node_id)) and not self._is_crowded_at(node_id):
                self.placed(next(iter(queues)))
        self._lines.go_on()

    def try_again_later(self, queue_id: int) -> None:
        """Schedule a retry of a queue's parked puts, independent of changes."""
        if queue_id not in self._retries:
            loop = asyncio.get_running_loop()
            self._retries[queue_id] = loop.call_later(UNAWARE_S, self._try_again, queue_id)

    def _try_again(self, queue_id: int) -> None:
        del self._retries[queue_id]
        self.placed(queue_id)

    def _sweep_later(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self.wait_s / 4, self._give_up_the_oldest)

    def _give_up_the_oldest(self) -> None:
        self._sweep = None
        now_s = asyncio.get_running_loop().time()
        for queue_id, parked in list(self._parked.items()):
            while parked and parked[0].deadline_s <= now_s:
                self.broker.faults.guard("put to another node", parked.popleft().end, PutOutcome.UNKNOWN)
            if not parked and self._parked.get(queue_id) is parked:
                self._unpark(queue_id)
        if self._parked:
            self._sweep_later()
        self._lines.go_on()

    @property
    def is_congested(self) -> bool:
        """Whether publishers to any node must wait, because too many puts are unconfirmed or parked."""
        return bool(self._parked) or any(_is_crowded(link) for link in self.peers.links)

    def must_wait(self, remotes: Sequence[RemoteQueue]) -> bool:
        """Whether a put to these queues would wait: one of their nodes is congested, or has waiting puts."""
        return self._lines.must_wait(self._lines.nodes_of(_owners(remotes)))

    def when_clear(self, remotes: Sequence[RemoteQueue], go_on: Callable[[], None]) -> None:
        """Call back once the nodes of these queues are not congested, after all actions already waiting for them."""
        self._lines.join(Waiting(self._lines.nodes_of(_owners(remotes)), go_on))

    def _is_congested_at(self, node_id: int) -> bool:
        return node_id in self._parked_counts or self._is_crowded_at(node_id)

    def _is_crowded_at(self, node_id: int) -> bool:
        link = self.peers.known_link(node_id)
        return link is not None and _is_crowded(link)


def _owners(remotes: Sequence[RemoteQueue]) -> dict[int, int]:
    """Return the owners of queues by queue id."""
    return {remote.queue.id: remote.owner for remote in remotes}


def _is_crowded(link: Link) -> bool:
    return link.unanswered_bytes > CONGESTED_BYTES


def _number_of(put: _Put) -> int:
    return put.number
