"""Publishers that wait for confirms and consumers that acknowledge, reject and requeue, while the node is killed.

What was confirmed must be in a queue afterwards, unless a client has sent an acknowledgement for it. What was
published and not confirmed may be there or not, and what was acknowledged may have come back.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pika import spec

from tests.broker.protocols.amqp.compatibility.peer import ConnectionEnded, Peer
from tests.nodes import ANSWER_LIMIT_S, ServeProcess

QUEUE = "amqp"
DEAD = "amqp dead letters"

PUBLISHERS = 3
CONSUMERS = 2
MOST_UNCONFIRMED = 20
PREFETCH = 10
SOME = 20

PERSISTENT = spec.BasicProperties(delivery_mode=2)

Broken = (ConnectionEnded, OSError)


@dataclass(slots=True)
class Ledger:
    """Record of one client."""

    published: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    refused: int = 0
    # Messages it has sent an ack for; whether the ack arrived is unknown.
    acknowledged: set[str] = field(default_factory=set)


class Client:
    """Works in a thread of its own until it is stopped or its connection breaks."""

    def __init__(self, peer: Peer, work: Callable[[Client], None], name: str, seed: int) -> None:
        self.peer = peer
        self.name = name
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        self.is_over = threading.Event()
        # Set when it has done some work.
        self.is_under_way = threading.Event()
        self.rejected = 0
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> Ledger:
        self.is_over.set()
        self.peer.hang_up()
        self._thread.join()
        self.peer.__exit__(None, None, None)
        if self._error is not None:
            raise self._error
        return self.ledger

    def _run(self) -> None:
        try:
            self._work(self)
        except Broken:
            pass
        except BaseException as error:
            self._error = error


def publish(client: Client) -> None:
    """Publish some messages at a time and wait for their confirms."""
    peer, ledger = client.peer, client.ledger
    peer.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
    last = 0
    while not client.is_over.is_set():
        open_bodies: dict[int, str] = {}
        for _ in range(client.chance.randrange(1, MOST_UNCONFIRMED)):
            last += 1
            open_bodies[last] = f"{client.name} {last}"
            ledger.published.add(open_bodies[last])
            peer.publish(open_bodies[last].encode(), routing_key=QUEUE, properties=PERSISTENT)
        while open_bodies:
            answer = peer.read_frame().method
            if isinstance(answer, spec.Connection.Close):
                return
            numbers = [
                n for n in open_bodies if n == answer.delivery_tag or (answer.multiple and n < answer.delivery_tag)
            ]
            assert numbers, f"confirmed twice: {answer}"
            for number in numbers:
                body = open_bodies.pop(number)
                if isinstance(answer, spec.Basic.Ack):
                    ledger.confirmed.add(body)
                else:
                    ledger.refused += 1
        if len(ledger.confirmed) >= SOME:
            client.is_under_way.set()


def consume(client: Client) -> None:
    """Acknowledge most of what comes, reject some and requeue some."""
    peer, ledger = client.peer, client.ledger
    peer.ask(spec.Basic.Qos(prefetch_count=PREFETCH), spec.Basic.QosOk)
    peer.ask(spec.Basic.Consume(queue=QUEUE, consumer_tag="tag"), spec.Basic.ConsumeOk)
    while not client.is_over.is_set():
        delivery = peer.try_content(spec.Basic.Deliver, spec.Connection.Close)
        if delivery is None:
            return
        tag, dice = delivery.method.delivery_tag, client.chance.random()
        if dice < 0.6:
            ledger.acknowledged.add(delivery.body.decode())
            peer.send(spec.Basic.Ack(delivery_tag=tag))
        else:
            client.rejected += dice <= 0.9
            peer.send(spec.Basic.Nack(delivery_tag=tag, requeue=dice > 0.9))
        if client.rejected >= SOME:
            client.is_under_way.set()


class Crowd:
    """The AMQP clients of all rounds."""

    def __init__(self, node: ServeProcess) -> None:
        self._node = node
        self._published: set[str] = set()
        self._clients: list[Client] = []
        self.confirmed = 0
        self.unconfirmed = 0
        self.acknowledged = 0
        self.dead = 0

    def set_up(self) -> None:
        with self._connect() as peer:
            peer.ask(spec.Queue.Declare(queue=DEAD, durable=True), spec.Queue.DeclareOk)
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
            peer.ask(spec.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments), spec.Queue.DeclareOk)

    def start(self, number: int, chance: random.Random) -> None:
        """Let clients work in the round of that number."""
        for work, count in ((publish, PUBLISHERS), (consume, CONSUMERS)):
            for at in range(count):
                name = f"{number}.{work.__name__}.{at}"
                self._clients.append(Client(self._connect(), work, name, chance.randrange(2**32)))

    def wait_until_under_way(self) -> None:
        """Wait until each of the clients has done some work."""
        for client in self._clients:
            assert client.is_under_way.wait(ANSWER_LIMIT_S), f"{client.name} does not get on"

    def check(self) -> None:
        """Stop the clients and see what is left. Raises AssertionError if a promise was broken."""
        clients, self._clients = self._clients, []
        ledgers = [client.stop() for client in clients]
        left, dead = self._drain(QUEUE), self._drain(DEAD)
        for ledger in ledgers:
            self._published |= ledger.published
        found = [*left, *dead]
        assert len(found) == len(set(found)), f"found twice: {sorted(b for b in found if found.count(b) > 1)}"
        assert set(found) <= self._published, f"nobody published this: {sorted(set(found) - self._published)}"
        confirmed = {body for ledger in ledgers for body in ledger.confirmed}
        acknowledged = {body for ledger in ledgers for body in ledger.acknowledged}
        lost = confirmed - acknowledged - set(found)
        assert not lost, f"confirmed and lost: {sorted(lost)}"
        self.confirmed += len(confirmed)
        self.unconfirmed += sum(len(ledger.published - ledger.confirmed) for ledger in ledgers)
        self.acknowledged += len(acknowledged)
        self.dead += len(dead)
        expect_order(left)

    def _connect(self) -> Peer:
        return Peer(*self._node.address("amqp")).open()

    def _drain(self, queue: str) -> list[str]:
        """Take all that is left, in its order."""
        bodies: list[str] = []
        with self._connect() as peer:
            while True:
                peer.send(spec.Basic.Get(queue=queue, no_ack=True))
                got = peer.try_content(spec.Basic.GetOk, spec.Basic.GetEmpty)
                if got is None:
                    return bodies
                bodies.append(got.body.decode())


def expect_order(bodies: list[str]) -> None:
    """Expect each publisher's messages in the order in which it sent them."""
    last: dict[str, int] = {}
    for body in bodies:
        name, number = body.split(" ")
        assert int(number) > last.get(name, 0), f"{body} came after {name} {last[name]}"
        last[name] = int(number)
