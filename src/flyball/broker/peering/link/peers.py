"""The other nodes of the domain as this one reaches them: one link to each, opened when it is needed.

What goes over a link, beside requests, is the business of `remote`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from flyball.backoff import Backoff, Retries
from flyball.broker.core import peering
from flyball.broker.core.pending import outcome
from flyball.broker.peering.link.contents import message_of
from flyball.broker.peering.link.failures import raised_elsewhere
from flyball.broker.store.registry import NodeRecord, NodeState
from flyball.broker.transport.connection import Connection, Hub
from flyball.broker.wire import link as wire
from flyball.errors import ClusterError, PeerLost, ProtocolError
from flyball.model import Message
from flyball.trace import schema

if TYPE_CHECKING:
    from flyball.broker.peering.link.session import LinkSession

log = logging.getLogger("flyball.server")

# Between two attempts to reach a node.
RECONNECTS = Backoff(first_s=0.05, max_s=2.0, jitter_ratio=0.0)

# Only a link that has lived this long is opened again without a delay. One that breaks whenever it is used would
# otherwise be opened again and again, as fast as the nodes can.
STEADY_S = RECONNECTS.max_s

FLUSH_LIMIT_S = 15.0
"""A node that has not written down by then what it was sent is not waited for."""

HANDSHAKE_S = 5.0
"""A node that has not proved who it is by then is given up, for now."""

FRAME_ROOM_BYTES = 1024 * 1024
"""What a frame may hold beside the largest message."""

Connect = Callable[[str, Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Opens a connection to an address, host:port, for the protocol that the factory makes. Raises OSError."""

Command = Callable[..., Awaitable[Any]]

Answer = Callable[[wire.Frame | None], None]
"""Called with the answer; with None if the link is lost before it comes."""


def connecting(tls: ssl.SSLContext | None = None) -> Connect:
    """Return what connects over TCP, with TLS if there is a context for it."""

    async def connect(address: str, factory: Callable[[], asyncio.Protocol]) -> object:
        host, _, port = address.rpartition(":")
        return await asyncio.get_running_loop().create_connection(
            factory,
            host.strip("[]"),
            int(port),
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
        )

    return connect


class LinkConsumer(Protocol):
    """One who is sent messages over a link."""

    def delivered(self, frame: wire.Deliver) -> None: ...

    def cancelled(self, ending: wire.Ending) -> None:
        """It gets nothing more."""
        ...

    def lost(self) -> None:
        """The link is gone, and what was not settled with it."""
        ...


class Settled(peering.Settled):
    """Which way acknowledgements went, for a transaction that is to be answered when they are durable."""

    def __init__(self) -> None:
        self.links: dict[Link, int] = {}
        """With how many acknowledgements each had brought in vain before."""
        self.is_in_vain = False
        """Whether some reached nobody: the message had been lost to this node before."""

    async def flush(self) -> None:
        for link, in_vain in self.links.items():
            await link.ask_to_flush(in_vain)
        if self.is_in_vain:
            raise ClusterError("another node was lost before the commit: what it had sent comes again")


class Link(Connection):
    """The way to one other node, from the first attempt to reach it until it is lost.

    What is sent before the node has proved who it is waits. Frames keep their order.
    """

    PROTOCOL = schema.Protocol.LINK
    IS_OUTGOING = True
    HEEDS_CONGESTION = False

    def __init__(self, hub: Hub, peers: Peers, node_id: int) -> None:
        super().__init__(hub)
        self._peers = peers
        self.node_id = node_id
        self.is_ready = False
        """Whether the node has proved who it is; from then on nobody knows what has reached it when it is lost."""
        self.is_lost = False
        self.ready_at_s = 0.0
        """When that was proved, by the clock of the loop."""
        self.consumers: dict[int, LinkConsumer] = {}
        self.unanswered_bytes = 0
        """What the puts hold that were not answered yet."""
        self._decoder = wire.LinkDecoder()
        self._hello = wire.Hello(wire.VERSION, peers.node_id, peers.epoch, secrets.token_bytes(wire.NONCE_BYTES))
        self._theirs: wire.Hello | None = None
        self._answers: dict[int, Answer] = {}
        self._puts: dict[int, tuple[Callable[[int, int], None], int, int]] = {}
        self._last_number = 0
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._in_vain = 0
        """How often the node has said that an acknowledgement came too late: the queue had moved."""
        self._settling: list[int] = []
        self._settling_for = (0, 0)
        self._timer: asyncio.TimerHandle | None = None

    # For those who use it

    def ask(self, encode: Callable[[int], bytes], answer: Answer) -> int:
        """Send a frame that is to be answered, encoded with its number; return that number."""
        number = self._last_number = self._last_number + 1
        # First, as it may fail: nothing must wait then for an answer that cannot come.
        data = encode(number)
        self._answers[number] = answer
        self.send(data)
        return number

    def forget(self, number: int) -> None:
        """The answer is not wanted any more."""
        self._answers.pop(number, None)

    def put(self, queue_ids: list[int], content: wire.Content, done: Callable[[int, int], None], token: int) -> None:
        """Put a message into queues of the node; `done` is called with the token and the outcome, once."""
        number = self._last_number = self._last_number + 1
        size_bytes = content.size_bytes
        data = wire.encode_put(number, queue_ids, content)
        self._puts[number] = (done, token, size_bytes)
        self.unanswered_bytes += size_bytes
        self.send(data)

    def settle(self, consumer: int, settlement: int, message_id: int) -> None:
        """End a lease. Those of one kind that follow each other go together."""
        if self.is_lost:
            self.settled_in_vain()
            return
        self._peers.settled.links.setdefault(self, self._in_vain)
        if self._settling_for != (consumer, settlement):
            self._send_settles()
            self._settling_for = (consumer, settlement)
        if not self._settling and not self._out and self._transport is not None:
            self.hub.mark_dirty(self)
        self._settling.append(message_id)

    def settled_in_vain(self) -> None:
        """Something was settled that is not this node's any more: it will be delivered again."""
        self._peers.settled.is_in_vain = True

    async def ask_to_flush(self, in_vain: int) -> None:
        """Return when everything that was sent this way is durable there. Raises PeerLost, and what the node met.

        Raises ClusterError if more acknowledgements than `in_vain` did not find their messages there any more.
        """
        await self._peers.request_over(self, "flush", {}, FLUSH_LIMIT_S)
        if self._in_vain > in_vain:
            raise ClusterError(f"node {self.node_id} does not serve the queue any more: what it had sent comes again")

    def send(self, data: bytes) -> None:
        if self._settling:
            self._send_settles()
        self._send(data)

    def _send(self, data: bytes) -> None:
        if self.is_ready:
            super().send(data)
        elif not self.is_lost:
            self._early.append(data)
            self._early_bytes += len(data)

    def _send_settles(self) -> None:
        settling, self._settling = self._settling, []
        if settling:
            consumer, settlement = self._settling_for
            self._send(wire.encode_settle(consumer, settlement, settling))

    def flush(self) -> None:
        self._send_settles()
        super().flush()

    # Life

    @property
    def is_busy(self) -> bool:
        return False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.is_lost:
            transport.close()
        elif self in self.hub.connections:
            self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.give_up, "does not prove who it is")
            super().send(wire.encode_hello(self._hello))

    def ended(self) -> None:
        self.give_up("has closed the link")

    def give_up(self, problem: str) -> None:
        """The node cannot be reached this way any more: tell everybody who waits for something from it."""
        if self.is_lost:
            return
        self.is_lost = True
        log.info("lost the link to node %d: it %s", self.node_id, problem)
        if self._timer is not None:
            self._timer.cancel()
        self._early.clear()
        self._early_bytes = 0
        self._settling.clear()
        if self._transport is not None:
            self._transport.abort()
        self._peers.link_lost(self)
        puts, self._puts = self._puts, {}
        self.unanswered_bytes = 0
        outcome = wire.Outcome.UNKNOWN if self.is_ready else wire.Outcome.MOVED
        for done, token, _ in puts.values():
            self.faults.guard("answer to a put", done, token, outcome)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            self.faults.guard("answer of another node", answer, None)
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            self.faults.guard("consumer on another node", consumer.lost)
        self._peers.on_room()

    def release_buffers(self) -> None:
        self._decoder.clear()

    def input_bytes(self) -> int:
        return self._decoder.buffered_bytes

    @property
    def unread_bytes(self) -> int:
        return super().unread_bytes + self._early_bytes

    def held_bytes(self) -> int:
        # What the node has not read is not answered either: it counts once.
        return super().held_bytes() + max(0, self.unanswered_bytes - self.unread_bytes)

    def stop_reading(self) -> None:
        """Answers that others wait for come this way, also while the node stops."""

    def pause_writing(self) -> None:
        """The other node does not keep up, but answers go on: publishers are held back, not the link."""
        self._is_write_paused = True

    # Reading

    def feed(self, data: bytes) -> None:
        if self.hub.may_speak:
            self._decoder.feed(data)
        else:
            self.give_up("speaks while this node has no lease")

    def pump(self, mark_ns: int) -> None:
        next_frame = self._decoder.next_frame
        while not self.is_lost:
            try:
                frame = next_frame()
                if frame is None:
                    return
                if type(frame) is wire.Deliver:
                    consumer = self.consumers.get(frame.consumer)
                    if consumer is not None:
                        consumer.delivered(frame)
                else:
                    self._take(frame)
            except ProtocolError as error:
                self.give_up(f"breaks the rules: {error}")
            except Exception as error:
                # Many clients share the link: only the one ends that the frame was for.
                self.faults.note("frame of another node", error)

    def _take(self, frame: wire.Frame) -> None:
        if not self.is_ready:
            self._take_in_handshake(frame)
        elif isinstance(frame, wire.PutDone):
            for number in frame.numbers:
                put = self._puts.pop(number, None)
                if put is not None:
                    done, token, size_bytes = put
                    self.unanswered_bytes -= size_bytes
                    try:
                        done(token, frame.outcome)
                    except Exception as error:
                        self.faults.note("answer to a put", error)
            self._peers.on_room()
        elif isinstance(frame, wire.Cancelled) and not frame.consumer:
            self._in_vain += 1
        elif isinstance(frame, wire.Cancelled):
            consumer = self.consumers.pop(frame.consumer, None)
            if consumer is not None:
                consumer.cancelled(wire.Ending(frame.ending))
        elif isinstance(frame, wire.Response | wire.Failure | wire.Consuming | wire.Got | wire.Listed | wire.Handed):
            answer = self._answers.pop(frame.number, None)
            if answer is not None:
                answer(frame)
        else:
            raise ProtocolError(f"{type(frame).__name__} is not for the one who connects")

    def _take_in_handshake(self, frame: wire.Frame) -> None:
        peers = self._peers
        if isinstance(frame, wire.Hello) and self._theirs is None:
            if frame.version != wire.VERSION or frame.node_id != self.node_id:
                raise ProtocolError(f"node {frame.node_id} answers, with version {frame.version} of the protocol")
            self._theirs = frame
        elif isinstance(frame, wire.Proof) and self._theirs is not None:
            expected = wire.proof_of_listener(peers.secret, self._hello, self._theirs)
            if not wire.is_proof(frame.digest, expected):
                raise ProtocolError("it does not know the secret of the domain")
            self._begin(self._theirs)
        else:
            raise ProtocolError(f"{type(frame).__name__} before the node has proved who it is")

    def _begin(self, theirs: wire.Hello) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._decoder.frame_max = self.broker.max_message_bytes + FRAME_ROOM_BYTES
        self.is_ready = True
        self.ready_at_s = asyncio.get_running_loop().time()
        self._peers.link_ready(self)
        self._send(wire.encode_proof(wire.proof_of_caller(self._peers.secret, self._hello, theirs)))
        early, self._early, self._early_bytes = self._early, [], 0
        for data in early:
            self._send(data)
        self._send_settles()


class Peers:
    """All other nodes: who they are, the links to them, and what this node answers when they ask."""

    def __init__(self, hub: Hub, node_id: int, epoch: int, secret: bytes, *, connect: Connect | None = None) -> None:
        self._hub = hub
        self.node_id = node_id
        self.epoch = epoch
        self.secret = secret
        self.commands: dict[str, Command] = {"flush": self._flush}
        """What other nodes may ask for: called with the arguments by name. Arguments and answers are JSON's."""
        self.records: dict[int, NodeRecord] = {}
        self.sessions: dict[int, LinkSession] = {}
        """The links that others have opened to this node."""
        self.handed: dict[int, tuple[int, int]] = {}
        """For each node its epoch and the last batch of messages that it has handed over."""
        self.on_lost: Callable[[int], None] = lambda node_id: None
        """Called when a node is declared dead."""
        self.on_found: Callable[[int], None] = lambda node_id: None
        """Called when a node can be reached that could not be before."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when puts have been answered."""
        self._connect = connect or connecting()
        self._warned: set[int] = set()
        """The nodes of which the log says already that TLS fails with them."""
        self._links: dict[int, Link] = {}
        self._retries: dict[int, Retries] = {}
        self._is_stopped = False
        self.settled = Settled()
        """What was settled since this was looked at last."""

    # What membership tells

    def update(self, records: Iterable[NodeRecord]) -> None:
        """Take over who is there, and where. A node that is declared dead, or has gone, is lost."""
        before = self.records
        self.records = {record.id: record for record in records if record.id != self.node_id}
        for node_id, now in self.records.items():
            known = before.get(node_id)
            if known is not None and _place_of(known) == _place_of(now):
                continue
            if now.state is NodeState.DEAD:
                self.lost(node_id)
                continue
            if known is not None and known.epoch != now.epoch:
                self.drop(node_id, "is another one by now")
            if self.can_reach(node_id):
                self._retries.pop(node_id, None)
                self.on_found(node_id)
        for node_id in before.keys() - self.records.keys():
            self.lost(node_id)

    def lost(self, node_id: int) -> None:
        """The node is dead: nothing that it was sent will be answered."""
        record = self.records.get(node_id)
        if record is not None and record.state is not NodeState.DEAD:
            self.records[node_id] = replace(record, state=NodeState.DEAD)
        self.drop(node_id, "is dead")
        self.handed.pop(node_id, None)
        self.on_lost(node_id)

    def drop(self, node_id: int, problem: str) -> None:
        """End the links from and to a node."""
        link = self._links.get(node_id)
        if link is not None:
            link.give_up(problem)
        session = self.sessions.get(node_id)
        if session is not None:
            session.abort()

    def drop_links(self) -> None:
        """End all links from this node: it had no lease, and what they have brought since may be true no more.

        Whoever sent it may have died meanwhile, and others have what it delivered.
        """
        for link in list(self.links):
            link.give_up("was not heard while this node had no lease")

    def stop(self) -> None:
        """End all links and open none any more."""
        self._is_stopped = True
        for node_id in list(self._links):
            self.drop(node_id, "is not needed any more: this node stops")

    # Links

    def can_reach(self, node_id: int) -> bool:
        """Whether it is worth trying to reach the node."""
        record = self.records.get(node_id)
        return record is not None and record.state is not NodeState.DEAD and "link" in record.addresses

    def link(self, node_id: int) -> Link | None:
        """Return the link to a node, which may be on its way; None if there is no such node."""
        link = self._links.get(node_id)
        if link is None and self.can_reach(node_id) and not self._is_stopped:
            link = self._links[node_id] = Link(self._hub, self, node_id)
            self._hub.spawn(self._open(link, self.records[node_id].addresses["link"]))
        return link

    @property
    def links(self) -> Collection[Link]:
        """All links, at the moment: more may come and go."""
        return self._links.values()

    def take_settled(self) -> Settled:
        """Return what was settled since the last call."""
        settled, self.settled = self.settled, Settled()
        return settled

    def link_lost(self, link: Link) -> None:
        self.settled.links.pop(link, None)
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
        if link.is_ready and asyncio.get_running_loop().time() - link.ready_at_s >= STEADY_S:
            self._retries.pop(link.node_id, None)

    def link_ready(self, link: Link) -> None:
        self._warned.discard(link.node_id)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start what has to do with other nodes and takes longer. It ends with the node at the latest."""
        self._hub.spawn(work)

    async def _open(self, link: Link, address: str) -> None:
        retries = self._retries.get(link.node_id)
        if retries is None:
            self._retries[link.node_id] = Retries(RECONNECTS)
        else:
            await asyncio.sleep(retries.next_delay_s())
        if link.is_lost:
            return
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._connect(address, lambda: link)
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLError) and link.node_id not in self._warned:
                self._warned.add(link.node_id)
                log.warning(
                    "TLS with node %d at %s fails: %s; all nodes of a domain need --link-tls-cert and --link-tls-ca,"
                    " of one authority",
                    link.node_id,
                    address,
                    error,
                )
            link.give_up(f"cannot be reached at {address}: {error or 'no answer'}")

    # Requests

    async def request(
        self, node_id: int, command: str, arguments: Mapping[str, Any], time_limit_s: float = 10.0
    ) -> Any:
        """Ask another node for something and return its answer.

        Raises PeerLost if it does not answer, and an error of the kind that the other node met.
        """
        link = self.link(node_id)
        if link is None:
            raise PeerLost(node_id, "is not there")
        return await self.request_over(link, command, arguments, time_limit_s)

    async def request_over(
        self, link: Link, command: str, arguments: Mapping[str, Any], time_limit_s: float = 10.0
    ) -> Any:
        """Ask as `request` does, over this link and no other that may follow it."""
        text = json.dumps({"command": command, "arguments": arguments}).encode()
        frame = await self._answer(link, lambda number: wire.encode_request(number, text), command, time_limit_s)
        assert isinstance(frame, wire.Response)
        return json.loads(frame.text)

    async def list_messages(
        self, node_id: int, queue_id: int, after_id: int, limit: int, time_limit_s: float
    ) -> list[Message]:
        """Return some of the ready messages of another node's queue with a larger id, none if there are no more.

        Raises as `request` does.
        """
        link = self.link(node_id)
        if link is None:
            raise PeerLost(node_id, "is not there")
        frame = await self._answer(
            link, lambda number: wire.encode_list(number, queue_id, after_id, limit), "list", time_limit_s
        )
        assert isinstance(frame, wire.Listed)
        return [message_of(found, found.message_id, queue_id) for found in frame.messages]

    async def read(self, node_id: int, read: wire.Read, time_limit_s: float) -> Message | None:
        """Return what another node has found, or None.

        Raises as `request` does, but ClusterError if it was lost when it may have removed a message: to ask again
        would lose that one without a word.
        """
        link = self.link(node_id)
        if link is None:
            raise PeerLost(node_id, "is not there")

        def encode(number: int) -> bytes:
            read.number = number
            return wire.encode_read(read)

        try:
            frame = await self._answer(link, encode, "read", time_limit_s)
        except PeerLost as error:
            if read.removes and link.is_ready:
                raise ClusterError(str(error)) from error
            raise
        assert isinstance(frame, wire.Got)
        found = frame.message
        return None if found is None else message_of(found, found.message_id, read.queue_id)

    async def _answer(self, link: Link, encode: Callable[[int], bytes], what: str, time_limit_s: float) -> wire.Frame:
        try:
            async with asyncio.timeout(time_limit_s):
                frame = await self._ask(link, encode)
        except TimeoutError:
            raise PeerLost(link.node_id, f"has not answered {what!r} for {time_limit_s:g} s") from None
        if isinstance(frame, wire.Failure):
            raise raised_elsewhere(frame.kind, frame.text)
        return frame

    async def _ask(self, link: Link, encode: Callable[[int], bytes]) -> wire.Frame:
        if link.is_lost:
            raise PeerLost(link.node_id, "was lost")
        future: asyncio.Future[wire.Frame | None] = asyncio.get_running_loop().create_future()
        number = link.ask(encode, lambda frame: None if future.done() else future.set_result(frame))
        try:
            frame = await future
        finally:
            link.forget(number)
        if frame is None:
            raise PeerLost(link.node_id, "was lost before it answered")
        return frame

    async def _flush(self) -> None:
        """Answered when everything that came before is durable."""
        await outcome(self._hub.broker.when_durable)


def _place_of(record: NodeRecord) -> tuple[int, bool, str | None]:
    """Return what decides whether and where a node can be reached."""
    return record.epoch, record.state is NodeState.DEAD, record.addresses.get("link")
