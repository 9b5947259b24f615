"""Kill the broker, its PostgreSQL, or both, while clients put and pop, and see that every answer was true.

Clients of the research protocols are here; those of AMQP, which has other guarantees, run alongside them.

A client writes down what it asked for and what was answered. A request that was in progress at the kill may have been
carried out or not; everything else must be found again, once and in order. `tests/broker/node/test_recovery.py`
runs a few rounds, `python -m bench.crashes` any number.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from flyball.broker.wire import telesto as wire
from tests.broker.peers import Closed, TelestoPeer, ThorBangPeer, amqp
from tests.broker.protocols.amqp.chaos import Crowd, expect_order
from tests.nodes import ANSWER_LIMIT_S, ServeProcess

# Processes to kill; the last one stands for a graceful stop of the broker.
VICTIMS = ("broker", "postgres", "both", "nobody")

# The queue that all clients put into and pop from.
POPPED = "popped"
# The queue that no client pops from until a round is over.
KEPT = "kept"

SOME = 5

Broken = (Closed, ConnectionError, TimeoutError)


@dataclass(slots=True)
class Ledger:
    """Record of one client: which puts and pops were answered, and what was still open when its node died."""

    put: dict[str, list[str]] = field(default_factory=lambda: {POPPED: [], KEPT: []})
    perhaps_put: set[str] = field(default_factory=set)
    popped: list[str] = field(default_factory=list)
    open_pops: int = 0
    refused: int = 0


class Dialect(Protocol):
    """A protocol's way to put and pop."""

    def put(self, queue_name: str, body: str) -> bool: ...

    def pop(self, queue_name: str) -> str | None:
        """Return a body, or None if there is none. Raises Refused."""
        ...

    def close(self) -> None: ...


class Refused(Exception):
    """The node answered that it could not: whether it has done it after all is open."""


class ThorBang:
    def __init__(self, node: ServeProcess, name: str, queue_ids: dict[str, int]) -> None:
        self._peer = ThorBangPeer(node.connect("thorbang"))
        self._client_id = self._peer.ask(f"CREATECLIENT,{name}")[0]
        self._queue_ids = queue_ids

    def put(self, queue_name: str, body: str) -> bool:
        answer = self._peer.ask(f"MSG,-1,{self._client_id},{self._queue_ids[queue_name]},1,0,{body}")
        return answer == ["OK"]

    def pop(self, queue_name: str) -> str | None:
        (answer,) = self._peer.ask(f"POPQ,{self._client_id},{self._queue_ids[queue_name]},1")
        if answer.startswith("FAIL"):
            raise Refused(answer)
        return None if answer == "MSG0" else answer.split(",", 4)[4]

    def close(self) -> None:
        self._peer.close()


class Telesto:
    def __init__(self, node: ServeProcess, name: str, queue_ids: dict[str, int]) -> None:
        self._peer = TelestoPeer(node.connect("telesto"))
        self._peer.register(name)
        self._queue_ids = queue_ids

    def put(self, queue_name: str, body: str) -> bool:
        return isinstance(self._peer.put_text(self._queue_ids[queue_name], body), wire.Success)

    def pop(self, queue_name: str) -> str | None:
        request = wire.ReadMessage(self._peer.next_id(), self._queue_ids[queue_name], 0, wire.ReadMode.TIME)
        answer = self._peer.ask(request)
        if isinstance(answer, wire.ReadMessageResponse):
            return answer.message.text
        assert isinstance(answer, wire.Error)
        if answer.code == wire.ErrorCode.NO_MESSAGES_RETRIEVED:
            return None
        raise Refused(answer.details)

    def close(self) -> None:
        self._peer.close()


class Client:
    """Puts and pops in a thread of its own until it is stopped or its connection breaks."""

    def __init__(self, name: str, dialect: Dialect, seed: int) -> None:
        self.ledger = Ledger()
        # Set when it has popped some messages.
        self.is_under_way = threading.Event()
        self.name = name
        self._dialect = dialect
        self._chance = random.Random(seed)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._error: BaseException | None = None
        self._thread.start()

    def stop(self) -> Ledger:
        self._is_over.set()
        self._thread.join()
        self._dialect.close()
        if self._error is not None:
            raise self._error
        return self.ledger

    def _run(self) -> None:
        try:
            self._work()
        except Broken:
            pass
        except BaseException as error:
            self._error = error

    def _work(self) -> None:
        number = 0
        while not self._is_over.is_set():
            if self._chance.random() < 0.6:
                number += 1
                self._put(POPPED if self._chance.random() < 0.8 else KEPT, f"{self.name} {number}")
            else:
                self._pop()

    def _put(self, queue_name: str, body: str) -> None:
        ledger = self.ledger
        ledger.perhaps_put.add(body)
        if self._dialect.put(queue_name, body):
            ledger.put[queue_name].append(body)
            ledger.perhaps_put.discard(body)
        else:
            ledger.refused += 1

    def _pop(self) -> None:
        ledger = self.ledger
        ledger.open_pops += 1
        try:
            body = self._dialect.pop(POPPED)
        except Refused:
            # It may have been carried out: it stays open.
            ledger.refused += 1
            return
        ledger.open_pops -= 1
        if body is not None:
            ledger.popped.append(body)
            if len(ledger.popped) == SOME:
                self.is_under_way.set()


@dataclass(slots=True)
class Tally:
    """Counts over all rounds."""

    rounds: int = 0
    puts: int = 0
    pops: int = 0
    open_requests: int = 0
    refused: int = 0
    # Messages that are gone although no answer said so: open pops took them.
    missing: int = 0
    # Messages confirmed to AMQP publishers.
    confirmed: int = 0
    acknowledged: int = 0
    dead_letters: int = 0
    restart_s: list[float] = field(default_factory=list)


class Chaos:
    """A node, its clients, and what was put and popped since the beginning."""

    def __init__(self, data: Path, seed: int, victims: Sequence[str] = VICTIMS, **flags: object) -> None:
        """Every round kills the next one of the victims."""
        self._data = data
        self._victims = victims
        self._chance = random.Random(seed)
        self._node = ServeProcess(data, store="embedded", telesto_time_order="oldest", **flags)
        self._crowd = Crowd(self._node)
        # Every body that a client has got: it must never come again.
        self._gone: set[str] = set()
        self.tally = Tally()

    def run(self, rounds: int, report: Callable[[str], None] = lambda text: None) -> Tally:
        """Play this number of rounds. Raises AssertionError at the first answer that was not true."""
        with self._node:
            queue_ids = self._set_up()
            for number in range(rounds):
                victim = self._victims[number % len(self._victims)]
                ledgers = self._play(number, victim, queue_ids)
                self._check(ledgers, queue_ids)
                self._check_crowd()
                self.tally.rounds += 1
                report(f"round {number}, {victim} killed: {self.tally}")
            code, complaints = self._node.stop()
            assert code == 0, complaints
        return self.tally

    def _set_up(self) -> dict[str, int]:
        peer = ThorBangPeer(self._node.connect("thorbang"))
        queue_ids = {name: int(peer.ask(f"CREATEQUEUE,{name}")[0]) for name in (POPPED, KEPT)}
        peer.close()
        self._crowd.set_up()
        return queue_ids

    def _play(self, number: int, victim: str, queue_ids: dict[str, int]) -> list[Ledger]:
        """Let clients work, kill, and bring the node back if it was among the dead."""
        clients = []
        for at in range(6):
            name = f"{number}.{at}"
            dialect: Dialect = (ThorBang, Telesto)[at % 2](self._node, name, queue_ids)
            clients.append(Client(name, dialect, self._chance.randrange(2**32)))
        self._crowd.start(number, self._chance)
        for client in clients:
            assert client.is_under_way.wait(ANSWER_LIMIT_S), f"{client.name} does not get on"
        self._crowd.wait_until_under_way()
        # From here on the moment of the kill is the point, not something to wait for.
        time.sleep(self._chance.uniform(0.05, 0.6))
        if victim in ("postgres", "both"):
            os.kill(postmaster_pid(self._data), signal.SIGKILL)
        if victim == "nobody":
            code, complaints = self._node.stop()
            assert (code, complaints) == (0, ""), complaints
            self._node.start()
        elif victim in ("broker", "both"):
            self._node.kill()
            began = time.monotonic()
            self._node.start()
            self.tally.restart_s.append(round(time.monotonic() - began, 2))
        else:
            time.sleep(self._chance.uniform(0.05, 0.6))
        return [client.stop() for client in clients]

    def _check_crowd(self) -> None:
        self._crowd.check()
        self.tally.confirmed = self._crowd.confirmed
        self.tally.acknowledged = self._crowd.acknowledged
        self.tally.dead_letters = self._crowd.dead

    def _check(self, ledgers: list[Ledger], queue_ids: dict[str, int]) -> None:
        left = {queue_name: drain(self._node, queue_name) for queue_name in queue_ids}
        perhaps = {body for ledger in ledgers for body in ledger.perhaps_put}
        open_pops = sum(ledger.open_pops for ledger in ledgers)
        popped = [body for ledger in ledgers for body in ledger.popped]
        for queue_name, bodies in left.items():
            put = {body for ledger in ledgers for body in ledger.put[queue_name]}
            given = [*bodies, *(popped if queue_name == POPPED else [])]
            assert len(given) == len(set(given)), f"given out twice: {sorted(b for b in given if given.count(b) > 1)}"
            assert not self._gone & set(given), f"came back: {sorted(self._gone & set(given))}"
            assert set(given) <= put | perhaps, f"nobody put this: {sorted(set(given) - put - perhaps)}"
            missing = put - set(given)
            assert len(missing) <= (open_pops if queue_name == POPPED else 0), f"lost: {sorted(missing)}"
            self.tally.missing += len(missing)
            self._gone |= set(given)
            # An open pop may have taken its message: it must not come back later either way, nor does it.
            self._gone |= missing
            expect_order(bodies)
        for ledger in ledgers:
            if not any(other.refused for other in ledgers):
                expect_order(ledger.popped)
            self.tally.refused += ledger.refused
        self.tally.puts += sum(len(bodies) for ledger in ledgers for bodies in ledger.put.values())
        self.tally.pops += len(popped)
        self.tally.open_requests += len(perhaps) + open_pops


def drain(node: ServeProcess, queue_name: str) -> list[str]:
    """Take all that is left, in its order."""
    peer = amqp(node)
    bodies = [body.decode() for body in peer.take(queue_name, most=1_000_000)]
    peer.close()
    return bodies


def frozen(data: Path) -> Callable[[], None]:
    """Stop every process of PostgreSQL where it is; return what lets them go on."""
    postmaster = psutil.Process(postmaster_pid(data))
    # It comes first, and so has no further children. One that was about to end may end before its turn.
    postmaster.suspend()
    backends = postmaster.children(recursive=True)
    for backend in backends:
        with contextlib.suppress(psutil.NoSuchProcess):
            backend.suspend()

    def go_on() -> None:
        for process in (postmaster, *backends):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    return go_on


def postmaster_pid(data: Path) -> int:
    return int((data / "postgresql" / "postmaster.pid").read_text().split()[0])


def postgres_processes(data: Path) -> list[psutil.Process]:
    """The postmaster and all its backends."""
    postmaster = psutil.Process(postmaster_pid(data))
    return [postmaster, *postmaster.children(recursive=True)]
