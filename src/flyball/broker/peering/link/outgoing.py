"""A link opened by this node: sends requests, puts and consumers to another node, and calls back with responses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flyball.broker.core import peering, pending
from flyball.broker.core.pending import result
from flyball.broker.peering.link.failures import raised_elsewhere
from flyball.broker.peering.link.handshake import Identity, LinkEnd
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import link as wire
from flyball.errors import ClusterError, PeerLost, ProtocolError

log = logging.getLogger("flyball.server")

# Timeout of waiting until another node has made acks durable.
FLUSH_LIMIT_S = 15.0

# Called with the response, or with the error of the other node; PeerLost if the link was lost before.
Answer = pending.Answer[wire.Frame | None]


class LinkConsumer(Protocol):
    """A consumer on another node."""

    def delivered(self, frame: wire.Deliver) -> None: ...

    def cancelled(self, ending: wire.Ending) -> None:
        """End the consumer: no further deliveries follow."""
        ...

    def lost(self) -> None:
        """End the consumer: the link was lost, and its unacked messages with it."""
        ...


class Settled(peering.Settled):
    """The links over which acks were sent, for a transaction that waits until they are durable."""

    def __init__(self) -> None:
        # By link, its number of lost acks at that time.
        self.links: dict[Link, int] = {}
        # Whether an ack was lost before it was sent, with its link.
        self.is_in_vain = False

    async def flush(self) -> None:
        for link, in_vain in self.links.items():
            await link.request("flush", {}, FLUSH_LIMIT_S)
            if link.in_vain > in_vain:
                raise ClusterError(
                    f"node {link.node_id} no longer serves the queue: its unacked messages will be redelivered"
                )
        if self.is_in_vain:
            raise ClusterError("another node was lost before the commit: its unacked messages will be redelivered")


class LinkListener(Protocol):
    """Is notified of events of a link."""

    settled: Settled

    def link_ready(self, link: Link) -> None:
        """The handshake is complete."""
        ...

    def link_lost(self, link: Link) -> None: ...

    def puts_answered(self) -> None:
        """Puts were confirmed: there is room for more."""
        ...


class Link(LinkEnd):
    """The link to one other node, from the first attempt to connect until it is lost.

    Frames sent before the end of the handshake are queued. Frames keep their order.
    """

    IS_OUTGOING = True
    HEEDS_CONGESTION = False

    def __init__(self, hub: Hub, identity: Identity, listener: LinkListener, node_id: int) -> None:
        super().__init__(hub, identity)
        self._listener = listener
        self.node_id = node_id
        # Whether the handshake is complete. If the link is lost after that, the outcome of unanswered frames is
        # unknown.
        self.is_ready = False
        self.is_lost = False
        # When the handshake was completed, by the event loop's clock.
        self.ready_at_s = 0.0
        self.consumers: dict[int, LinkConsumer] = {}
        # Size of the unconfirmed puts.
        self.unanswered_bytes = 0
        self._answers: dict[int, Answer] = {}
        self._puts: dict[int, tuple[Callable[[int, int], None], int, int]] = {}
        self._last_number = 0
        self._early: list[bytes] = []
        self._early_bytes = 0
        # Number of acks that the node reported as lost, because the queue had moved.
        self.in_vain = 0
        self._settling: list[int] = []
        self._settling_for = (0, 0)

    # Requests

    def ask(self, encode: Callable[[int], bytes], answer: Answer) -> int:
        """Send a frame that has a response, encoded with its number; return the number. Raises PeerLost."""
        if self.is_lost:
            raise PeerLost(self.node_id, "was lost")
        number = self._last_number = self._last_number + 1
        # First, since it may raise: otherwise a callback would be left that is never called.
        data = encode(number)
        self._answers[number] = answer
        self.send(data)
        return number

    async def round_trip(self, encode: Callable[[int], bytes], what: str, time_limit_s: float) -> wire.Frame:
        """Send a frame, encoded with its number, and return the response.

        Raises PeerLost on timeout, and the errors of the other node.
        """
        number = 0

        def begin(done: Answer) -> None:
            nonlocal number
            number = self.ask(encode, done)

        try:
            async with asyncio.timeout(time_limit_s):
                frame = await result(begin)
        except TimeoutError:
            raise PeerLost(self.node_id, f"did not respond to {what!r} within {time_limit_s:g} s") from None
        finally:
            # A late response is ignored.
            self._answers.pop(number, None)
        assert frame is not None
        return frame

    async def request(self, command: str, arguments: Mapping[str, Any], time_limit_s: float) -> Any:
        """Execute a command on the node and return its result. Raises the errors of `round_trip`."""
        text = json.dumps({"command": command, "arguments": arguments}).encode()
        frame = await self.round_trip(lambda number: wire.encode_request(number, text), command, time_limit_s)
        assert isinstance(frame, wire.Response)
        return json.loads(frame.text)

    def put(self, queue_ids: list[int], content: wire.Content, done: Callable[[int, int], None], token: int) -> None:
        """Put a message into queues of the node; `done` is called with the token and the outcome, once."""
        number = self._last_number = self._last_number + 1
        size_bytes = content.size_bytes
        data = wire.encode_put(number, queue_ids, content)
        self._puts[number] = (done, token, size_bytes)
        self.unanswered_bytes += size_bytes
        self.send(data)

    def settle(self, consumer: int, settlement: int, message_id: int) -> None:
        """Settle a message. Consecutive settlements of the same kind are sent in one frame."""
        if self.is_lost:
            self.settled_in_vain()
            return
        self._listener.settled.links.setdefault(self, self.in_vain)
        if self._settling_for != (consumer, settlement):
            self._send_settles()
            self._settling_for = (consumer, settlement)
        if not self._settling and not self._out and self._transport is not None:
            self.hub.mark_dirty(self)
        self._settling.append(message_id)

    def settled_in_vain(self) -> None:
        """Record that a settlement was lost: the message will be redelivered."""
        self._listener.settled.is_in_vain = True

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

    # Lifecycle

    @property
    def is_busy(self) -> bool:
        return False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.is_lost:
            transport.close()
        elif self in self.hub.connections:
            self._limit_handshake(self.give_up, "did not complete the handshake")
            super().send(wire.encode_hello(self._hello))

    def ended(self) -> None:
        self.give_up("has closed the link")

    def give_up(self, problem: str) -> None:
        """End the link, and fail everything that waits for a response."""
        if self.is_lost:
            return
        self.is_lost = True
        log.info("link lost node=%d: it %s", self.node_id, problem)
        self._end_handshake()
        self._early.clear()
        self._early_bytes = 0
        self._settling.clear()
        if self._transport is not None:
            self._transport.abort()
        self._listener.link_lost(self)
        puts, self._puts = self._puts, {}
        self.unanswered_bytes = 0
        outcome = wire.PutOutcome.UNKNOWN if self.is_ready else wire.PutOutcome.MOVED
        for done, token, _ in puts.values():
            self.faults.guard("answer to a put", done, token, outcome)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            lost = PeerLost(self.node_id, "was lost before it responded")
            self.faults.guard("answer of another node", answer, None, lost)
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            self.faults.guard("consumer on another node", consumer.lost)
        self._listener.puts_answered()

    @property
    def unread_bytes(self) -> int:
        return super().unread_bytes + self._early_bytes

    def held_bytes(self) -> int:
        # Unsent puts are unconfirmed as well: count them once.
        return super().held_bytes() + max(0, self.unanswered_bytes - self.unread_bytes)

    def stop_reading(self) -> None:
        """Keep reading while the node stops: requests in progress need their responses."""

    def pause_writing(self) -> None:
        """Keep reading while the peer does not: publishers are throttled, not the link."""
        self._is_write_paused = True

    # Reading

    def feed(self, data: bytes) -> None:
        if self.hub.holds_lease:
            self._decoder.feed(data)
        else:
            self.give_up("sent frames while this node had no lease")

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
                self.give_up(f"violated the protocol: {error}")
            except Exception as error:
                # Many clients share the link: only the client that the frame was for is affected.
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
            self._listener.puts_answered()
        elif isinstance(frame, wire.Cancelled) and not frame.consumer:
            self.in_vain += 1
        elif isinstance(frame, wire.Cancelled):
            consumer = self.consumers.pop(frame.consumer, None)
            if consumer is not None:
                consumer.cancelled(wire.Ending(frame.ending))
        elif isinstance(frame, wire.Response | wire.Failure | wire.Consuming | wire.Got | wire.Listed | wire.Handed):
            answer = self._answers.pop(frame.number, None)
            if answer is None:
                return
            if isinstance(frame, wire.Failure):
                answer(None, raised_elsewhere(frame.kind, frame.text))
            else:
                answer(frame, None)
        else:
            raise ProtocolError(f"{type(frame).__name__} is not sent by the listening node")

    # Handshake

    def _check_hello(self, theirs: wire.Hello) -> None:
        if theirs.version != wire.VERSION or theirs.node_id != self.node_id:
            raise ProtocolError(f"responds as node {theirs.node_id} with protocol version {theirs.version}")

    def _proof_of(self, theirs: wire.Hello) -> bytes:
        return wire.proof_of_listener(self._identity.secret, self._hello, theirs)

    def _begin(self, theirs: wire.Hello) -> None:
        self.is_ready = True
        self.ready_at_s = asyncio.get_running_loop().time()
        self._listener.link_ready(self)
        self._send(wire.encode_proof(wire.proof_of_caller(self._identity.secret, self._hello, theirs)))
        early, self._early, self._early_bytes = self._early, [], 0
        for data in early:
            self._send(data)
        self._send_settles()
