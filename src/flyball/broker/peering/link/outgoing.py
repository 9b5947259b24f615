"""The link that this node opens to another one: what it sends there, and whom it owes the answers."""

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

# A node that has not made durable by then what it was sent is not waited for.
FLUSH_LIMIT_S = 15.0

# Called with the answer, or with the error that the other node has met; PeerLost if the link was lost before.
Answer = pending.Answer[wire.Frame | None]


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
        # With how many acknowledgements each had brought in vain before.
        self.links: dict[Link, int] = {}
        # Whether some reached nobody: the message had been lost to this node before.
        self.is_in_vain = False

    async def flush(self) -> None:
        for link, in_vain in self.links.items():
            await link.request("flush", {}, FLUSH_LIMIT_S)
            if link.in_vain > in_vain:
                raise ClusterError(
                    f"node {link.node_id} does not serve the queue any more: what it had sent comes again"
                )
        if self.is_in_vain:
            raise ClusterError("another node was lost before the commit: what it had sent comes again")


class LinkListener(Protocol):
    """What hears of a link."""

    settled: Settled

    def link_ready(self, link: Link) -> None:
        """The node has proved who it is."""
        ...

    def link_lost(self, link: Link) -> None: ...

    def puts_answered(self) -> None:
        """Less waits for the answers of the node."""
        ...


class Link(LinkEnd):
    """The way to one other node, from the first attempt to reach it until it is lost.

    What is sent before the node has proved who it is waits. Frames keep their order.
    """

    IS_OUTGOING = True
    HEEDS_CONGESTION = False

    def __init__(self, hub: Hub, identity: Identity, listener: LinkListener, node_id: int) -> None:
        super().__init__(hub, identity)
        self._listener = listener
        self.node_id = node_id
        # Whether the node has proved who it is; from then on nobody knows what has reached it when it is lost.
        self.is_ready = False
        self.is_lost = False
        # When that was proved, by the clock of the loop.
        self.ready_at_s = 0.0
        self.consumers: dict[int, LinkConsumer] = {}
        # What the puts hold that were not answered yet.
        self.unanswered_bytes = 0
        self._answers: dict[int, Answer] = {}
        self._puts: dict[int, tuple[Callable[[int, int], None], int, int]] = {}
        self._last_number = 0
        self._early: list[bytes] = []
        self._early_bytes = 0
        # How often the node has said that an acknowledgement came too late: the queue had moved.
        self.in_vain = 0
        self._settling: list[int] = []
        self._settling_for = (0, 0)

    # For those who use it

    def ask(self, encode: Callable[[int], bytes], answer: Answer) -> int:
        """Send a frame that is to be answered, encoded with its number; return that number. Raises PeerLost."""
        if self.is_lost:
            raise PeerLost(self.node_id, "was lost")
        number = self._last_number = self._last_number + 1
        # First, as it may fail: nothing must wait then for an answer that cannot come.
        data = encode(number)
        self._answers[number] = answer
        self.send(data)
        return number

    async def round_trip(self, encode: Callable[[int], bytes], what: str, time_limit_s: float) -> wire.Frame:
        """Send a frame, encoded with its number, and return the answer.

        Raises PeerLost if there is none in time, and an error of the kind that the other node met.
        """
        number = 0

        def begin(done: Answer) -> None:
            nonlocal number
            number = self.ask(encode, done)

        try:
            async with asyncio.timeout(time_limit_s):
                frame = await result(begin)
        except TimeoutError:
            raise PeerLost(self.node_id, f"has not answered {what!r} for {time_limit_s:g} s") from None
        finally:
            # An answer that comes later is not wanted.
            self._answers.pop(number, None)
        assert frame is not None
        return frame

    async def request(self, command: str, arguments: Mapping[str, Any], time_limit_s: float) -> Any:
        """Let the node carry out a command, and return its answer. Raises as `round_trip` does."""
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
        """End a lease. Those of one kind that follow each other go together."""
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
        """Something was settled that is not this node's any more: it will be delivered again."""
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

    # Life

    @property
    def is_busy(self) -> bool:
        return False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.is_lost:
            transport.close()
        elif self in self.hub.connections:
            self._limit_handshake(self.give_up, "does not prove who it is")
            super().send(wire.encode_hello(self._hello))

    def ended(self) -> None:
        self.give_up("has closed the link")

    def give_up(self, problem: str) -> None:
        """The node cannot be reached this way any more: tell everybody who waits for something from it."""
        if self.is_lost:
            return
        self.is_lost = True
        log.info("lost the link to node %d: it %s", self.node_id, problem)
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
            lost = PeerLost(self.node_id, "was lost before it answered")
            self.faults.guard("answer of another node", answer, None, lost)
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            self.faults.guard("consumer on another node", consumer.lost)
        self._listener.puts_answered()

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
        if self.hub.holds_lease:
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
            raise ProtocolError(f"{type(frame).__name__} is not for the one who connects")

    # Handshake

    def _check_hello(self, theirs: wire.Hello) -> None:
        if theirs.version != wire.VERSION or theirs.node_id != self.node_id:
            raise ProtocolError(f"node {theirs.node_id} answers, with version {theirs.version} of the protocol")

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
