"""Send and Pop Same Client, of the ThorBangMQ report: every client sends a message to itself and takes it back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flyball.lab.workloads.client import Client
from flyball.lab.workloads.paced import PacedWorkload

QUEUE = "send_and_pop"
# Telesto's contexts have 31 bits and must not be 0.
MOST_TOKENS = 2**31 - 1


class SendAndPop(PacedWorkload):
    """Each pop finds the one message just sent, so the number of stored messages stays constant."""

    kind: Literal["send_and_pop"] = "send_and_pop"
    clients: Annotated[int, Field(ge=1)] = 1
    body_bytes: Annotated[int, Field(ge=0)] = 5
    # Number of queues, which the clients use in turn.
    queues: Annotated[int, Field(ge=1)] = 1

    @property
    def client_count(self) -> int:
        return self.clients

    def role_of(self, number: int) -> str:
        return "client"

    def boxed_queues(self) -> tuple[str, ...]:
        return tuple(f"{QUEUE}_{number}" for number in range(self.queues))

    async def behave(self, client: Client) -> None:
        client.follow(self.arrivals_of(client, client.number, self.clients))
        queue = client.queue(f"{QUEUE}_{client.number % self.queues}")
        body = b"*" * self.body_bytes
        token = 0
        while await client.pace():
            token = token % MOST_TOKENS + 1
            await client.put(queue, client.address, body, token)
            # A sent message is always taken, also after the run stops, so that nothing is left at the end.
            await client.pace()
            message = await client.take(queue)
            if not self.keeps_messages:
                continue
            if message is None:
                client.fail(f"message {token} is lost: it was confirmed, and now the queue is empty")
            if message.context != token or message.body != body:
                client.fail(f"message {token} was sent, and {message.context} came back: {message.body[:50]!r}")
        if self.keeps_messages:
            await client.expect_nothing(queue)
