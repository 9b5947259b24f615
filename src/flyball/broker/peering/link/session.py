"""A link opened by another node: executes its clients' operations on local queues.

Here, the other node is an ordinary publisher and consumer, with many consumers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from flyball.broker.core.handles import Got, LocalQueue
from flyball.broker.core.intake import Intake
from flyball.broker.core.memory import CONSUMER_BYTES
from flyball.broker.core.supervisor import is_fatal
from flyball.broker.core.topology import Topology
from flyball.broker.peering.link.consumers import PLACE, Consumers, guard
from flyball.broker.peering.link.contents import first_page, message_of
from flyball.broker.peering.link.failures import failure_fields
from flyball.broker.peering.link.handshake import LinkEnd
from flyball.broker.peering.link.peers import Peers
from flyball.broker.store.pending_batch import OperationsRefused
from flyball.broker.transport.connection import WRITE_BUFFER_BYTES, Hub
from flyball.broker.wire import link as wire
from flyball.broker.wire.link import PutOutcome
from flyball.errors import ClusterError, FlyballError, ProtocolError, StoreUnavailable
from flyball.model import Message

log = logging.getLogger("flyball.server")

# Retry interval while the store is unavailable.
RETRY_S = 0.2

# Maximum time to live, 146,000 years.
MAX_TTL_US = 1 << 62

# Frames executed per turn of the event loop.
FRAMES_AT_ONCE = 500

# Frames that are answered with a Failure if they fail.
_Question: TypeAlias = wire.Consume | wire.Get | wire.Read | wire.List | wire.Hand


class _Puts:
    """Waits for one commit on behalf of all of the link's puts in it."""

    __slots__ = ("_ids", "_numbers", "_session", "batch_number")

    def __init__(self, session: LinkSession, batch_number: int) -> None:
        self._session = session
        self._numbers: list[int] = []
        # For each put, the first id of its messages and the end.
        self._ids: list[int] = []
        self.batch_number = batch_number

    def add(self, number: int, first_id: int, end_id: int) -> None:
        self._numbers.append(number)
        self._ids += (first_id, end_id)

    def committed(self) -> None:
        self._session.committed(self._numbers, PutOutcome.STORED)

    def failed(self, error: FlyballError) -> None:
        if not isinstance(error, OperationsRefused):
            self._session.committed(self._numbers, PutOutcome.UNKNOWN)
            return
        ids = iter(self._ids)
        stored: list[int] = []
        refused: list[int] = []
        for number, first_id, end_id in zip(self._numbers, ids, ids, strict=True):
            (refused if error.concerns(first_id, end_id) else stored).append(number)
        for numbers, outcome in ((stored, PutOutcome.STORED), (refused, PutOutcome.UNKNOWN)):
            if numbers:
                self._session.committed(numbers, outcome)


class LinkSession(LinkEnd):
    """A session of another node."""

    LOGS_IN = True

    def __init__(
        self,
        hub: Hub,
        peers: Peers,
        topology: Topology,
        intake: Intake,
        reply: Callable[[str, bytes, bytes, bytes], None],
    ) -> None:
        """`reply` is called with name, origin, properties and body of a direct reply to a channel of this node."""
        super().__init__(hub, peers.identity)
        self._peers = peers
        self._topology = topology
        self._intake = intake
        self._reply = reply
        self._engine = hub.broker.engine
        self._journal = hub.broker.journal
        # The other node's id, after the handshake.
        self.node_id = 0
        self._consumers = Consumers(self, topology)
        # Reads queued until an earlier one has read from the store.
        self._reads: deque[wire.Read] = deque()
        self._is_fetching = False
        self._puts: _Puts | None = None
        # Number of puts that wait for the store.
        self._awaited = 0
        self._stored_now: list[int] = []
        # Puts whose confirmation is withheld until there is memory for more.
        self._withheld: list[int] = []
        self._has_ended = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.Request: self._request,
            wire.Put: self._put,
            wire.Consume: self._consumers.start,
            wire.Settle: self._consumers.settle,
            wire.Window: self._consumers.set_window,
            wire.Pause: self._consumers.pause,
            wire.Resume: self._consumers.resume,
            wire.Cancel: self._consumers.cancel,
            wire.Get: self._get,
            wire.Read: self._read,
            wire.List: self._list,
            wire.Hand: self._hand,
            wire.Reply: self._take_reply,
        }

    # Lifecycle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self.hub.connections:
            self._limit_handshake(self.abort)

    def abort(self) -> None:
        """Close the link at once."""
        super().abort()
        self.ended()

    def ended(self) -> None:
        """Requeue the unacked messages of the other node's clients, which can no longer be settled."""
        if self._has_ended:
            return
        self._has_ended = True
        self._end_handshake()
        if self._peers.sessions.get(self.node_id) is self:
            del self._peers.sessions[self.node_id]
        self._consumers.end()

    def held_bytes(self) -> int:
        return super().held_bytes() + CONSUMER_BYTES * len(self._consumers)

    def page_out(self, wanted_bytes: int) -> int:
        return self._consumers.page_out(wanted_bytes)

    def tick(self, now_s: float) -> None:
        """Continue if message ids or memory have become available."""
        if self._withheld and not self.broker.ledger.is_full:
            withheld, self._withheld = self._withheld, []
            self.puts_done(withheld, PutOutcome.STORED)
        if self in self.hub.stalled:
            self.go_on()

    # Reading

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)

    def pump(self, mark_ns: int) -> None:
        left = FRAMES_AT_ONCE
        while not self._must_wait():
            if left == 0:
                self.hub.next_turn(self)
                break
            left -= 1
            try:
                frame = self._decoder.next_frame()
                if frame is None:
                    self._set_reading(True)
                    if self._is_at_eof:
                        self._close_if_done()
                    return
                self._take(frame)
            except ProtocolError as error:
                self.close(str(error))
                return
            except Exception as error:
                if frame is None or not self.node_id:
                    raise
                self._frame_failed(frame, error)
        self._set_reading(False)

    def _queue(self, queue_id: int) -> LocalQueue:
        """Return a queue of this node. Raises QueueNotFound."""
        return LocalQueue(self._topology, self._engine.queue(queue_id))

    def _answer(
        self, frame: _Question, error: FlyballError | None, encode: Callable[..., bytes], *fields: object
    ) -> bool:
        """Send the response to a frame; return whether it was a success."""
        try:
            if error is not None:
                raise error
            self.send(encode(frame.number, *fields))
        except Exception as fault:
            self._frame_failed(frame, fault)
            return False
        return True

    def _frame_failed(self, frame: wire.Frame, error: Exception) -> None:
        """Respond to a frame with an error. Many clients share the link: only the client that sent it is affected."""
        if isinstance(error, FlyballError) and not isinstance(frame, wire.Put):
            kind, text = failure_fields(error)
        else:
            self.faults.note(PLACE, error, quiet=True)
            kind, text = "ClusterError", f"internal error on node {self._peers.node_id}; see its log"
        if isinstance(frame, wire.Put):
            self.puts_done([frame.number], PutOutcome.UNKNOWN)
        elif isinstance(frame, wire.Consume) and self._consumers.fail(frame.number):
            return
        elif isinstance(frame, _Question):
            self.send(wire.encode_failure(frame.number, kind, text))

    async def _contain(self, frame: wire.Frame, work: Awaitable[None]) -> None:
        """Await the work of a frame, and respond with an error if it fails."""
        try:
            await work
        except Exception as error:
            if is_fatal(error):
                raise
            self._frame_failed(frame, error)

    def _must_wait(self) -> bool:
        return self._has_ended or super()._must_wait() or not self.broker.has_message_ids

    def _take(self, frame: wire.Frame) -> None:
        if not self.node_id:
            self._take_in_handshake(frame)
            return
        handler = self._handlers.get(type(frame))
        if handler is None:
            raise ProtocolError(f"{type(frame).__name__} is not sent by the connecting node")
        handler(frame)

    # Handshake

    def _check_hello(self, theirs: wire.Hello) -> None:
        known = self._peers.records.get(theirs.node_id)
        if theirs.version != wire.VERSION or theirs.node_id in (0, self._peers.node_id):
            raise ProtocolError(f"node {theirs.node_id} uses protocol version {theirs.version}")
        if known is not None and known.epoch > theirs.epoch:
            raise ProtocolError(f"epoch {theirs.epoch} of node {theirs.node_id} has ended")

    def _greet(self, theirs: wire.Hello) -> None:
        self.send(wire.encode_hello(self._hello))
        self.send(wire.encode_proof(wire.proof_of_listener(self._identity.secret, theirs, self._hello)))

    def _proof_of(self, theirs: wire.Hello) -> bytes:
        return wire.proof_of_caller(self._identity.secret, theirs, self._hello)

    def _begin(self, theirs: wire.Hello) -> None:
        older = self._peers.sessions.get(theirs.node_id)
        if older is not None:
            # The other node has lost the older session: requeue its unacked messages.
            older.abort()
        self.hub.logged_in(self)
        self.node_id = theirs.node_id
        self._peers.sessions[self.node_id] = self

    # Requests

    def _request(self, frame: wire.Request) -> None:
        self.in_flight += 1
        self.hub.spawn(self._carry_out(frame), self)

    async def _carry_out(self, frame: wire.Request) -> None:
        try:
            name, arguments = _asked(frame.text)
            command = self._peers.commands.get(name)
            if command is None:
                raise ClusterError(f"unknown command {name!r} on node {self._peers.node_id}")
            answer = wire.encode_response(frame.number, json.dumps(await command(**arguments)).encode())
        except FlyballError as error:
            answer = wire.encode_failure(frame.number, *failure_fields(error))
        except Exception as error:
            # The error affects only the requesting node: this one keeps serving others.
            log.exception("request of another node failed node=%d", self.node_id)
            answer = wire.encode_failure(frame.number, "ClusterError", f"the request failed: {error}")
        self.in_flight -= 1
        self.send(answer)

    # Puts

    def _put(self, frame: wire.Put) -> None:
        engine = self._engine
        time_us = frame.content.time_us
        if time_us is not None and time_us > MAX_TTL_US:
            # The expiry time must fit into 64 bits, here and in the store.
            frame.content.time_us = MAX_TTL_US
        found = [engine.find_queue_by_id(queue_id) for queue_id in frame.queue_ids]
        targets = [state for state in found if state is not None]
        if len(targets) < len(found):
            absent = [queue_id for queue_id in frame.queue_ids if not engine.has_queue(queue_id)]
            # With several queues the sender retries each of them: another member may replace a deleted one.
            is_elsewhere = any(self._topology.directory.get(queue_id) is not None for queue_id in absent)
            if is_elsewhere or len(set(frame.queue_ids)) > 1:
                self._put_done(frame.number, PutOutcome.MOVED)
            else:
                self._put_done(frame.number, PutOutcome.NOT_FOUND)
            return
        first_id = engine.next_message_id
        outcome = self._intake.put_content(targets, frame.content)
        if outcome is None:
            self._await_commit(frame.number, first_id)
        else:
            self._put_done(frame.number, outcome)

    @property
    def is_busy(self) -> bool:
        return super().is_busy or self._awaited > 0

    def _await_commit(self, number: int, first_id: int) -> None:
        self._awaited += 1
        end_id = self._engine.next_message_id
        if self._puts is None or self._puts.batch_number != self._journal.batch_number:
            self._puts = _Puts(self, self._journal.batch_number)
            self._puts.add(number, first_id, end_id)
            self._journal.mark(self._puts)
        else:
            self._puts.add(number, first_id, end_id)

    def _put_done(self, number: int, outcome: PutOutcome) -> None:
        if outcome is not PutOutcome.STORED:
            self.puts_done([number], outcome)
            return
        if self.broker.ledger.is_full:
            # Backpressure: the other node throttles its publishers while many puts are unconfirmed, see `puts`.
            self._withheld.append(number)
            return
        if not self._stored_now and not self._out:
            self.hub.mark_dirty(self)
        self._stored_now.append(number)

    def committed(self, numbers: list[int], outcome: PutOutcome) -> None:
        """Confirm puts whose commit has completed."""
        self._awaited -= len(numbers)
        self.puts_done(numbers, outcome)

    def puts_done(self, numbers: list[int], outcome: PutOutcome) -> None:
        self.send(wire.encode_put_done(outcome, numbers))

    # Single messages

    def _get(self, frame: wire.Get) -> None:
        def found(got: Got, error: FlyballError | None) -> None:
            message = got.message
            if message is not None and self._has_ended:
                self.broker.requeue_undelivered(message)
            elif not self._answer(frame, error, wire.encode_got, got.ready, message):
                if message is not None:
                    guard(self.faults, self.broker.requeue_undelivered, message)
            elif message is not None:
                self._consumers.hold(message)

        self._queue(frame.queue_id).get(found, no_ack=False)

    def _read(self, frame: wire.Read) -> None:
        """Peek or take a message. A read from the store delays later reads, to keep their order."""
        self.in_flight += 1
        self._reads.append(frame)
        self._read_on()

    def _read_on(self) -> None:
        while self._reads and not self._is_fetching:
            self._read_one(self._reads.popleft())

    def _read_one(self, frame: wire.Read) -> None:
        is_settled = is_fetched = is_answered = False

        def found(message: Message | None, error: FlyballError | None) -> None:
            nonlocal is_settled, is_answered
            is_settled = is_answered = True
            self.in_flight -= 1
            self._answer(frame, error, wire.encode_got, 0, message)
            if is_fetched:
                self._is_fetching = False
                asyncio.get_running_loop().call_soon(self._read_on)

        def taken(message: Message) -> None:
            nonlocal is_settled
            is_settled = True

        try:
            queue = self._queue(frame.queue_id)
            if frame.removes:
                queue.take(frame.selector, found, frame.fit, taken)
            else:
                queue.peek(frame.selector, found, frame.fit)
        except Exception as fault:
            # Caught here, since the frame may have waited and is not the one that `pump` is executing.
            is_settled = True
            if not is_answered:
                self.in_flight -= 1
            self._frame_failed(frame, fault)
        self._is_fetching = is_fetched = not is_settled

    def _list(self, frame: wire.List) -> None:
        """List as many messages as fit into a frame."""

        def listed(messages: list[Message], error: FlyballError | None) -> None:
            self.in_flight -= 1
            self._answer(frame, error, wire.encode_listed, first_page(messages))

        queue = self._queue(frame.queue_id)
        self.in_flight += 1
        queue.browse(frame.after_id, frame.limit, listed)

    def _hand(self, frame: wire.Hand) -> None:
        """Accept messages of another member, or of a queue that is moving here, unless the batch is a repetition."""
        if self._engine.has_queue(frame.queue_id):
            self._take_handed(frame)
        else:
            self.hub.spawn(self._contain(frame, self._hand_when_known(frame)), self)

    async def _hand_when_known(self, frame: wire.Hand) -> None:
        """Apply changes first: the other node may know of the queue's new owner before this one."""
        while not self._has_ended:
            try:
                await self.hub.peering.catch_up()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
            else:
                self._take_handed(frame)
                return

    async def _hand_when_numbered(self, frame: wire.Hand) -> None:
        await self.broker.obtain_ids(len(frame.messages))
        self._take_handed(frame)

    def _take_handed(self, frame: wire.Hand) -> None:
        if self._has_ended:
            # The batch cannot be confirmed: the other node will send it again.
            return
        state = self._engine.find_queue_by_id(frame.queue_id)
        assert self._theirs is not None
        epoch, last = self._peers.handed.get(self.node_id, (0, 0))
        if epoch == self._theirs.epoch and frame.batch <= last:
            self.send(wire.encode_handed(frame.number, PutOutcome.STORED))
            return
        if state is None:
            self.send(wire.encode_handed(frame.number, PutOutcome.NOT_FOUND))
            return
        if not self.broker.has_ids_for(len(frame.messages)):
            self.hub.spawn(self._contain(frame, self._hand_when_numbered(frame)), self)
            return
        self._peers.handed[self.node_id] = (self._theirs.epoch, frame.batch)
        for handed in frame.messages:
            message = message_of(handed, self._engine.use_message_id(), state.queue.id)
            message.persistent = False
            # The batch is accepted: an error in one of its messages must not cause a retry.
            guard(self.faults, self.broker.accept, state, message)
        self.broker.retention.watch_expiries()
        self.send(wire.encode_handed(frame.number, PutOutcome.STORED))

    def _take_reply(self, frame: wire.Reply) -> None:
        self._reply(frame.name, frame.content.origin, frame.content.properties, frame.content.body)

    # Writing

    def send(self, data: bytes) -> None:
        if self._stored_now:
            self._send_stored()
        super().send(data)

    def send_delivery(self, data: bytes) -> None:
        """Send a message; pause all consumers if too much output is unsent."""
        super().send(data)
        if self._out_bytes > WRITE_BUFFER_BYTES:
            self._consumers.stop()

    def _send_stored(self) -> None:
        stored, self._stored_now = self._stored_now, []
        super().send(wire.encode_put_done(PutOutcome.STORED, stored))

    def flush(self) -> None:
        if self._stored_now:
            self._send_stored()
        super().flush()
        if not self._is_write_paused:
            self._consumers.go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._consumers.stop()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._consumers.go_on()


def _asked(text: bytes) -> tuple[str, dict[str, Any]]:
    """Return the command and arguments of a request. Raises ClusterError if it is not valid."""
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"request is not valid JSON: {error}") from None
    name = asked.get("command") if isinstance(asked, dict) else None
    arguments = asked.get("arguments") if isinstance(asked, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ClusterError("request lacks a command or its arguments")
    return name, arguments
