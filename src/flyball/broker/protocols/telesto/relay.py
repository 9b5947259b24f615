"""Requests about queues of other nodes: passed on to whoever serves the queue, over a connection for this client.

The other node sees an ordinary client there, whose requests it does not pass on again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from flyball.broker.protocols.telesto.lines import Lines
from flyball.broker.protocols.telesto.putting import PutDone, put_drafts
from flyball.broker.settings import Address
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import FlyballError, ProtocolError, QueueNotFound, StoreError, StoreUnavailable
from flyball.trace.schema import Kind

if TYPE_CHECKING:
    from flyball.broker.protocols.telesto.session import TelestoRequest, TelestoSession

log = logging.getLogger(__name__)

CONNECT_LIMIT_S = 5.0
RETRY_S = 0.1
"""After so long a request is tried again whose queue has no node that can be reached."""

GIVE_UP_S = 15.0
"""So long a request waits for a node that serves its queue."""

# A client that has gone leaves so much at most to be written to another node, and for so long: nobody is charged for
# it any more.
UNSENT_BYTES = 64 * 1024
CLOSE_LIMIT_S = 5.0

# What an id takes in a list, and a draft beside its body and properties.
_ID_BYTES = 40
_DRAFT_BYTES = 200

_OneQueue = (
    wire.DeleteQueue
    | wire.GetMessages
    | wire.ReadMessage
    | wire.ReadResponse
    | wire.Take
    | wire.Peek
    | wire.ListMessages
    | wire.Remove
    | wire.Consume
    | wire.Purge
)
"""Requests about one queue, ListIds included, that its own node answers."""

_OneConsumer = wire.Prefetch | wire.Cancel | wire.Settle

_KINDS: dict[type[wire.Packet], Kind] = {
    wire.DeleteQueue: Kind.DELETE_QUEUE,
    wire.GetMessages: Kind.LIST,
    wire.ReadMessage: Kind.TAKE,
    wire.ReadResponse: Kind.TAKE,
    wire.Take: Kind.TAKE,
    wire.Peek: Kind.PEEK,
    wire.ListMessages: Kind.LIST,
    wire.ListIds: Kind.LIST,
    wire.Remove: Kind.PURGE,
    wire.Consume: Kind.CONSUME,
    wire.Purge: Kind.PURGE,
    wire.Prefetch: Kind.CONSUME,
    wire.Cancel: Kind.CONSUME,
    wire.Settle: Kind.SETTLE,
}

P = TypeVar("P", bound=wire.Packet)

Answered = Callable[[wire.Packet | None, bool], None]
"""Called with the answer; or with None and whether the request was sent, when the connection is lost."""


class Upstream(asyncio.Protocol):
    """A connection to another node, as the client whose session it serves. Once lost it is not used again."""

    def __init__(self, relay: Relay, address: str, client_id: int) -> None:
        self.is_lost = False
        self.is_ending = False
        self._relay = relay
        self._address = Address.parse(address)
        self._client_id = client_id
        self._decoder = wire.PacketDecoder(from_server=True)
        self._transport: asyncio.Transport | None = None
        self._last_id = 0
        self._pending: dict[int, Answered] = {}
        self._waiting: list[tuple[wire.Packet, Answered]] = []
        """Requests that came before the connection was ready."""
        self._is_wide = False
        self._is_ready = False
        self._has_said_all = False

    async def open(self) -> None:
        """Connect and identify, then send what has waited. A failure is a loss."""
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await asyncio.get_running_loop().create_connection(lambda: self, *self._address)
                await self._expect(wire.IdentifyClient(0, wire.EXTENSION_CLIENT_ID), wire.Welcome)
                # The client's own node has seen what the client may do.
                nonce = await self._expect(wire.AskNonce(0), wire.Nonce)
                await self._expect(wire.Prove(0, wire.proof_of(self._relay.secret, nonce.data)), wire.Success)
                await self._expect(wire.Forwarded(0), wire.Success)
                if self._client_id:
                    await self._identify()
        except (OSError, TimeoutError, ProtocolError) as error:
            log.info("no connection to the node at %s: %s", self._address, error)
            self.abort()
            return
        self._is_ready = True
        waiting, self._waiting = self._waiting, []
        for packet, answered in waiting:
            self.request(packet, answered)
        if self.is_ending:
            self.end()

    async def _identify(self) -> None:
        """Be the client there as well; the other node may hear of a new one a little later."""
        while True:
            try:
                await self._expect(wire.IdentifyClient(0, self._client_id), wire.IdentifyClientResponse)
            except ProtocolError:
                if self.is_lost:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _expect(self, packet: wire.Packet, kind: type[P]) -> P:
        """Send a request and wait for its answer. Raises ProtocolError if it is another one, or none."""
        told: asyncio.Future[wire.Packet | None] = asyncio.get_running_loop().create_future()

        def answered(answer: wire.Packet | None, was_sent: bool) -> None:
            if not told.done():
                told.set_result(answer)

        self._send(packet, answered)
        answer = await told
        if not isinstance(answer, kind):
            raise ProtocolError(f"{type(packet).__name__} was answered with {answer}")
        return answer

    # Requests

    def request(self, packet: wire.Packet, answered: Answered) -> None:
        if self.is_lost:
            answered(None, False)
        elif self._is_ready:
            self._send(packet, answered)
        else:
            self._waiting.append((packet, answered))

    def _send(self, packet: wire.Packet, answered: Answered) -> None:
        if self._transport is None or self._has_said_all:
            answered(None, False)
            return
        self._last_id = self._last_id % 0x7FFFFFFF + 1
        packet.packet_id = self._last_id
        self._pending[packet.packet_id] = answered
        self._transport.write(wire.encode_wide(packet) if self._is_wide else wire.encode(packet))

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self.is_lost:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._decoder.feed(data)
            while (packet := self._decoder.next_packet()) is not None:
                if isinstance(packet, wire.Deliver):
                    self._relay.delivered(self, packet)
                elif isinstance(packet, wire.ConsumerEnded):
                    self._relay.consumer_ended(self, packet.consumer_id)
                else:
                    self._answered(packet)
        except ProtocolError as error:
            log.error("the node at %s broke the protocol: %s", self._address, error)
            self.abort()

    def _answered(self, packet: wire.Packet) -> None:
        if isinstance(packet, wire.Welcome):
            self._decoder.widen(packet.frame_max)
            self._is_wide = True
        answered = self._pending.pop(packet.packet_id, None)
        if answered is not None:
            answered(packet, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._decoder.clear()
        self._lose()

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        pending, self._pending = self._pending, {}
        waiting, self._waiting = self._waiting, []
        self._relay.lost(self)
        for answered in pending.values():
            answered(None, True)
        for _, answered in waiting:
            answered(None, False)

    # The end

    def pause(self) -> None:
        """Read nothing more for the time being: the client does not either."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def end(self) -> None:
        """Ask for nothing more: waits end, leases go back, and what is under way is still answered."""
        self.is_ending = True
        if not self._has_said_all and self._is_ready and self._transport is not None:
            self._has_said_all = True
            if not self._transport.is_closing():
                self._transport.write_eof()

    @property
    def unsent_bytes(self) -> int:
        """What the other node has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """End it when what was sent is out, if that is little; nobody waits for answers any more."""
        if self._is_ready and self._transport is not None and self.unsent_bytes <= UNSENT_BYTES:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_LIMIT_S, self.abort)
            # With the answers go the requests, and what those hold.
            self._lose()
        else:
            self.abort()

    def abort(self) -> None:
        self._lose()
        if self._transport is not None:
            self._transport.abort()


class _Remote:
    """A consumer of the client's at another node, under the number that it has here."""

    __slots__ = ("consumer_id", "held", "is_cancelled", "leaving", "queue_id", "settling", "there", "upstream")

    def __init__(self, consumer_id: int, queue_id: int, upstream: Upstream, there: int) -> None:
        self.consumer_id = consumer_id
        self.queue_id = queue_id
        self.upstream = upstream
        self.there = there
        """Its number at the other node."""
        self.held: set[int] = set()
        """Messages that the client has and nobody has been asked to settle."""
        self.settling = 0
        """How many settlements are under way."""
        self.is_cancelled = False
        self.leaving: asyncio.Event | None = None
        """If it is to go on elsewhere: set when it holds nothing more, or has ended."""


class Relay:
    """What a session has at other nodes: connections, one for each node, and consumers."""

    def __init__(self, session: TelestoSession) -> None:
        self._session = session
        self._hub = session.hub
        self._engine = session.broker.engine
        self._upstreams: dict[tuple[int, int], Upstream] = {}
        """By node and client: a connection may get its identity late."""
        self._consumers: dict[int, _Remote] = {}
        self._by_place: dict[tuple[Upstream, int], _Remote] = {}
        self._is_closed = False
        self.lines = Lines()

    # Requests

    def takes(self, packet: wire.Packet, request: TelestoRequest) -> bool:
        """Pass the request on if another node has to answer it, and tell whether."""
        if isinstance(packet, _OneConsumer):
            remote = self._consumers.get(packet.consumer_id)
            if remote is not None:
                request.kind = _KINDS[type(packet)]
                self._pass_to_consumer(remote, packet, request)
            return remote is not None
        if not isinstance(packet, _OneQueue) or self._engine.has_queue(packet.queue_id):
            return False
        request.kind = _KINDS[type(packet)]
        request.queue_id = packet.queue_id
        _Passage(self, packet, packet.queue_id, partial(self._answer, packet, request)).go()
        return True

    def put(
        self, request: TelestoRequest, queue_ids: Sequence[int], drafts: Sequence[wire.WireDraft], done: PutDone
    ) -> None:
        """Put drafts into queues of which some are at other nodes, or were when others were put there.

        The drafts are kept until the request is answered, and the client's requests wait while they are large.
        """
        size_bytes = sum([_DRAFT_BYTES + len(draft.body) + len(draft.properties) for draft in drafts])
        self._session.reserve(request, size_bytes + _ID_BYTES * len(queue_ids))
        if all(self.knows(queue_id) for queue_id in queue_ids):
            self._put_known(queue_ids, drafts, done)
        else:
            # Another node may have made them just now.
            self.look_again(partial(self._put_known, queue_ids, drafts, done))

    def _put_known(
        self, queue_ids: Sequence[int], drafts: Sequence[wire.WireDraft], done: PutDone, number: int | None = None
    ) -> None:
        """Put them wherever the queues are. `number` is the place among the client's puts, the last if not given."""
        places_of: dict[int, list[int]] = {}
        for place, queue_id in enumerate(queue_ids):
            if not self.knows(queue_id) or not self.may_reach(queue_id):
                done([], QueueNotFound(queue_id))
                return
            places_of.setdefault(self.owner_of(queue_id) or 0, []).append(place)
        parts = _Parts(len(queue_ids), len(drafts), len(places_of), done)
        puts: list[_Put] = []
        for owner, places in places_of.items():
            ids = [queue_ids[place] for place in places]
            told = partial(parts.one, places)
            if owner or self.lines.has_any(ids):
                place_in_line = self.lines.next_number() if number is None else number
                puts.append(self._new_put(ids, drafts, told, place_in_line))
            else:
                put_drafts(self._session, ids, drafts, told)
        self.lines.join(puts)

    def _new_put(self, queue_ids: list[int], drafts: Sequence[wire.WireDraft], told: PutDone, number: int) -> _Put:
        def answered(upstream: Upstream | None, answer: wire.Packet | None) -> None:
            if answer is None and all(self._engine.has_queue(queue_id) for queue_id in queue_ids):
                put_drafts(self._session, queue_ids, drafts, told)
            elif answer is None:
                # The queues have parted, or one is gone.
                self._put_known(queue_ids, drafts, told, number)
            elif isinstance(answer, wire.PutDone):
                told(answer.message_ids, None)
            else:
                told([], self._error_of(answer))

        return _Put(self, wire.Put(0, queue_ids, list(drafts)), answered, number)

    def _pass_to_consumer(self, remote: _Remote, packet: _OneConsumer, request: TelestoRequest) -> None:
        settled: set[int] = set()

        def answered(answer: wire.Packet | None, was_sent: bool) -> None:
            remote.settling -= bool(settled)
            if not isinstance(answer, wire.Success):
                remote.held |= settled
            elif isinstance(packet, wire.Cancel):
                remote.is_cancelled = True
            self._let_go_if_done(remote)
            self._reply(request, answer or _lost("the node that serves the queue is lost"))

        if isinstance(packet, wire.Settle):
            request.message_count = len(packet.message_ids)
            self._session.reserve(request, _ID_BYTES * len(packet.message_ids))
            settled = remote.held.intersection(packet.message_ids)
            remote.held -= settled
            remote.settling += bool(settled)
        remote.upstream.request(replace(packet, consumer_id=remote.there), answered)

    def _answer(
        self, packet: wire.Packet, request: TelestoRequest, upstream: Upstream | None, answer: wire.Packet | None
    ) -> None:
        if answer is None:
            self._session.handle_here(packet, request)
        elif isinstance(answer, wire.Consuming) and upstream is not None:
            assert isinstance(packet, wire.Consume), "nothing else is answered so"
            remote = _Remote(self._engine.new_consumer_id(), packet.queue_id, upstream, answer.consumer_id)
            self._consumers[remote.consumer_id] = remote
            self._by_place[upstream, answer.consumer_id] = remote
            self._session.reply(request, wire.Consuming(request.packet_id, remote.consumer_id))
            if upstream.is_ending:
                # The other node has read the end of the stream after the request, and has ended the consumer.
                self.consumer_ended(upstream, remote.there)
        else:
            self._reply(request, answer)

    def _reply(self, request: TelestoRequest, answer: wire.Packet) -> None:
        if isinstance(answer, wire.Error):
            self._session.refuse(request, self._error_of(answer))
        else:
            answer.packet_id = request.packet_id
            self._session.reply(request, answer)

    def _error_of(self, answer: wire.Packet) -> FlyballError:
        if not isinstance(answer, wire.Error):
            return StoreUnavailable(f"another node answered with {type(answer).__name__}")
        return self._session.refusal(answer.code, answer.details)

    # Connections

    @property
    def secret(self) -> bytes:
        """What nodes of the domain know each other by."""
        return self._hub.owner_keys[-1]

    def upstream(self, node_id: int) -> Upstream | None:
        """Return a connection to the node, which may not be ready yet; None if nobody knows where it is.

        None as well if the client is gone: nobody would close it, and a consumer there would hold messages for good.
        """
        if self._is_closed:
            return None
        place = (node_id, self._session.client_id)
        found = self._upstreams.get(place)
        if found is None:
            address = self._hub.peering.address_of(node_id, "telesto")
            if address is None:
                return None
            found = self._upstreams[place] = Upstream(self, address, self._session.client_id)
            self._hub.spawn(found.open())
        return found

    def lost(self, upstream: Upstream) -> None:
        """A connection is lost, and with it the consumers at that node: the client may ask for them again."""
        self._upstreams = {place: found for place, found in self._upstreams.items() if found is not upstream}
        for remote in list(self._consumers.values()):
            if remote.upstream is upstream:
                self.consumer_ended(upstream, remote.there)

    def node_lost(self, node_id: int) -> None:
        """Give up the connections to a node: others serve its queues, or may do so.

        A machine that has stopped or vanished does not close them: consumers would wait in vain, and their clients
        handle prefetched messages that the next owner delivers again.
        """
        for (found_id, _), upstream in list(self._upstreams.items()):
            if found_id == node_id:
                upstream.abort()

    def delivered(self, upstream: Upstream, packet: wire.Deliver) -> None:
        remote = self._by_place.get((upstream, packet.consumer_id))
        if remote is not None:
            remote.held.add(packet.record.message_id)
            self._session.send(wire.encode_deliver(remote.consumer_id, packet.record))

    def consumer_ended(self, upstream: Upstream, there: int) -> None:
        remote = self._by_place.get((upstream, there))
        if remote is not None:
            self._forget(remote)
            self._session.send(wire.encode_wide(wire.ConsumerEnded(0, remote.consumer_id)))

    def _forget(self, remote: _Remote) -> None:
        self._consumers.pop(remote.consumer_id, None)
        self._by_place.pop((remote.upstream, remote.there), None)
        if remote.leaving is not None:
            remote.leaving.set()

    def consuming(self) -> Iterator[tuple[int, int]]:
        """Yield the ids of the consumers at other nodes, each with that of its queue."""
        for remote in self._consumers.values():
            if not remote.is_cancelled or remote.leaving is not None:
                yield remote.consumer_id, remote.queue_id

    async def send_away(self, consumer_id: int, limit_s: float) -> bool:
        """End a consumer at another node as if its queue had moved; see the session's."""
        remote = self._consumers.get(consumer_id)
        if remote is None or remote.is_cancelled or remote.leaving is not None:
            return False
        leaving = remote.leaving = asyncio.Event()

        def cancelled(answer: wire.Packet | None, was_sent: bool) -> None:
            # Only now has all come that was on its way.
            remote.is_cancelled = True
            self._let_go_if_done(remote)

        remote.upstream.request(wire.Cancel(0, remote.there), cancelled)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await leaving.wait()
        if remote.held:
            back = wire.Settle(0, remote.there, wire.Outcome.REQUEUE, list(remote.held))
            remote.upstream.request(back, lambda answer, was_sent: None)
        # Unless it was lost meanwhile, and the client knows that.
        self.consumer_ended(remote.upstream, remote.there)
        return not self._session.is_over

    def _let_go_if_done(self, remote: _Remote) -> None:
        """Forget a consumer that was cancelled and holds nothing any more."""
        if remote.is_cancelled and not remote.held and not remote.settling:
            if remote.leaving is None:
                self._forget(remote)
            else:
                remote.leaving.set()

    @property
    def unsent_bytes(self) -> int:
        """What other nodes have not taken yet of the client's requests."""
        return sum([upstream.unsent_bytes for upstream in self._upstreams.values()])

    def pause(self) -> None:
        for upstream in self._upstreams.values():
            upstream.pause()

    def resume(self) -> None:
        for upstream in self._upstreams.values():
            upstream.resume()

    def end(self) -> None:
        """The client asks for nothing more, or the node stops.

        The other nodes end its consumers and requeue what they hold. The client is notified at once: a settlement
        under way may keep its connection open for seconds, and meanwhile it would handle prefetched messages that
        other consumers get, and ack.
        """
        for upstream in self._upstreams.values():
            upstream.end()
        for remote in list(self._consumers.values()):
            self.consumer_ended(remote.upstream, remote.there)

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        for upstream in list(self._upstreams.values()):
            upstream.close()

    # What passages ask

    @property
    def is_over(self) -> bool:
        return self._session.is_over

    def owner_of(self, queue_id: int) -> int | None:
        """Return who serves the queue; None if that is this node, or nobody."""
        remote = self._hub.directory.get(queue_id)
        return None if remote is None else remote.owner

    def serves(self, queue_id: int) -> bool:
        return self._engine.has_queue(queue_id)

    def knows(self, queue_id: int) -> bool:
        """Whether the queue is served here, or by another node that this one has heard of."""
        return self.serves(queue_id) or self.owner_of(queue_id) is not None

    def may_reach(self, queue_id: int) -> bool:
        """Whether the client may use the queue: the other node takes this one's word for it."""
        return self._session.may_reach(queue_id)

    def look_again(self, go_on: Callable[[], None]) -> None:
        """Follow the other nodes, and go on."""
        self._hub.spawn(self._catch_up(go_on))

    async def _catch_up(self, go_on: Callable[[], None]) -> None:
        try:
            await self._hub.peering.catch_up()
        except StoreError as error:
            log.info("the changes of other nodes could not be read: %s", error)
        go_on()


class _Passage:
    """One request on its way to the node that serves its queue, which may change meanwhile.

    It is told the answer, or None if this node has to answer.
    """

    __slots__ = ("_answered", "_give_up_at", "_has_looked", "_packet", "_problem", "_queue_id", "_relay")

    def __init__(
        self,
        relay: Relay,
        packet: wire.Packet,
        queue_id: int,
        answered: Callable[[Upstream | None, wire.Packet | None], None],
    ) -> None:
        self._relay = relay
        # The packet goes with another id each time; whoever gave it keeps his.
        self._packet = replace(packet)
        self._queue_id = queue_id
        self._answered = answered
        self._has_looked = False
        self._give_up_at = asyncio.get_running_loop().time() + GIVE_UP_S
        self._problem: wire.Packet = _lost(f"no node that serves queue {queue_id} can be reached")

    def go(self) -> None:
        relay = self._relay
        owner = relay.owner_of(self._queue_id)
        if owner is None:
            if not relay.serves(self._queue_id) and not self._has_looked:
                # Another node may have made it just now.
                self._has_looked = True
                relay.look_again(self.go)
            else:
                self._answered(None, None)
            return
        if not relay.may_reach(self._queue_id):
            self._answered(None, _not_found(self._queue_id))
            return
        upstream = relay.upstream(owner)
        if upstream is None:
            self._later()
        else:
            upstream.request(self._packet, partial(self._told, upstream))

    def _told(self, upstream: Upstream, answer: wire.Packet | None, was_sent: bool) -> None:
        if answer is None and was_sent:
            self._answered(upstream, _lost("the node that serves the queue is lost: the outcome is unknown"))
        elif answer is None:
            self._later()
        elif isinstance(answer, wire.Error) and answer.code == ErrorCode.QUEUE_NOT_EXISTING:
            # It is on its way to another node, or gone, and this one has not heard of that yet.
            self._problem = answer
            self._later()
        else:
            self._answered(upstream, answer)

    def _later(self) -> None:
        if asyncio.get_running_loop().time() >= self._give_up_at or self._relay.is_over:
            self._answered(None, self._problem)
        else:
            self._try_later()

    def _try_later(self) -> None:
        asyncio.get_running_loop().call_later(RETRY_S, self._relay.look_again, self.go)


class _Put(_Passage):
    """A put on its way, which keeps its place among those of the client to the same queues."""

    __slots__ = ("is_resting", "number", "queue_ids")

    def __init__(
        self,
        relay: Relay,
        packet: wire.Put,
        answered: Callable[[Upstream | None, wire.Packet | None], None],
        number: int,
    ) -> None:
        super().__init__(relay, packet, packet.queue_ids[0], answered)
        self.queue_ids = packet.queue_ids
        self.number = number
        self.is_resting = False

    def go(self) -> None:
        relay, lines = self._relay, self._relay.lines
        lines.step_out(self)
        owner = relay.owner_of(self._queue_id)
        if owner is None or any(relay.owner_of(queue_id) != owner for queue_id in self.queue_ids):
            if not self._has_looked and not all(relay.knows(queue_id) for queue_id in self.queue_ids):
                self._has_looked = True
                self._rest()
                relay.look_again(self._wake)
            elif lines.may_go(self, relay):
                self._answered(None, None)
            return
        upstream = relay.upstream(owner)
        if upstream is None:
            self._later()
        elif lines.may_go(self, upstream):
            if lines.set_out(self, upstream):
                # Else the other node would take it for one of those behind what it has refused.
                upstream.request(wire.Put(0, self.queue_ids, []), lambda answer, was_sent: None)
            upstream.request(self._packet, partial(self._told, upstream))

    def _told(self, upstream: Upstream, answer: wire.Packet | None, was_sent: bool) -> None:
        is_refused = isinstance(answer, wire.Error) and answer.code == ErrorCode.QUEUE_NOT_EXISTING
        self._relay.lines.arrive(self, is_refused=is_refused)
        super()._told(upstream, answer, was_sent)
        self._relay.lines.move_on(self.queue_ids)

    def _try_later(self) -> None:
        self._rest()
        asyncio.get_running_loop().call_later(RETRY_S, self._relay.look_again, self._wake)

    def _rest(self) -> None:
        self.is_resting = True
        self._relay.lines.wait(self)

    def _wake(self) -> None:
        self.is_resting = False
        self._relay.lines.move_on(self.queue_ids)


class _Parts:
    """The answers of several nodes to one put, put together."""

    def __init__(self, queue_count: int, draft_count: int, part_count: int, done: PutDone) -> None:
        self._queue_count = queue_count
        self._left = part_count
        self._done = done
        self._ids = [0] * (queue_count * draft_count)
        self._error: FlyballError | None = None

    def one(self, places: Sequence[int], message_ids: list[int], error: FlyballError | None) -> None:
        self._error = self._error or error
        if error is None:
            for number, message_id in enumerate(message_ids):
                draft, place = divmod(number, len(places))
                self._ids[draft * self._queue_count + places[place]] = message_id
        self._left -= 1
        if not self._left:
            self._done([] if self._error is not None else self._ids, self._error)


def _lost(details: str) -> wire.Error:
    return wire.Error(0, ErrorCode.STORE_UNAVAILABLE, details)


def _not_found(queue_id: int) -> wire.Error:
    return wire.Error(0, ErrorCode.QUEUE_NOT_EXISTING, str(QueueNotFound(queue_id)))
