"""The asynchronous client: everything a program can ask of a Flyball node, or of a plain Telesto server."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from flyball.backoff import Backoff
from flyball.broker.wire import telesto as wire
from flyball.broker.wire.telesto import ErrorCode
from flyball.errors import ClientNotFound, ProtocolError, QueueNotFound
from flyball.model import Client as KnownClient
from flyball.model import ClientMode, Order, Queue
from tests.telesto_client import plain
from tests.telesto_client.connection import Connection, ServerAddress
from tests.telesto_client.consumer import Consumer
from tests.telesto_client.errors import InvalidValue, RequestTimeout
from tests.telesto_client.link import Identity, Link, expect
from tests.telesto_client.messages import (
    MAX_INT,
    MAX_LONG,
    MAX_WAIT_S,
    Draft,
    ReceivedMessage,
    batches,
    check_int,
    check_name,
    check_nonzero,
    check_seconds,
    from_plain,
    from_record,
    to_wire,
    wire_draft,
)
from tests.telesto_client.takes import AbandonedTakes
from tests.telesto_client.topics import ALL, Topic, subscribe

DEFAULT_ADDRESS = "127.0.0.1:9001"
DEFAULT_TIME_LIMIT_S = 30.0
DEFAULT_MAX_PENDING = 200
"""A node carries out 256 requests of a connection at once; what is above would wait there."""

RETRY_DELAY_S = 0.05
"""Between two looks for a message at a plain Telesto server, which cannot wait; its own client's delay."""

MOST_AT_ONCE = 10_000
"""So many messages can be taken or listed in one request."""

MOST_IDS = 100_000
"""So many message ids can be listed in one request."""

_MOST_NAMES = 10_000

QueueRef = str | int | Queue
"""A queue: by name, by id, or as returned by this client."""

ClientRef = int | KnownClient
"""Another client: by id, or as returned by this client."""

T = TypeVar("T")


class Client:
    """A client of one server, used inside `async with Client.connect(...) as client`.

    Calls may run concurrently. Every call has a time limit (`time_limit_s`) and raises RequestTimeout beyond it.
    After a lost connection the client reconnects; calls meanwhile wait for it, within their limits. A call that
    was under way is repeated if it only reads, and raises ConnectionLost otherwise: its outcome is unknown.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._queue_ids: dict[str, int] = {}
        self._abandoned = AbandonedTakes()
        # Responses are told apart by their context: not to meet those of an earlier life, start anywhere.
        self._contexts = itertools.count(random.randrange(1, 2**30))

    @classmethod
    def connect(
        cls,
        address: str = DEFAULT_ADDRESS,
        *,
        name: str | None = None,
        client_id: int | None = None,
        mode: ClientMode = ClientMode.FULL,
        existing_ok: bool = True,
        extension: bool = True,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        max_pending: int = DEFAULT_MAX_PENDING,
        backoff: Backoff | None = None,
        token_file: str | Path | None = None,
    ) -> Self:
        """Return a client that connects when it is entered or opened.

        With a `name`, it connects as the client of that name, registered with `mode` if it is new; with
        `existing_ok=False`, and always at a plain Telesto server, a name in use is ClientNameTaken. With a
        `client_id`, it connects as that existing client. With neither it can administer queues and clients of a
        Flyball node, but put and read nothing.

        `extension=False` speaks plain Telesto even to a Flyball node. At most `max_pending` requests are under way
        at a time; the next ones wait. What only the node's owner may do needs the node's token: it is read from
        `token_file` or, if that is None, from where a node beside this program keeps it (FLYBALL_TOKEN_FILE,
        admin.token in FLYBALL_DATA or in ./data).
        """
        if name is not None and client_id is not None:
            raise InvalidValue("connect by name or by client_id, not by both")
        identity = Identity(
            None if name is None else check_name(name),
            None if client_id is None else check_int("client_id", client_id, 1, MAX_INT),
            ClientMode(mode),
            existing_ok,
        )
        return cls(
            Link(
                ServerAddress.parse(address),
                identity,
                extension=extension,
                time_limit_s=check_seconds("time_limit_s", time_limit_s, math.inf, above=0),
                max_pending=check_int("max_pending", max_pending, 2, 10_000),
                backoff=backoff or Backoff(),
                token_file=token_file,
            )
        )

    # Life

    async def open(self) -> None:
        """Connect. Raises ConnectionFailed if the server cannot be reached, or what it says against the identity."""
        await self._link.open()

    async def close(self) -> None:
        """Disconnect. What consumers hold goes back to its place. May be called twice."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def id(self) -> int | None:
        """The id under which the server knows this client; None without an identity."""
        return None if self._link.client is None else self._link.client.id

    @property
    def name(self) -> str | None:
        return None if self._link.client is None else self._link.client.name

    @property
    def mode(self) -> ClientMode | None:
        """What this client may do. An existing client keeps the mode it was registered with."""
        return None if self._link.client is None else self._link.client.mode

    @property
    def has_extension(self) -> bool:
        """Whether the server speaks Flyball's extension of the protocol."""
        return self._link.is_wide

    async def ping(self, *, time_limit_s: float | None = None) -> float:
        """Return the time of a round trip to the server, in seconds."""
        async with self._link.time_limit("ping", time_limit_s):
            # Not the loop's time: uvloop's counts in milliseconds.
            started = time.perf_counter()
            expect(await self._link.exchange(wire.Ping(0), "ping", repeatable=True), wire.Pong)
            return time.perf_counter() - started

    async def status(self, *, time_limit_s: float | None = None) -> dict[str, Any]:
        """Return what the node tells about itself and its queues."""
        self._link.require_extension("status")
        async with self._link.time_limit("status", time_limit_s):
            answer = await self._link.exchange(wire.Status(0), "status", repeatable=True, as_owner=True)
            report = expect(answer, wire.StatusReport).report
        try:
            found = json.loads(report)
        except ValueError as error:
            raise ProtocolError(f"the status is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ProtocolError("the status is no JSON object")
        return found

    async def manage(self, command: str, /, *, time_limit_s: float | None = None, **arguments: Any) -> Any:
        """Have the node carry out a command of its administration, such as `user.list`; return what came of it.

        Raises NotLocal if the node runs on another machine, NotOwner without its token, and CommandRefused.
        """
        self._link.require_extension("manage")
        request = wire.Manage(0, json.dumps({**arguments, "command": command}).encode())
        async with self._link.time_limit(command, time_limit_s):
            is_list = command.endswith(".list")
            answer = await self._link.exchange(request, command, repeatable=is_list, as_owner=is_list)
            result = expect(answer, wire.Managed).result
        try:
            return json.loads(result)
        except ValueError as error:
            raise ProtocolError(f"the answer to {command} is no JSON: {error}") from error

    # Queues

    async def create_queue(self, name: str, *, time_limit_s: float | None = None) -> Queue:
        """Create a queue. Raises QueueNameTaken."""
        check_name(name)
        async with self._link.time_limit("create_queue", time_limit_s):
            answer = await self._link.exchange(wire.CreateQueue(0, name), "create_queue")
            return Queue(expect(answer, wire.CreateQueueResponse, name).queue_id, name)

    async def delete_queue(self, queue: QueueRef, *, time_limit_s: float | None = None) -> None:
        """Delete a queue and its messages. Raises QueueNotFound."""

        async def delete(queue_id: int) -> None:
            answer = await self._link.exchange(wire.DeleteQueue(0, queue_id), "delete_queue")
            expect(answer, wire.Success, _subject(queue))

        async with self._link.time_limit("delete_queue", time_limit_s):
            await self._on_queue(queue, delete)
        if isinstance(queue, str):
            self._queue_ids.pop(queue, None)

    async def get_queue_by_name(self, name: str, *, time_limit_s: float | None = None) -> Queue:
        """Return the queue of that name. Raises QueueNotFound."""
        async with self._link.time_limit("get_queue_by_name", time_limit_s):
            return Queue(await self._look_up(name), name)

    async def get_queue_by_id(self, queue_id: int, *, time_limit_s: float | None = None) -> Queue:
        """Return the queue of that id. Raises QueueNotFound."""
        packet = wire.GetQueueName(0, check_int("queue_id", queue_id, -MAX_INT - 1, MAX_INT))
        async with self._link.time_limit("get_queue_by_id", time_limit_s):
            answer = await self._link.exchange(packet, "get_queue_by_id", repeatable=True)
            return Queue(queue_id, expect(answer, wire.GetQueueNameResponse, queue_id).queue_name)

    async def get_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return all queues."""
        async with self._link.time_limit("get_queues", time_limit_s):
            answer = await self._link.exchange(wire.GetQueues(0), "get_queues", repeatable=True)
            if plain.is_refusal(answer, ErrorCode.NO_QUEUES_EXISTING):
                return []
            return expect(answer, wire.GetQueuesResponse).queues

    async def get_active_queues(self, *, time_limit_s: float | None = None) -> list[Queue]:
        """Return the queues that hold messages which this client may read."""
        async with self._link.time_limit("get_active_queues", time_limit_s):
            answer = await self._link.exchange(wire.GetActiveQueues(0), "get_active_queues", repeatable=True)
            if plain.is_refusal(answer, ErrorCode.NO_ACTIVE_QUEUES_EXISTING):
                return []
            entries = expect(answer, wire.GetActiveQueuesResponse).queues
        # The server lists a queue once for each message.
        return list({queue.id: queue for queue in entries}.values())

    async def purge(self, queue: QueueRef, *, time_limit_s: float | None = None) -> int:
        """Remove all messages that nobody has leased; return how many there were."""
        self._link.require_extension("purge")

        async def purge(queue_id: int) -> int:
            answer = await self._link.exchange(wire.Purge(0, queue_id), "purge")
            return expect(answer, wire.Count, _subject(queue)).count

        async with self._link.time_limit("purge", time_limit_s):
            return await self._on_queue(queue, purge)

    # Clients

    async def get_clients(self, *, time_limit_s: float | None = None) -> list[KnownClient]:
        """Return all clients that the server knows."""
        self._link.require_extension("get_clients")
        async with self._link.time_limit("get_clients", time_limit_s):
            answer = await self._link.exchange(wire.ListClients(0), "get_clients", repeatable=True)
            found = expect(answer, wire.Clients).clients
        return [
            KnownClient(
                client.client_id,
                client.name,
                ClientMode.FULL if client.mode == ClientMode.FULL else ClientMode.READ_ONLY,
            )
            for client in found
        ]

    async def remove_client(self, client: ClientRef | str, *, time_limit_s: float | None = None) -> None:
        """Make the server forget a client; its messages stay. Raises ClientNotFound.

        A plain Telesto server can only forget the client of this connection.
        """
        async with self._link.time_limit("remove_client", time_limit_s):
            client_id = await self._client_named(client) if isinstance(client, str) else _client_id("client", client)
            packet: wire.Packet
            if self._link.is_wide:
                packet = wire.RemoveClient(0, client_id)
            elif client_id == self.id:
                packet = wire.DeleteClient(0)
            else:
                self._link.require_extension("removing another client")
            expect(await self._link.exchange(packet, "remove_client"), wire.Success, client_id)

    async def _client_named(self, name: str) -> int:
        if name == self.name and self.id is not None:
            return self.id
        for client in await self.get_clients():
            if client.name == name:
                return client.id
        raise ClientNotFound(name)

    # Putting

    async def put(
        self,
        queue: QueueRef,
        body: bytes | str,
        *,
        receiver: ClientRef | None = None,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> int | None:
        """Put a message into a queue; on return it is committed. Return its id, None from a plain server."""
        receiver_id = _receiver_id(receiver)
        async with self._link.time_limit("put", time_limit_s):
            if self._link.is_wide:
                draft = wire_draft(body, receiver_id, context, priority, ttl_s, persistent, properties)
                return (await self._put_wide([queue], [draft]))[0]
            await self._put([queue], Draft(body, receiver_id, context, priority, ttl_s, persistent, properties))
            return None

    async def put_to_queues(
        self,
        queues: Iterable[QueueRef],
        body: bytes | str,
        *,
        receiver: ClientRef | None = None,
        context: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
        persistent: bool = True,
        properties: bytes = b"",
        time_limit_s: float | None = None,
    ) -> list[int]:
        """Put a message into several queues; return its ids there, none from a plain server.

        If a queue is missing, a Flyball node stores nothing; a plain server stores it in the others. Both raise
        QueueNotFound.
        """
        draft = Draft(body, _receiver_id(receiver), context, priority, ttl_s, persistent, properties)
        async with self._link.time_limit("put_to_queues", time_limit_s):
            return await self._put(list(queues), draft)

    async def put_many(
        self, queue: QueueRef, drafts: Iterable[Draft | bytes | str], *, time_limit_s: float | None = None
    ) -> list[int]:
        """Put many messages into a queue, in that order; return their ids, none from a plain server.

        They travel in requests of up to 1000; if one fails, those before it are stored. The time limit is for
        each request. `drafts` may be a generator: no more than one request of it is held at a time.
        """
        made = (draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts)
        ids: list[int] = []
        if not self._link.is_wide:
            for draft in made:
                async with self._link.time_limit("put_many", time_limit_s):
                    await self._put([queue], draft)
            return ids
        for batch in batches(made, self._link.frame_max):
            async with self._link.time_limit("put_many", time_limit_s):
                ids += await self._put_wide([queue], batch)
        return ids

    async def _put(self, queues: Sequence[QueueRef], draft: Draft) -> list[int]:
        if not queues:
            raise InvalidValue("a message is put into at least one queue")
        if self._link.is_wide:
            return await self._put_wide(queues, [to_wire(draft)])
        queue_ids = [await self._queue_id(queue) for queue in queues]
        await plain.put(self._link, queue_ids, draft, _subject(queues[0]))
        return []

    async def _put_wide(self, queues: Sequence[QueueRef], drafts: list[wire.WireDraft]) -> list[int]:
        if len(queues) == 1:
            return await self._on_queue(queues[0], lambda queue_id: self._put_now([queue_id], drafts, queues[0]))
        try:
            return await self._put_now([await self._queue_id(queue) for queue in queues], drafts, queues[0])
        except QueueNotFound:
            # A name may stand for a new queue now; whichever is missing is named by its look-up.
            fresh = [await self._queue_id(queue, fresh=True) for queue in queues]
            for queue, queue_id in zip(queues, fresh, strict=True):
                if not isinstance(queue, str):
                    await self.get_queue_by_id(queue_id)
            return await self._put_now(fresh, drafts, queues[0])

    async def _put_now(self, queue_ids: list[int], drafts: list[wire.WireDraft], queue: QueueRef) -> list[int]:
        answer = await self._link.exchange(wire.Put(0, queue_ids, drafts), "put")
        return expect(answer, wire.PutDone, _subject(queue)).message_ids

    async def send_request_response(
        self,
        queue: QueueRef,
        body: bytes | str,
        *,
        receiver: ClientRef | None = None,
        priority: int = 0,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage:
        """Put a request into a queue and return the response to it, which comes through the same queue.

        Whoever takes the request answers with `reply`. Raises RequestTimeout if no response comes within the time
        limit; one that comes later stays in the queue. If the connection breaks while the request is put, the
        outcome is unknown (ConnectionLost); afterwards the client goes on waiting on the next connection.
        """
        context = next(self._contexts)
        draft = Draft(body, _receiver_id(receiver), context, priority)
        limit_s = self._link.limit_s(time_limit_s)
        give_up_at = asyncio.get_running_loop().time() + limit_s
        async with self._link.time_limit("send_request_response", limit_s):
            await self._put([queue], draft)
            selector = wire.WireSelector(unaddressed=False, context=context)
            found = await self._take(queue, selector, None, 1, give_up_at, repeatable=True)
        if not found:
            raise RequestTimeout("send_request_response", limit_s)
        return found[0]

    async def reply(
        self, request: ReceivedMessage, body: bytes | str, *, time_limit_s: float | None = None
    ) -> int | None:
        """Answer a request: put a message for its sender into its queue, with its context and priority."""
        if request.sender is None:
            raise InvalidValue(f"message {request.id} has no sender to reply to")
        return await self.put(
            request.queue_id,
            body,
            receiver=request.sender,
            context=request.context,
            priority=request.priority,
            time_limit_s=time_limit_s,
        )

    # Reading

    async def take(
        self,
        queue: QueueRef,
        *,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
        wait_s: float = 0.0,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage | None:
        """Remove a message and return it; None if none is there, or comes within `wait_s`.

        A client sees what is addressed to it and, unless `only_addressed`, what is addressed to nobody. The order
        is oldest first unless given; at a plain server it is by priority. The server waits, only a plain one is
        asked again and again. The time limit is counted beside the waiting.

        The message is gone from the server when this returns. When it raises ConnectionLost a message may have
        been removed and lost: use `consume` where that matters. After a cancellation or RequestTimeout, a message
        that still comes goes to the next call that asks for the same.
        """
        found = await self.take_many(
            queue,
            1,
            order=order,
            sender=sender,
            context=context,
            only_addressed=only_addressed,
            wait_s=wait_s,
            time_limit_s=time_limit_s,
        )
        return found[0] if found else None

    async def take_many(
        self,
        queue: QueueRef,
        most: int,
        *,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
        wait_s: float = 0.0,
        time_limit_s: float | None = None,
    ) -> list[ReceivedMessage]:
        """Remove up to `most` messages (10000 at the most) and return them; like `take` otherwise.

        Waits for the first only. There may be more than were returned: a request has room for so many bytes.
        """
        selector = _selector(order, sender, context, only_addressed)
        check_int("most", most, 1, MOST_AT_ONCE)
        give_up_at = asyncio.get_running_loop().time() + check_seconds("wait_s", wait_s, MAX_WAIT_S)
        async with self._link.time_limit("take", time_limit_s, more_s=wait_s):
            return await self._take(queue, selector, order, most, give_up_at if wait_s else -math.inf)

    async def _take(
        self,
        queue: QueueRef,
        selector: wire.WireSelector,
        order: Order | None,
        most: int,
        give_up_at: float,
        repeatable: bool = False,
    ) -> list[ReceivedMessage]:
        if self._link.is_wide:
            return await self._on_queue(
                queue,
                lambda queue_id: self._take_wide(queue_id, queue, selector, most, give_up_at, repeatable),
            )
        packet = plain.reading_packet(await self._queue_id(queue), selector, order)
        found: list[ReceivedMessage] = []
        while len(found) < most:
            message = await plain.read(self._link, packet, repeatable=repeatable)
            if message is not None:
                found.append(message)
            elif found or _left_s(give_up_at) <= 0:
                break
            else:
                await asyncio.sleep(min(RETRY_DELAY_S, _left_s(give_up_at)))
        return found

    async def _take_wide(
        self,
        queue_id: int,
        queue: QueueRef,
        selector: wire.WireSelector,
        most: int,
        give_up_at: float,
        repeatable: bool,
    ) -> list[ReceivedMessage]:
        packet = wire.Take(0, queue_id, selector, most, 0)
        key = packet.payload()
        while True:
            left_s = min(_left_s(give_up_at), MAX_WAIT_S)
            packet.wait_ms = math.ceil(left_s * 1000)
            adopted = self._abandoned.adopt(key, left_s > 0)
            if adopted is not None:
                try:
                    async with asyncio.timeout(left_s if left_s > 0 else None):
                        answer = await self._answer_of(key, adopted)
                except TimeoutError:
                    return []
            else:
                answer = await self._link.run(partial(self._start_take, packet, key), repeatable)
            records = expect(answer, wire.Messages, _subject(queue)).records
            if records or adopted is None:
                return [from_record(record) for record in records]

    async def _start_take(self, packet: wire.Take, key: bytes, connection: Connection) -> wire.Packet:
        return await self._answer_of(key, await connection.start(packet, "take", waits=packet.wait_ms > 0))

    async def _answer_of(self, key: bytes, answer: asyncio.Future[wire.Packet]) -> wire.Packet:
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._abandoned.leave(key, answer)
            raise

    async def peek(
        self,
        queue: QueueRef,
        *,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
        time_limit_s: float | None = None,
    ) -> ReceivedMessage | None:
        """Return the message that `take` would remove, without removing it."""
        self._link.require_extension("peek")
        selector = _selector(order, sender, context, only_addressed)

        async def peek(queue_id: int) -> list[wire.Record]:
            answer = await self._link.exchange(wire.Peek(0, queue_id, selector), "peek", repeatable=True)
            return expect(answer, wire.Messages, _subject(queue)).records

        async with self._link.time_limit("peek", time_limit_s):
            found = await self._on_queue(queue, peek)
        return from_record(found[0]) if found else None

    async def read_messages(
        self, queue: QueueRef, *, most: int | None = None, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return the messages of a queue, whoever they are addressed to, oldest first, without removing them.

        All of them, or the first `most`. For a long queue use `iterate_messages`. The time limit is for each page.
        """
        found: list[ReceivedMessage] = []
        if most is not None and check_int("most", most, 0, MAX_LONG) == 0:
            return found
        async for message in self.iterate_messages(queue, time_limit_s=time_limit_s):
            found.append(message)
            if len(found) == most:
                break
        return found

    async def iterate_messages(
        self, queue: QueueRef, *, page: int = 1000, time_limit_s: float | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of a queue like `read_messages`, a page at a time."""
        check_int("page", page, 1, MOST_AT_ONCE)
        after_id = 0
        while True:
            async with self._link.time_limit("read_messages", time_limit_s):
                found = await self._page(queue, after_id, page)
            for message in found:
                yield message
            if not found or not self._link.is_wide:
                return
            after_id = found[-1].id

    async def read_page(
        self, queue: QueueRef, *, after_id: int = 0, most: int = 1000, time_limit_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return up to `most` messages (10000 at the most) with an id above `after_id`, oldest first.

        Like `read_messages` otherwise. There may be more than were returned: an answer has room for so many bytes.
        None means that there are no more.
        """
        self._link.require_extension("read_page")
        check_int("most", most, 1, MOST_AT_ONCE)
        async with self._link.time_limit("read_page", time_limit_s):
            return await self._page(queue, check_int("after_id", after_id, 0, MAX_LONG), most)

    async def list_ids(
        self, queue: QueueRef, *, after_id: int = 0, most: int = MOST_IDS, time_limit_s: float | None = None
    ) -> list[int]:
        """Return the ids of the messages that `read_page` would return, up to 100000 of them.

        They count up. All messages up to the last of them are committed: whoever reads them again finds the same, as
        long as nobody removes any and none expires.
        """
        self._link.require_extension("list_ids")
        check_int("after_id", after_id, 0, MAX_LONG)
        check_int("most", most, 1, MOST_IDS)

        async def list_ids(queue_id: int) -> list[int]:
            packet = wire.ListIds(0, queue_id, after_id, most)
            answer = await self._link.exchange(packet, "list_ids", repeatable=True)
            return expect(answer, wire.MessageIds, _subject(queue)).message_ids

        async with self._link.time_limit("list_ids", time_limit_s):
            return await self._on_queue(queue, list_ids)

    async def remove_messages(self, queue: QueueRef, *, up_to_id: int, time_limit_s: float | None = None) -> int:
        """Remove all messages up to an id that nobody has leased; return how many there were.

        On return they are gone for good. After a lost connection it is asked for again, and those that went before
        are not counted. The time limit is for each 10000.
        """
        self._link.require_extension("remove_messages")
        check_int("up_to_id", up_to_id, 0, MAX_LONG)

        async def remove(queue_id: int) -> int:
            packet = wire.Remove(0, queue_id, up_to_id, MOST_AT_ONCE)
            answer = await self._link.exchange(packet, "remove_messages", repeatable=True)
            return expect(answer, wire.Count, _subject(queue)).count

        total = 0
        while True:
            async with self._link.time_limit("remove_messages", time_limit_s):
                count = await self._on_queue(queue, remove)
            total += count
            if count < MOST_AT_ONCE:
                return total

    async def _page(self, queue: QueueRef, after_id: int, most: int) -> list[ReceivedMessage]:
        async def read(queue_id: int) -> list[ReceivedMessage]:
            if not self._link.is_wide:
                return await self._read_plain(queue_id)
            packet = wire.ListMessages(0, queue_id, after_id, most)
            answer = await self._link.exchange(packet, "read_messages", repeatable=True)
            return [from_record(record) for record in expect(answer, wire.Messages, _subject(queue)).records]

        return await self._on_queue(queue, read)

    async def _read_plain(self, queue_id: int) -> list[ReceivedMessage]:
        answer = await self._link.exchange(wire.GetMessages(0, queue_id), "read_messages", repeatable=True)
        if plain.is_refusal(answer, ErrorCode.NO_MESSAGES_IN_QUEUE):
            return []
        return [from_plain(message) for message in expect(answer, wire.GetMessagesResponse).messages]

    def consume(
        self,
        queue: QueueRef,
        *,
        prefetch: float = 10,
        order: Order | None = None,
        sender: ClientRef | None = None,
        context: int | None = None,
        only_addressed: bool = False,
    ) -> Consumer:
        """Return a consumer: `async with client.consume(queue) as consumer: async for delivery in consumer: ...`.

        Up to `prefetch` messages may be delivered and not settled at a time; a fraction holds on average, 0 stops
        the deliveries.
        """
        self._link.require_extension("consume")
        selector = _selector(order, sender, context, only_addressed)
        return Consumer(self._link, lambda: self._queue_id(queue, fresh=True), _subject(queue), selector, prefetch)

    # Topics

    def topic(self, name: str) -> Topic:
        """Return a topic to publish to: `await client.topic("news").publish("it rains")`."""
        return Topic(self._link, check_name(name))

    def subscribe(
        self, topic: str, *, durable: str | None = None, pattern: str = ALL, prefetch: float = 10
    ) -> Consumer:
        """Return a consumer of what is published to a topic, or to one below it, with a key that fits the pattern.

        With the name of a `durable` subscription it gets what was published since that was made, also while nobody
        consumed; several consumers of the name share the messages. Without, it gets what is published while it is
        open and connected. Opening it raises TopicNotFound.
        """
        self._link.require_extension("subscribe")
        subscription = "" if durable is None else check_name(durable)
        find_queue = partial(subscribe, self._link, check_name(topic), subscription, pattern)
        return Consumer(self._link, find_queue, topic, _selector(None, None, None, False), prefetch)

    async def create_topic(self, name: str, *, parent: str | None = None, time_limit_s: float | None = None) -> None:
        """Create a topic, or see that it is there. What is published to it also reaches subscribers of the parent."""
        await self.manage("topic.create", name=check_name(name), parent=parent, time_limit_s=time_limit_s)

    async def delete_topic(self, name: str, *, time_limit_s: float | None = None) -> None:
        """Delete a topic. Raises CommandRefused while it has children or durable subscriptions."""
        await self.manage("topic.delete", name=check_name(name), time_limit_s=time_limit_s)

    async def unsubscribe(self, topic: str, durable: str, *, time_limit_s: float | None = None) -> None:
        """End a durable subscription, with the messages that wait. Raises CommandRefused while it has a consumer."""
        await self.manage(
            "topic.unsubscribe", name=check_name(topic), subscription=check_name(durable), time_limit_s=time_limit_s
        )

    # Names of queues

    async def _look_up(self, name: str) -> int:
        packet = wire.GetQueueId(0, check_name(name))
        answer = await self._link.exchange(packet, "get_queue_by_name", repeatable=True)
        return expect(answer, wire.GetQueueIdResponse, name).queue_id

    async def _queue_id(self, queue: QueueRef, *, fresh: bool = False) -> int:
        if isinstance(queue, Queue):
            return queue.id
        if not isinstance(queue, str):
            return check_int("a queue id", queue, -MAX_INT - 1, MAX_INT)
        known = None if fresh else self._queue_ids.get(queue)
        if known is not None:
            return known
        queue_id = await self._look_up(queue)
        # A plain server answers a read from a deleted queue as if it were empty: there, names are always looked up.
        if self._link.is_wide:
            if len(self._queue_ids) >= _MOST_NAMES:
                self._queue_ids.clear()
            self._queue_ids[queue] = queue_id
        return queue_id

    async def _on_queue(self, queue: QueueRef, run: Callable[[int], Awaitable[T]]) -> T:
        """Call `run` with the queue's id; again if the name stands for a new queue meanwhile."""
        was_known = isinstance(queue, str) and queue in self._queue_ids
        try:
            return await run(await self._queue_id(queue))
        except QueueNotFound:
            if not was_known:
                raise
            assert isinstance(queue, str)
            self._queue_ids.pop(queue, None)
        return await run(await self._queue_id(queue))


def _left_s(give_up_at: float) -> float:
    return max(0.0, give_up_at - asyncio.get_running_loop().time())


def _subject(queue: QueueRef) -> int | str:
    return queue.name if isinstance(queue, Queue) else queue


def _client_id(what: str, client: ClientRef) -> int:
    return check_nonzero(what, client.id if isinstance(client, KnownClient) else client, MAX_INT)


def _receiver_id(receiver: ClientRef | None) -> int | None:
    return None if receiver is None else _client_id("receiver", receiver)


def _selector(
    order: Order | None, sender: ClientRef | None, context: int | None, only_addressed: bool
) -> wire.WireSelector:
    return wire.WireSelector(
        not only_addressed,
        None if sender is None else _client_id("sender", sender),
        None if context is None else check_nonzero("context", context, MAX_LONG),
        Order.OLDEST if order is None else Order(order),
    )
