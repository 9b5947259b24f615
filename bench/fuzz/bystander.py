"""An honest client next to the fuzzed ones: it shows whether the node hangs, and whether it loses messages.

It holds its messages as an exclusive consumer: a peer of a link is trusted, and a fuzzed one takes what is ready.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from bench.fuzz.node import FuzzedNode
from flyball.broker.wire import telesto

QUEUE = "ledger"
VHOST = "bystander"
PAUSE_S = 0.2
# After this many rounds it removes what fuzzed clients have left, so that the node's definitions stay few.
TIDY_ROUNDS = 60


class Bystander:
    """Publishes persistent messages with confirms and acknowledges every other one in a transaction, in a thread."""

    def __init__(self, node: FuzzedNode) -> None:
        self._node = node
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander", daemon=True)
        # When the round trip in progress has begun; 0 between two.
        self.since_s = 0.0
        self.worst_s = 0.0
        self.rounds = 0
        self.errors: list[str] = []
        self._sent = 0
        self._confirmed: set[bytes] = set()
        # Those in a transaction whose outcome is unknown.
        self._doubtful: set[bytes] = set()
        self._acked: set[bytes] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """Return whether it has ended in time."""
        self._is_over.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    @property
    def waits_s(self) -> float:
        since_s = self.since_s
        return time.monotonic() - since_s if since_s else 0.0

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                connection = self._connect()
                try:
                    self._work(connection)
                finally:
                    if connection.is_open:
                        connection.close()
            except (AMQPError, OSError) as error:
                if not self._is_over.is_set() and self._node.exit_code is None:
                    self.errors.append(f"{type(error).__name__}: {error}")
            self.since_s = 0.0
            self._is_over.wait(PAUSE_S)

    def _connect(self) -> pika.BlockingConnection:
        self.since_s = time.monotonic()
        host, port = self._node.addresses["amqp"]
        return pika.BlockingConnection(pika.ConnectionParameters(host, port, VHOST, heartbeat=0))

    def _work(self, connection: pika.BlockingConnection) -> None:
        publishing, reading = connection.channel(), connection.channel()
        publishing.confirm_delivery()
        publishing.queue_declare(QUEUE, durable=True)
        reading.tx_select()
        held: deque[tuple[int, bytes]] = deque()
        reading.basic_consume(
            QUEUE, lambda channel, method, properties, body: held.append((method.delivery_tag, body)), exclusive=True
        )
        persistent = pika.BasicProperties(delivery_mode=2)
        while not self._is_over.is_set():
            self.since_s = began_s = time.monotonic()
            publishing.queue_declare(QUEUE, durable=True)
            body = b"%d" % self._sent
            self._sent += 1
            self._doubtful.add(body)
            publishing.basic_publish("", QUEUE, body, persistent, mandatory=True)
            self._doubtful.discard(body)
            self._confirmed.add(body)
            connection.process_data_events(0)
            if self._sent % 2 and held:
                self._acknowledge(reading, *held.popleft())
            self._ping_telesto()
            self.worst_s = max(self.worst_s, time.monotonic() - began_s)
            self.since_s = 0.0
            self.rounds += 1
            if self.rounds % TIDY_ROUNDS == 0:
                self._node.tidy()
            self._is_over.wait(PAUSE_S)

    def _acknowledge(self, channel: BlockingChannel, tag: int, body: bytes) -> None:
        self._doubtful.add(body)
        channel.basic_ack(tag)
        channel.tx_commit()
        self._doubtful.discard(body)
        self._acked.add(body)

    def _ping_telesto(self) -> None:
        with socket.create_connection(self._node.addresses["telesto"], timeout=60) as peer:
            peer.sendall(telesto.encode(telesto.Ping(1)))
            peer.recv(100)

    def verdict(self) -> list[str]:
        """Drain its queue, over a new connection, and return what is missing or should not be there."""
        found: list[bytes] = []
        connection = self._connect()
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            found.append(got[2])
        connection.close()
        self.since_s = 0.0
        missing = self._confirmed - self._acked - self._doubtful - set(found)
        again = self._acked & set(found)
        doubled = len(found) - len(set(found))
        problems = []
        if missing:
            problems.append(f"{len(missing)} confirmed messages of the bystander are lost")
        if again:
            problems.append(f"{len(again)} acknowledged messages of the bystander came again")
        if doubled:
            problems.append(f"{doubled} messages of the bystander are there twice")
        return problems
