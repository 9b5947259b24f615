"""The micro-benchmarks of ThorBangMQ: push, peek and pop without pauses, one phase per kind of request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from flyball.lab.drivers import QueueRef, Received, Target
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.workload import Count, Seconds, Workload, fill

QUEUE = "push_peek_pop"


class PushPeekPop(Workload):
    """Every client repeats the phases in turn, with `repeats` requests or for `phase_s` seconds each.

    Peeks and pops alternate between order by time and by priority. A pop phase ends when nothing is left to pop.
    """

    addressed_queues: ClassVar[tuple[str, ...]] = (QUEUE,)
    needs_messages: ClassVar[bool] = True

    kind: Literal["push_peek_pop"] = "push_peek_pop"
    clients: Annotated[int, Field(ge=1)] = 1
    phases: Annotated[tuple[Literal["push", "peek", "pop"], ...], Field(min_length=1)] = ("push", "peek", "pop")
    repeats: Annotated[int, Field(ge=1)] = 1000
    # If not 0, the duration of a phase, instead of `repeats`.
    phase_s: Seconds = 0.0
    # Repetitions of the phases; 0 repeats until the run stops.
    rounds: Count = 0
    # Messages in the store for each client before the start: for phases without a push.
    prepared_messages: Count = 0
    body_bytes: Count = 1024

    @model_validator(mode="after")
    def _can_peek(self) -> Self:
        if "peek" in self.phases and self.protocol != "thorbang":
            raise ValueError(f"{self.protocol} cannot peek: use thorbang, or phases without it")
        return self

    @property
    def client_count(self) -> int:
        return self.clients

    def role_of(self, number: int) -> str:
        return "client"

    async def set_up(self, targets: Sequence[Target]) -> dict[str, Any]:
        made = await super().set_up(targets)
        if self.prepared_messages:
            for number in range(self.clients):
                target = targets[number % len(targets)]
                queue, address = made["queues"][target.name][QUEUE], made["addresses"][str(number)]
                await fill(self.protocol, target, queue, address, b"*" * self.body_bytes, self.prepared_messages)
        return made

    async def behave(self, client: Client) -> None:
        queue = client.queue(QUEUE)
        turns = _Turns(client, queue, b"*" * self.body_bytes, self.prepared_messages)
        rounds = 0
        while not client.stopping and (self.rounds == 0 or rounds < self.rounds):
            rounds += 1
            calls_before = turns.calls
            for phase in self.phases:
                await self._go_through(turns, phase)
            if turns.calls == calls_before:
                return
        # Pushed messages are popped in the end, unless `phases` has no pop.
        if "pop" in self.phases:
            while turns.waiting:
                await turns.pop()
            await client.expect_nothing(queue)

    async def _go_through(self, turns: _Turns, phase: str) -> None:
        act = {"push": turns.push, "peek": turns.peek, "pop": turns.pop}[phase]
        end_ns = time.perf_counter_ns() + int(self.phase_s * 1e9)
        done = 0
        while not turns.client.stopping and (turns.waiting or phase == "push"):
            if (time.perf_counter_ns() >= end_ns) if self.phase_s else (done >= self.repeats):
                return
            await act()
            done += 1


class _Turns:
    """The number of messages that one client has pushed and not popped, and whether the next read is by time."""

    def __init__(self, client: Client, queue: QueueRef, body: bytes, prepared: int) -> None:
        self.client = client
        self.waiting = set(range(1, prepared + 1))
        self.calls = 0
        self._queue = queue
        self._body = body
        self._token = prepared
        self._by_time = True

    async def push(self) -> None:
        self._token += 1
        self.calls += 1
        await self.client.put(self._queue, self.client.address, self._body, self._token)
        self.waiting.add(self._token)

    async def peek(self) -> None:
        self._check(await self.client.peek(self._queue, by_time=self._turn()), "peek")

    async def pop(self) -> None:
        self.waiting.remove(self._check(await self.client.take(self._queue, by_time=self._turn()), "pop"))

    def _turn(self) -> bool:
        self.calls += 1
        by_time, self._by_time = self._by_time, not self._by_time
        return by_time

    def _check(self, message: Received | None, request: str) -> int:
        if message is None:
            self.client.fail(f"{len(self.waiting)} messages are lost: a {request} found none of them")
        if message.context not in self.waiting or message.body != self._body:
            self.client.fail(f"a {request} found a message that is not there, or no longer: {message}")
        return message.context
