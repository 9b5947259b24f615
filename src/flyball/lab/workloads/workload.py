"""Base of workloads: parameters, set-up before the start, and the behaviour of each client.

One interface for all protocols; drivers translate it to each protocol.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flyball.lab.drivers import QueueRef, Target, connect
from flyball.lab.drivers.telesto import MOST_BODY_CHARACTERS
from flyball.lab.workloads.client import Client

# Parallel connections that put the stored messages before the start.
FILLING_SESSIONS = 200

FILLING_BODY = b"some message"

ProtocolName = Literal["thorbang", "telesto", "amqp", "http"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A complete run of the experiment that another one needs: its manifest and its folder of traces."""

    manifest: Mapping[str, Any]
    traces: Path


class Workload(BaseModel, ABC):
    """The parameters and the behaviour of a workload. Client `i` connects to target `i` modulo their number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Protocols that support the workload.
    protocols: ClassVar[tuple[str, ...]] = ("thorbang", "telesto", "amqp")
    # Whether it requires a server that keeps messages.
    needs_messages: ClassVar[bool] = False
    # Queues with messages for specific clients.
    addressed_queues: ClassVar[tuple[str, ...]] = ()
    # Queues with messages for the first client that asks; see `queue_names`.
    shared_queues: ClassVar[tuple[str, ...]] = ()
    # Minimum number of client processes.
    least_workers: ClassVar[int] = 1

    kind: str
    protocol: ProtocolName = "thorbang"
    # Messages in each store before the start; they are never read.
    stored_messages: Count = 0
    # Whether the server keeps messages; otherwise clients do not try to take them back.
    keeps_messages: bool = True

    @field_validator("protocol")
    @classmethod
    def _is_expressible(cls, protocol: str) -> str:
        if protocol not in cls.protocols:
            raise ValueError(f"it can be run over {' or '.join(cls.protocols)}")
        return protocol

    @model_validator(mode="after")
    def _fits_into_a_message(self) -> Self:
        if self.protocol == "telesto" and getattr(self, "body_bytes", 0) > MOST_BODY_CHARACTERS:
            raise ValueError(
                f"a message of telesto has {MOST_BODY_CHARACTERS} bytes at most: make body_bytes smaller"
            )
        return self

    @field_validator("keeps_messages")
    @classmethod
    def _has_messages(cls, keeps_messages: bool) -> bool:
        if cls.needs_messages and not keeps_messages:
            raise ValueError("this workload needs a store that keeps messages: embedded, memory or postgresql://...")
        return keeps_messages

    @property
    def drains(self) -> bool:
        """Whether all sent messages are received when it has stopped, so that the tallies must balance."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether clients send by a schedule that does not wait for answers."""
        return False

    @property
    @abstractmethod
    def client_count(self) -> int:
        """Number of clients in total."""

    @abstractmethod
    def role_of(self, number: int) -> str:
        """Return the role of that client."""

    def queue_names(self) -> tuple[str, ...]:
        """Return the queues that it needs on every target."""
        return (*self.boxed_queues(), *self.shared_queues)

    def boxed_queues(self) -> tuple[str, ...]:
        """Return the queues with messages for specific clients."""
        return self.addressed_queues

    def listens(self, client: Client) -> bool:
        """Whether that client continues when the run stops, until everything is received."""
        return False

    def check(self, target_count: int) -> None:
        """Raise LabError if the clients cannot be distributed over this number of targets."""
        return

    def check_packages(self) -> None:
        """Raise LabError if it needs a package that is not installed here."""
        return

    def prepare(self, earlier: Sequence[EarlierRun]) -> dict[str, Any]:
        """Return parameters derived from earlier runs, on the same kind of target, of the experiment that this one
        needs.

        They are part of `set_up` of every client, and of the workload in run.json. Raises LabError if the results do
        not allow the workload to run.
        """
        return {}

    def target_settings(self, prepared: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings of targets derived from `prepared`; the targets' own settings take precedence."""
        return {}

    def numbers_of_workers(self, worker_count: int) -> list[Sequence[int]]:
        """Return the clients of each of this number of processes."""
        return [range(worker, self.client_count, worker_count) for worker in range(worker_count)]

    @abstractmethod
    async def behave(self, client: Client) -> None:
        """Run this client until it is `stopping`, or `finishing` if it listens."""

    async def set_up(self, targets: Sequence[Target]) -> dict[str, Any]:
        """Create queues and clients on all targets, and store messages; return the information that clients need.

        It consists of `queues`, by target and name, and `addresses`, by the number of the client.
        """
        self.check(len(targets))
        token = secrets.token_hex(3)
        made: dict[str, Any] = {"queues": {}, "addresses": {}}
        for place, target in enumerate(targets):
            session = await connect(self.protocol, target)
            try:
                queues = {name: await session.create_queue(f"{name}_{token}") for name in self.queue_names()}
                for number in self.numbers_at(place, len(targets)):
                    address = await session.create_client(f"client_{number}_{token}", number)
                    made["addresses"][str(number)] = address
                    for name in self.boxed_queues():
                        await session.open_box(queues[name], address)
                made["queues"][target.name] = queues
                if self.stored_messages:
                    queue = await session.create_queue(f"stored_{token}")
                    absent_client = await session.create_client(f"stored_{token}", self.client_count)
                    await session.open_box(queue, absent_client)
                    await fill(self.protocol, target, queue, absent_client, FILLING_BODY, self.stored_messages)
            finally:
                await session.close()
        return made

    def numbers_at(self, place: int, target_count: int) -> range:
        """Return the numbers of the clients of one of this number of targets."""
        return range(place, self.client_count, target_count)

    def peers(self, client: Client) -> list[int]:
        """Return the numbers of the clients with the same target and role, including this one, in order."""
        target_count = len(client.set_up["queues"])
        numbers = self.numbers_at(client.number % target_count, target_count)
        return [number for number in numbers if self.role_of(number) == client.role]


async def fill(protocol: str, target: Target, queue: QueueRef, address: int, body: bytes, count: int) -> None:
    """Put messages for a client, from itself, in the contexts 1, 2, 3 ...; return when all are stored."""
    contexts = iter(range(1, count + 1))

    async def put_some() -> None:
        session = await connect(protocol, target)
        try:
            await session.identify(address)
            for context in contexts:
                await session.put(queue, address, body, context)
        finally:
            await session.close()

    await together(put_some() for _ in range(min(FILLING_SESSIONS, count)))


async def together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently; the first error cancels the others and is raised ungrouped."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in coroutines:
                tasks.create_task(coroutine)
    except BaseExceptionGroup as group:
        raise first_error(group) from group


def first_error(error: BaseException) -> BaseException:
    """Return the first error in a nested exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
