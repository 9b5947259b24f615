"""Short courses of events that once lost messages or ended a node, each judged by the answers that clients got.

python -m bench.chaos --scenario kill-in-commit
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.broker.cluster.simulation.clients import PERSISTENT, AmqpConnection, Broken, Troubles
from tests.broker.cluster.simulation.features import LARGEST_COUNT, dead_letters_to

from bench.chaos.nodes import Site
from flyball.broker.wire import amqp as wire
from flyball.errors import FlyballError, LabError
from flyball.lab.history import Checker, Kind, Recorder, Verdict

ANSWER_S = 20.0
STOP = "stop"
COPIES = 1_100_000
JOBS = 200


@dataclass(slots=True)
class Stage:
    """Nodes, and clients that note requests and answers."""

    site: Site
    recorder: Recorder
    complaints: list[str] = field(default_factory=list)

    async def connect(self, name: str) -> AmqpConnection:
        connection = AmqpConnection()
        await connection.open(self.site.address(name, "amqp"))
        return connection

    async def declare(self, name: str, queue: str, **arguments: Any) -> AmqpConnection:
        """Declare a durable queue on a node; return the connection."""
        connection = await self.connect(name)
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        declare = wire.QueueDeclare(1, queue, False, True, False, False, False, named)
        await connection.ask(declare, wire.QueueDeclareOk)
        return connection

    async def publisher(self, name: str) -> AmqpConnection:
        """Return a connection whose messages are confirmed."""
        connection = await self.connect(name)
        await connection.ask(wire.ConfirmSelect(1, False), wire.ConfirmSelectOk)
        return connection

    def publish(self, connection: AmqpConnection, producer: str, queue: str, properties: bytes = PERSISTENT) -> int:
        """Publish a message and note its answer when it comes."""
        number = self.recorder.publish(producer, queue)
        answer = connection.publish(queue, f"{producer} {number}".encode(), properties)

        def note(answer: asyncio.Future[bool]) -> None:
            if answer.cancelled() or answer.exception() is not None:
                self.recorder.note(Kind.UNKNOWN, producer, number)
            else:
                self.recorder.note(Kind.CONFIRMED if answer.result() else Kind.REFUSED, producer, number)

        answer.add_done_callback(note)
        return number

    async def confirmed(self, connection: AmqpConnection) -> None:
        """Wait until everything is answered."""
        with suppress(TimeoutError, *Troubles):
            async with asyncio.timeout(ANSWER_S):
                while connection.confirms:
                    await asyncio.wait(list(connection.confirms.values()))
        # The answers are noted in the next turn of the loop.
        await asyncio.sleep(0)

    async def consume(self, connection: AmqpConnection, queue: str, *, prefetch: int = 0) -> asyncio.Queue[Any]:
        """Consume; what comes is noted and put into a queue as delivery tag and key."""
        arrived: asyncio.Queue[Any] = asyncio.Queue()

        def take(delivery: wire.BasicDeliver) -> None:
            producer, number = delivery.body.decode().split(" ")
            self.recorder.note(Kind.DELIVERED, producer, int(number), who="consumer", queue=queue)
            arrived.put_nowait((delivery.delivery_tag, (producer, int(number))))

        connection.on_delivery = take
        await connection.ask(wire.BasicQos(1, 0, prefetch, False), wire.BasicQosOk)
        consume = wire.BasicConsume(1, queue, "", False, False, False, False, {})
        await connection.ask(consume, wire.BasicConsumeOk)
        return arrived

    async def restart(self, name: str, *, gracefully: bool) -> None:
        """End a node and start it again."""
        node = self.site.nodes[name]
        what = STOP if gracefully else "kill -9"
        self.recorder.upheaval(Kind.DISTURBED, what)
        if gracefully:
            if code := await node.stop():
                self.complaints.append(f"node {name} ended with code {code}: {node.last_words()}")
        else:
            await node.kill()
        await self.start(name)
        self.recorder.upheaval(Kind.CALM, what)

    async def start(self, name: str) -> None:
        try:
            await self.site.start(name)
        except LabError as error:
            self.complaints.append(str(error))

    def look_after(self) -> None:
        """Complain of nodes that have ended by themselves."""
        for name, node in self.site.nodes.items():
            if not node.is_running:
                self.complaints.append(f"node {name} has ended by itself: {node.last_words()}")

    async def look_into(self, name: str, *queues: str) -> None:
        """Note what is in queues, and leave it there."""
        for queue in queues:
            try:
                connection = await self.connect(name)
                got: asyncio.Queue[Any] = asyncio.Queue()
                connection.on_delivery = got.put_nowait
                count = await self.count(name, queue)
                consume = wire.BasicConsume(1, queue, "", False, False, False, False, {})
                await connection.ask(consume, wire.BasicConsumeOk)
                async with asyncio.timeout(ANSWER_S):
                    for _ in range(count):
                        producer, number = (await got.get()).body.decode().split(" ")
                        self.recorder.note(Kind.FOUND, producer, int(number), queue=queue)
                connection.close()
            except Troubles as error:
                self.complaints.append(f"queue {queue} cannot be looked into: {type(error).__name__}: {error}")

    async def count(self, name: str, queue: str) -> int:
        """Return how many messages of a queue are ready."""
        connection = await self.connect(name)
        declare = wire.QueueDeclare(1, queue, True, False, False, False, False, {})
        answer = await connection.ask(declare, wire.QueueDeclareOk)
        connection.close()
        return int(answer.message_count)


async def poisoned_dead_letters(stage: Stage) -> None:
    """Messages whose x-death count is the largest number expire and are rejected, next to healthy ones."""
    await stage.declare("a", "dead-letters")
    await stage.declare("a", "dying", x_message_ttl=200, **dead_letters_to("dead-letters"))
    await stage.declare("a", "rejected", **dead_letters_to("dead-letters"))
    await stage.declare("a", "healthy")
    long_key = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 300}
    publisher = await stage.publisher("a")
    # Refused where it is declared, or nothing that dies in it may harm other clients.
    with suppress(*Troubles):
        await stage.declare("a", "far", x_message_ttl=200, **long_key)
        stage.publish(publisher, "far", "far")
    for queue, reason in (("dying", "expired"), ("rejected", "rejected")):
        death: wire.Value = {"queue": queue, "reason": reason, "routing-keys": [queue], "count": LARGEST_COUNT}
        headers = wire.write_table({"x-death": [death]})
        stage.publish(publisher, queue, queue, wire.Properties(delivery_mode=2, headers=headers).encode())
    for _ in range(20):
        stage.publish(publisher, "healthy", "healthy")
    await stage.confirmed(publisher)
    rejecting = await stage.connect("a")
    arrived = await stage.consume(rejecting, "rejected")
    with suppress(*Troubles):
        async with asyncio.timeout(ANSWER_S):
            tag, _ = await arrived.get()
            rejecting.send(wire.BasicReject(1, tag, False))
            await rejecting.ask(wire.BasicQos(1, 0, 10, False), wire.BasicQosOk)
    rejecting.close()
    # Housekeeping looks at what has expired once a second.
    await asyncio.sleep(2.5)
    stage.look_after()
    await stage.restart("a", gracefully=True)
    await asyncio.sleep(2.0)
    stage.look_after()
    await stage.look_into("a", "dead-letters", "dying", "rejected", "healthy")


async def kill_in_commit(stage: Stage) -> None:
    """A request is acknowledged and answered in a transaction while it is not yet stored, and the node is killed."""
    await stage.declare("a", "requests")
    await stage.declare("a", "replies")
    await stage.declare("a", "decoys")
    publisher = await stage.publisher("a")
    consumer = await stage.connect("a")
    await consumer.ask(wire.TxSelect(1), wire.TxSelectOk)
    arrived = await stage.consume(consumer, "requests")
    # So slow that nothing of what follows is written before the node is killed.
    stage.site.store_wires["a"].delay_s = 1.0
    stage.publish(publisher, "decoy", "decoys")
    # The decoy is on its way to the store by then, and the request waits for the next batch.
    await asyncio.sleep(0.2)
    stage.publish(publisher, "request", "requests")
    tag, key = await arrived.get()
    reply = stage.recorder.publish("reply", "replies", "t1")
    stage.recorder.note(Kind.ACK, *key, who="consumer", transaction="t1")
    consumer.send_message("replies", f"reply {reply}".encode())
    consumer.send(wire.BasicAck(1, tag, False))
    consumer.send(wire.TxCommit(1))
    await asyncio.sleep(0.5)
    stage.site.store_wires["a"].delay_s = 0.0
    await stage.restart("a", gracefully=False)
    await stage.look_into("a", "requests", "replies", "decoys")


async def failed_commit(stage: Stage) -> None:
    """A transaction acknowledges at one node and publishes to a queue of another, which dies before the commit."""
    await stage.declare("a", "requests")
    await stage.declare("b", "replies")
    publisher = await stage.publisher("a")
    consumer = await stage.connect("a")
    await consumer.ask(wire.TxSelect(1), wire.TxSelectOk)
    arrived = await stage.consume(consumer, "requests")
    stage.publish(publisher, "request", "requests")
    await stage.confirmed(publisher)
    tag, key = await arrived.get()
    reply = stage.recorder.publish("reply", "replies", "t1")
    stage.recorder.note(Kind.ACK, *key, who="consumer", transaction="t1")
    consumer.send_message("replies", f"reply {reply}".encode())
    consumer.send(wire.BasicAck(1, tag, False))
    stage.recorder.upheaval(Kind.DISTURBED, "kill -9")
    # It takes the message and does not say so; it is killed before it does.
    stage.site.nodes["b"].send(signal.SIGSTOP)
    consumer.send(wire.TxCommit(1))
    await asyncio.sleep(1.0)
    await stage.site.nodes["b"].kill()
    with suppress(*Troubles):
        async with asyncio.timeout(ANSWER_S):
            await consumer.is_ended.wait()
    consumer.close()
    await stage.start("b")
    stage.recorder.upheaval(Kind.CALM, "kill -9")
    await stage.look_into("a", "requests", "replies")


async def poisoned_batch(stage: Stage) -> None:
    """Jobs are published and acknowledged while another client declares what the store cannot encode."""
    await stage.declare("a", "jobs")
    await stage.declare("a", "others")
    publisher = await stage.publisher("a")
    for _ in range(JOBS):
        stage.publish(publisher, "job", "jobs")
    await stage.confirmed(publisher)
    consumer = await stage.connect("a")
    arrived = await stage.consume(consumer, "jobs")
    # All changes of some milliseconds are in one batch.
    stage.site.store_wires["a"].delay_s = 0.02
    for part in range(20):
        with suppress(*Troubles):
            poisoner = await stage.connect("a")
            far = {"x-any": wire.Timestamp(1 << 62)}
            poisoner.send(wire.QueueDeclare(1, f"poison-{part}", False, True, False, False, True, dict(far)))
        keys = []
        for _ in range(JOBS // 20):
            stage.publish(publisher, "other", "others")
            tag, key = await arrived.get()
            stage.recorder.note(Kind.ACK, *key, who="consumer")
            consumer.send(wire.BasicAck(1, tag, False))
            keys.append(key)
        await consumer.ask(wire.BasicQos(1, 0, 0, False), wire.BasicQosOk)
        for key in keys:
            stage.recorder.note(Kind.ACK_TAKEN, *key, who="consumer")
    await stage.confirmed(publisher)
    stage.site.store_wires["a"].delay_s = 0.0
    consumer.close()
    await stage.restart("a", gracefully=True)
    await stage.look_into("a", "jobs", "others")


async def copies(stage: Stage) -> None:
    """One request of ThorBangMQ names its queue more than a million times; then the node is stopped and started."""
    reader, writer = await asyncio.open_connection(*stage.site.nodes["a"].addresses["thorbang"])

    async def ask(request: bytes) -> bytes:
        writer.write(request + b"\0")
        return (await reader.readuntil(b"\0"))[:-1]

    client, queue = await ask(b"CREATECLIENT,c"), await ask(b"CREATEQUEUE,copies")
    with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(120.0):
            await ask(b"MSG,0,%b,%b,1,0,x" % (client, b";".join([queue] * COPIES)))
    writer.close()
    last = -1
    with suppress(TimeoutError):
        async with asyncio.timeout(120.0):
            # What was accepted may still be on its way into the queue.
            while (count := await stage.count("a", "copies")) != last:
                last = count
                await asyncio.sleep(2.0)
    stage.recorder.count("copies", last)
    await stage.restart("a", gracefully=True)
    stage.recorder.count("copies", await stage.count("a", "copies"))


@dataclass(frozen=True, slots=True)
class Scenario:
    run: Callable[[Stage], Awaitable[None]]
    nodes: tuple[str, ...] = ("a",)


SCENARIOS: dict[str, Scenario] = {
    "poisoned-dead-letters": Scenario(poisoned_dead_letters),
    "kill-in-commit": Scenario(kill_in_commit),
    "failed-commit": Scenario(failed_commit, ("a", "b")),
    "poisoned-batch": Scenario(poisoned_batch),
    "copies": Scenario(copies),
}


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    name: str
    duration_s: float
    verdict: Verdict
    complaints: Sequence[str]

    @property
    def is_good(self) -> bool:
        return self.verdict.is_clean and not self.complaints

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.duration_s:.0f} s): {self.verdict}"]
        return "\n".join([*lines, *(f"COMPLAINT: {complaint}" for complaint in self.complaints)])


async def play(name: str, folder: Path) -> ScenarioResult:
    """Play a scenario on new nodes and judge it."""
    scenario = SCENARIOS[name]
    began_s = time.monotonic()
    checker = Checker(lambda queue: False)
    site = Site(folder, list(scenario.nodes), {"lease_s": 4, "thorbang": "127.0.0.1:0"})
    async with site:
        stage = Stage(site, Recorder(checker.note))
        try:
            await scenario.run(stage)
        except (FlyballError, Broken, OSError, TimeoutError) as error:
            stage.complaints.append(f"{type(error).__name__}: {error}")
        stage.look_after()
    return ScenarioResult(name, time.monotonic() - began_s, checker.finish(), stage.complaints)
