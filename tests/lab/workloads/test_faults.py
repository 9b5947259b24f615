"""Brokers that lose, repeat, change, refuse or stall: the clients notice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flyball.broker.wire import thorbang as wire
from flyball.lab import worker
from flyball.lab.drivers import AmqpSession, Target, connect
from flyball.lab.workloads import Workload, make_workload
from flyball.lab.workloads.stream import HEAD
from tests.lab.runs import Conductor, Outcome, _run, run, target_of
from tests.nodes import RunningNode


class FaultyServer:
    """A small ThorBangMQ server in which things go wrong from the tenth message on."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._messages: dict[tuple[int, int], deque[tuple[int, int, bytes]]] = {}
        self._ids = 0
        self._sent = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Target]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield Target(name="faulty", host=host, port=port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = wire.RequestDecoder(2**20)
        while data := await reader.read(4096):
            decoder.feed(data)
            while (request := decoder.next_request()) is not None:
                answer = self._answer(request)
                if answer is None:
                    writer.close()
                    return
                writer.write(answer)
        writer.close()

    def _answer(self, request: wire.Request) -> bytes | None:
        if isinstance(request, wire.CreateClient | wire.CreateQueue):
            self._ids += 1
            return wire.encode_id(self._ids)
        if isinstance(request, wire.Send):
            return self._store(request)
        if isinstance(request, wire.Pop):
            return self._pop(request)
        return wire.OK

    def _store(self, request: wire.Send) -> bytes | None:
        self._sent += 1
        is_wrong = self._sent == 10
        if is_wrong and self._fault == "closes":
            return None
        if is_wrong and self._fault == "refuses":
            return wire.encode_fail("UNKNOWN", -1)
        if not (is_wrong and self._fault == "loses"):
            content = b"?" * len(request.content) if is_wrong and self._fault == "changes" else request.content
            box = self._messages.setdefault((request.receiver, request.queue_ids[0]), deque())
            box.append((request.sender, request.context, content))
            if is_wrong and self._fault == "hides a copy":
                box.append(box[-1])
        return wire.OK

    def _pop(self, request: wire.Pop) -> bytes:
        box = self._messages.get((request.receiver, request.queue_id))
        if not box:
            return wire.MSG0
        if self._fault == "hides a copy":
            # The newest first: the copy lies below all that is sent later.
            box.rotate(1)
        sender, context, content = box[0]
        if not (self._fault == "repeats" and self._sent >= 10):
            box.popleft()
        return wire.encode_message(sender, context, 1, content)


def run_against(fault: str, parameters: dict[str, Any], traces: Path, missing: int = 0) -> Outcome:
    async def meet() -> Outcome:
        async with FaultyServer(fault).serving() as target:
            return await _run(make_workload(parameters), [target], traces, 1000, 1, missing=missing)

    return uvloop.run(meet())


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("loses", "client 0: message 10 is lost: it was confirmed, and now the queue is empty"),
        ("repeats", "client 0: message 11 was sent, and 10 came back"),
        ("changes", r"client 0: message 10 was sent, and 10 came back: b'\?"),
        ("refuses", "client 0: MSG was answered with b'FAIL UNKNOWN -1'"),
        ("closes", "client 0: the server closed the connection"),
    ],
)
def test_send_and_pop_fails_at_the_first_wrong_answer(fault: str, complaint: str, tmp_path: Path) -> None:
    outcome = run_against(fault, {"kind": "send_and_pop"}, tmp_path)
    assert outcome.failure.startswith(complaint.replace("\\", ""))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("standard", "was answered with"),
        ("telesto_pairs", "was answered with"),
        ("telesto_one_way", "duplicate"),
        ("push_peek_pop", "a message that is not there, or no longer"),
    ],
)
def test_a_message_that_comes_again_ends_the_run(kind: str, complaint: str, tmp_path: Path) -> None:
    assert complaint in run_against("repeats", _small(kind), tmp_path).failure


@pytest.mark.parametrize(
    "parameters", [{"kind": "send_and_pop"}, {"kind": "push_peek_pop", "phases": ["push", "pop"], "repeats": 1}]
)
def test_a_copy_below_newer_messages_is_found_at_the_end(parameters: dict[str, Any], tmp_path: Path) -> None:
    outcome = run_against("hides a copy", parameters, tmp_path)
    assert outcome.failure.startswith("client 0: duplicate message: ")


def test_a_copy_that_comes_when_all_is_received_is_noticed(memory_node: RunningNode, tmp_path: Path) -> None:
    target = target_of(memory_node, "amqp")

    async def repeat_the_first(workload: Workload, set_up: dict[str, Any], conductors: list[Conductor]) -> None:
        session = await _session(target)
        body = HEAD.pack(0, 0, time.time_ns()).ljust(30, b"*")
        session.publish(set_up["queues"]["node-1"]["stream_0"], body, persistent=True, confirmed=lambda now_ns: None)
        await session.close()

    # Behind the last message, on which the only consumer still works.
    parameters = {"rate_per_s": 0, "rate_curve": [[0, 300], [0.1, 0]], "prefetch": 1, "handler_time_s": 0.03}
    outcome = run({**STREAM, **parameters}, [target], tmp_path, calls=16, meanwhile=repeat_the_first)
    assert outcome.failure == "client 1: message 0 of client 0 was duplicated"


def test_a_lost_answer_is_noticed_at_the_end_at_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "STOP_LIMIT_S", 1.0)
    outcome = run_against("loses", _small("telesto_pairs"), tmp_path)
    assert outcome.failure == "1 clients still wait for an answer, and nothing has moved for 1 s"


def test_a_message_lost_on_its_way_around_is_in_the_verdict(tmp_path: Path) -> None:
    outcome = run_against("loses", _small("telesto_one_way"), tmp_path, missing=1)
    assert (outcome.verdict.lost, outcome.verdict.doubled) == (1, 0)


def _small(kind: str) -> dict[str, Any]:
    parameters: dict[str, dict[str, Any]] = {
        "standard": {"two_way": 2, "poll_pause_s": 0.001, "answer_pause_s": 0.001},
        "telesto_pairs": {"pairs": 1, "retry_delay_s": 0.001},
        "telesto_one_way": {"clients": 3, "retry_delay_s": 0.001},
        "push_peek_pop": {"phases": ["push", "pop"], "repeats": 5},
    }
    return {"kind": kind, "protocol": "thorbang", **parameters[kind]}


STREAM = {"kind": "stream", "protocol": "amqp", "rate_per_s": 500, "body_bytes": 30}


async def _session(target: Target) -> AmqpSession:
    session = await connect("amqp", target)
    assert isinstance(session, AmqpSession)
    return session


def test_a_stream_notices_a_doubled_message(memory_node: RunningNode, tmp_path: Path) -> None:
    target = target_of(memory_node, "amqp")

    async def repeat_the_first(workload: Workload, set_up: dict[str, Any], conductors: list[Conductor]) -> None:
        session = await _session(target)
        body = HEAD.pack(0, 0, time.time_ns()).ljust(30, b"*")
        session.publish(set_up["queues"]["node-1"]["stream_0"], body, persistent=True, confirmed=lambda now_ns: None)
        await conductors[0].heard("failed")
        await session.close()

    outcome = run(STREAM, [target], tmp_path, meanwhile=repeat_the_first)
    assert outcome.failure == "client 1: message 0 of client 0 was duplicated"


def test_a_stream_notices_a_lost_message(memory_node: RunningNode, tmp_path: Path) -> None:
    target = target_of(memory_node, "amqp")

    async def take_one_away(workload: Workload, set_up: dict[str, Any], conductors: list[Conductor]) -> None:
        session = await _session(target)
        while await session.take(set_up["queues"]["node-1"]["stream_0"], unaddressed=True) is None:
            pass
        await session.close()

    # A consumer that is busy leaves messages in the queue.
    slow = {**STREAM, "prefetch": 1, "handler_time_s": 0.005}
    outcome = run(slow, [target], tmp_path, calls=20, meanwhile=take_one_away, missing=1)
    assert outcome.failure == ""
    assert (outcome.verdict.lost, outcome.verdict.doubled) == (1, 0)


STALL_S = 0.4
RATE_PER_S = 250


@pytest.mark.parametrize(
    "parameters",
    [
        {"kind": "send_and_pop", "clients": 5, "rate_per_s": RATE_PER_S},
        {"kind": "stream", "protocol": "amqp", "rate_per_s": RATE_PER_S, "in_flight": 5},
    ],
)
def test_arrivals_keep_their_schedule_while_the_broker_stalls(
    parameters: dict[str, Any], memory_node: RunningNode, tmp_path: Path
) -> None:
    goes_on = threading.Event()
    stalled_us: list[int] = []

    async def stall(workload: Workload, set_up: dict[str, Any], conductors: list[Conductor]) -> None:
        loop = asyncio.get_running_loop()
        stands_still = asyncio.Event()

        def stand_still(node: object) -> None:
            loop.call_soon_threadsafe(stands_still.set)
            goes_on.wait()

        stalling = loop.run_in_executor(None, memory_node.call, stand_still)
        await stands_still.wait()
        stalled_us.append(time.time_ns() // 1000)
        await conductors[0].until(lambda event: time.time_ns() // 1000 >= stalled_us[0] + STALL_S * 1e6)
        stalled_us.append(time.time_ns() // 1000)
        goes_on.set()
        await stalling
        # Of a stream only what is sent follows the schedule.
        counted = "sent" if parameters["kind"] == "stream" else "calls"
        due = RATE_PER_S * (stalled_us[1] - asked_us) / 1e6
        await conductors[0].until(lambda event: event.get(counted, 0) >= due)

    target = target_of(memory_node, parameters.get("protocol", "thorbang"))
    asked_us = time.time_ns() // 1000
    outcome = run(parameters, [target], tmp_path, calls=50, meanwhile=stall)
    assert outcome.failure == ""
    calls = outcome.calls().to_pandas()
    sent = calls if parameters["kind"] == "send_and_pop" else calls[calls["kind"] == "put"]
    assert (calls["late_ns"] >= 0).all()
    latency_s = (sent["late_ns"] + sent["response_ns"]) / 1e9
    meanwhile = sent["intended_us"].between(*stalled_us)
    # All that was meant for the time of the stall is there, and had to wait for its end; not only requests in flight.
    assert meanwhile.sum() >= 0.9 * STALL_S * RATE_PER_S
    waited_s = latency_s[meanwhile] - (stalled_us[1] - sent["intended_us"][meanwhile]) / 1e6
    assert waited_s.min() > -0.02
    sent_us = sent["intended_us"] + sent["late_ns"] / 1000
    assert (sent_us[meanwhile] < stalled_us[1] - 20_000).sum() <= 5
