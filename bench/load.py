"""A closed-loop load generator for the two research protocols: Send and Pop Same Client, of the ThorBangMQ report.

Every client is a connection with one request in flight: it sends a message to itself, pops it, and again. All
clients of a process share one epoll loop without asyncio, so that the generator stays cheaper than what it measures.
"""

from __future__ import annotations

import array
import multiprocessing
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Protocol


class Dialect(Protocol):
    """How a protocol words the two requests, and when an answer is complete and right."""

    def set_up(self, address: tuple[str, int], count: int, queue_id: int | None) -> list[Client]:
        """Connect this number of clients that share a queue: that one, or a new one."""
        ...


@dataclass(slots=True)
class Client:
    """One connection, the two requests it repeats, and how their right answers begin and end."""

    connection: socket.socket
    requests: tuple[bytes, bytes]
    # What the answer to each request may begin with, from `head_at` on.
    expected: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    head_at: int
    ends_with_zero: bool
    turn: int = 0
    sent_at: float = 0.0
    partial: bytes = b""


class ThorBang:
    """ThorBangMQ: MSG and POPQ by time."""

    def __init__(self, body_bytes: int, *, keeps_messages: bool) -> None:
        self._body = "*" * body_bytes
        self._popped = (b"MSG,",) if keeps_messages else (b"MSG0", b"MSG,")

    def set_up(self, address: tuple[str, int], count: int, queue_id: int | None) -> list[Client]:
        connections = [socket.create_connection(address) for _ in range(count)]
        if queue_id is None:
            queue_id = _ask_line(connections[0], "CREATEQUEUE,send_and_pop")
        clients = []
        for number, connection in enumerate(connections):
            client_id = _ask_line(connection, f"CREATECLIENT,client_{os.getpid()}_{number}")
            requests = (
                f"MSG,{client_id},{client_id},{queue_id},1,0,{self._body}\0".encode(),
                f"POPQ,{client_id},{queue_id},1\0".encode(),
            )
            clients.append(Client(connection, requests, ((b"OK",), self._popped), 0, True))
        return clients


class Telesto:
    """Telesto: PutMessage to oneself and ReadMessage by time."""

    def __init__(self, body_bytes: int, *, keeps_messages: bool) -> None:
        self._body = b"*" * body_bytes
        self._popped = (b"\x34",) if keeps_messages else (b"\x05",)

    def set_up(self, address: tuple[str, int], count: int, queue_id: int | None) -> list[Client]:
        connections = [socket.create_connection(address) for _ in range(count)]
        clients = []
        for number, connection in enumerate(connections):
            name = f"client_{os.getpid()}_{time.time_ns()}_{number}".encode()
            client_id = _ask_int(connection, 0x11, struct.pack(">h", len(name)) + name + b"\x01")
            if queue_id is None:
                queue_id = _ask_int(connection, 0x21, struct.pack(">h", len(name)) + name)
            message = struct.pack(">iiiiibqh", 0, queue_id, 0, client_id, 0, 1, 0, len(self._body)) + self._body
            requests = (
                _frame(0x31, message + struct.pack(">i", 0)),
                _frame(0x33, struct.pack(">iib", queue_id, 0, 2)),
            )
            clients.append(Client(connection, requests, ((b"\x03",), self._popped), 2, False))
        return clients


def _ask_line(connection: socket.socket, request: str) -> int:
    connection.sendall(request.encode() + b"\0")
    answer = b""
    while not answer.endswith(b"\0"):
        answer += connection.recv(4096)
    return int(answer[:-1])


def _frame(method: int, payload: bytes) -> bytes:
    return struct.pack(">hBi", len(payload) + 5, method, 1) + payload


def _ask_int(connection: socket.socket, method: int, payload: bytes) -> int:
    connection.sendall(_frame(method, payload))
    answer = b""
    while len(answer) < 11:
        answer += connection.recv(4096)
    if answer[2] == 0x05:
        raise RuntimeError(f"the server refused method {method:#x}: {answer[10:]!r}")
    number: int = struct.unpack(">i", answer[7:11])[0]
    return number


@dataclass(slots=True)
class Outcome:
    """Result of one generator: latencies in microseconds, how long it ran and what CPU it took."""

    latencies_us: array.array[float]
    seconds: float
    cpu_seconds: float


@dataclass(slots=True)
class Plan:
    """Assignment of a generator."""

    dialect: Dialect
    address: tuple[str, int]
    clients: int
    queue_id: int | None
    warm_up_s: float
    seconds: float


def generate(plan: Plan) -> Outcome:
    """Keep the clients busy; raise at the first answer that is not right."""
    clients = plan.dialect.set_up(plan.address, plan.clients, plan.queue_id)
    poll = select.epoll()
    by_fd = {client.connection.fileno(): client for client in clients}
    for client in clients:
        client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(client.connection.fileno(), select.EPOLLIN)
    latencies = array.array("d")
    clock = time.perf_counter
    begin = clock() + plan.warm_up_s
    end = begin + plan.seconds
    cpu_at_begin = 0.0
    for client in clients:
        client.sent_at = clock()
        client.connection.send(client.requests[0])
    now = clock()
    while now < end:
        for fd, _ in poll.poll(1.0):
            client = by_fd[fd]
            answer = client.connection.recv(65536)
            if client.partial:
                answer = client.partial + answer
            if not answer:
                raise RuntimeError("the server closed a connection")
            if client.ends_with_zero:
                complete = answer[-1] == 0
            else:
                complete = len(answer) >= 7 and len(answer) == 2 + int.from_bytes(answer[:2], "big")
            if not complete:
                client.partial = answer
                continue
            client.partial = b""
            if not answer.startswith(client.expected[client.turn], client.head_at):
                raise RuntimeError(f"wrong answer {answer[:60]!r} to {client.requests[client.turn][:60]!r}")
            now = clock()
            if now >= begin:
                if not latencies:
                    cpu_at_begin = time.process_time()
                latencies.append((now - client.sent_at) * 1e6)
            client.turn ^= 1
            client.sent_at = now
            client.connection.send(client.requests[client.turn])
        else:
            now = clock()
    for client in clients:
        client.connection.close()
    return Outcome(latencies, plan.seconds, time.process_time() - cpu_at_begin)


def _work(pipe: Pipe, plan: Plan) -> None:
    outcome = generate(plan)
    pipe.send((outcome.latencies_us.tobytes(), outcome.seconds, outcome.cpu_seconds))


def generate_elsewhere(plan: Plan) -> Outcome:
    """Run `generate` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, plan))
    process.start()
    theirs.close()
    try:
        data, ran_s, cpu_s = ours.recv()
    except EOFError:
        raise RuntimeError("the load generator failed: see above") from None
    finally:
        process.join()
    latencies = array.array("d")
    latencies.frombytes(data)
    return Outcome(latencies, ran_s, cpu_s)
