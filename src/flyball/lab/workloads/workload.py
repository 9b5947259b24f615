"""What a workload is: parameters, what must exist before it begins, and what each of its clients does.

One set of words for all protocols; what a protocol makes of them is its driver's business.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flyball.lab.drivers import Target, connect
from flyball.lab.workloads.client import Client

FILLING_SESSIONS = 50
"""So many connections at once put what lies in the store before the start."""

FILLING_BODY = b"some message"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Workload(BaseModel, ABC):
    """The parameters of a workload, and all that it does. Client `i` talks to target `i` modulo their number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocols: ClassVar[tuple[str, ...]] = ("thorbang", "telesto", "amqp")
    """Those that can express it."""
    drains: ClassVar[bool] = False
    """Whether all that was sent is received when it has stopped, so that the tallies must balance."""
    addressed_queues: ClassVar[tuple[str, ...]] = ()
    """Queues with messages for certain clients."""
    shared_queues: ClassVar[tuple[str, ...]] = ()
    """Queues with messages for whoever comes first."""

    kind: str
    protocol: Literal["thorbang", "telesto", "amqp"] = "thorbang"
    stored_messages: Count = 0
    """So many messages lie in each store before it begins; nobody reads them."""
    keeps_messages: bool = True
    """Whether the server keeps what it is given; one that does not is not asked for it back."""

    @field_validator("protocol")
    @classmethod
    def _is_expressible(cls, protocol: str) -> str:
        if protocol not in cls.protocols:
            raise ValueError(f"it can be run over {' or '.join(cls.protocols)}")
        return protocol

    @property
    @abstractmethod
    def client_count(self) -> int:
        """How many clients it has in all."""

    @abstractmethod
    def role_of(self, number: int) -> str:
        """Return what that client does, in a word."""

    def listens(self, number: int) -> bool:
        """Whether that client goes on when the run stops, until all is received."""
        return False

    @abstractmethod
    async def behave(self, client: Client) -> None:
        """Do what this client does until it is `stopping`, or `finishing` if it listens."""

    async def set_up(self, targets: Sequence[Target]) -> dict[str, Any]:
        """Make queues and clients on all targets, and store messages; return what the clients need to know of it.

        That is `queues`, by target and name, and `addresses`, by the number of the client.
        """
        token = secrets.token_hex(3)
        made: dict[str, Any] = {"queues": {}, "addresses": {}}
        for place, target in enumerate(targets):
            session = await connect(self.protocol, target)
            try:
                queues = {
                    name: await session.create_queue(f"{name}_{token}")
                    for name in (*self.addressed_queues, *self.shared_queues)
                }
                numbers = range(place, self.client_count, len(targets))
                for number in numbers:
                    address = await session.create_client(f"client_{number}_{token}", number)
                    made["addresses"][str(number)] = address
                    for name in self.addressed_queues:
                        await session.open_box(queues[name], address)
                made["queues"][target.name] = queues
            finally:
                await session.close()
            if self.stored_messages:
                await fill(self.protocol, target, token, self.stored_messages)
        return made

    def neighbours(self, client: Client) -> list[int]:
        """Return the numbers of the clients of the same target, in order."""
        step = len(client.set_up["queues"])
        return list(range(client.number % step, self.client_count, step))


async def fill(protocol: str, target: Target, token: str, count: int) -> None:
    """Put messages into a queue of their own, for a client that nobody is, and return when all are there."""
    session = await connect(protocol, target)
    try:
        queue = await session.create_queue(f"stored_{token}")
        address = await session.create_client(f"stored_{token}", 0)
        await session.open_box(queue, address)
    finally:
        await session.close()
    left = iter(range(count))

    async def put_some() -> None:
        session = await connect(protocol, target)
        try:
            await session.identify(address)
            for _ in left:
                await session.put(queue, address, FILLING_BODY)
        finally:
            await session.close()

    await together(put_some() for _ in range(min(FILLING_SESSIONS, count)))


async def together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; the first error ends them all, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in coroutines:
                tasks.create_task(coroutine)
    except BaseExceptionGroup as group:
        raise first_error(group) from group


def first_error(error: BaseException) -> BaseException:
    """Return the first error in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
