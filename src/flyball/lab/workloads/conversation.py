"""Clients that wait for each other's messages: polling, requests and replies, with every message tallied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flyball.lab.drivers import QueueRef, Received
from flyball.lab.workloads.client import Client


@dataclass(frozen=True, slots=True)
class Polling:
    """A client's way of waiting: it pauses after each read that found nothing, or before each read."""

    pause_s: float
    pause_first: bool = False

    async def wait(
        self, client: Client, queue: QueueRef, context: int = 0, *, unaddressed: bool = False
    ) -> Received | None:
        """Return the next message, or None if the run ends first.

        The last read is after the end of the run: a message found then is a duplicate, or late.
        """
        while True:
            is_last = client.finishing
            if self.pause_first and not is_last:
                await client.pause(self.pause_s)
            message = await client.take(queue, context, unaddressed=unaddressed)
            if message is not None or is_last:
                return message
            if not self.pause_first:
                await client.pause(self.pause_s)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Queues for requests and answers. Both are numbered by the requesting client; the number is in the body."""

    requests: QueueRef
    answers: QueueRef
    polling: Polling
    # Returns the number, from 1, of the request with this body; below 1 if it is not a request.
    number_of_request: Callable[[bytes], int]
    # Returns the number of the request that the answer with this body belongs to.
    number_of_answer: Callable[[bytes], int]

    async def ask(self, client: Client, receiver: int, body: bytes, number: int, context: int) -> Received | None:
        """Put a request and wait for the answer; None if the run ends first."""
        await client.put(self.requests, receiver, body, context)
        client.tally.sent(f"{client.target}.{client.address}.requests", number - 1)
        answer = await self.polling.wait(client, self.answers, context)
        if answer is None:
            return None
        if answer.context != context or self.number_of_answer(answer.body) != number:
            client.fail(f"request {number} in context {context} was answered with {answer}")
        self._receive(client, client.address, "answers", number)
        return answer

    async def answer(self, client: Client, reply: Callable[[bytes], bytes], *, unaddressed: bool = False) -> None:
        """Answer requests until the run ends; `reply` converts a request's body to the answer's."""
        while (request := await self.polling.wait(client, self.requests, unaddressed=unaddressed)) is not None:
            number = self.number_of_request(request.body)
            if number < 1:
                client.fail(f"a request that was never sent: {request}")
            self._receive(client, request.sender, "requests", number)
            await client.put(self.answers, request.sender, reply(request.body), request.context)
            client.tally.sent(f"{client.target}.{request.sender}.answers", number - 1)

    def _receive(self, client: Client, asker: int, kind: str, number: int) -> None:
        if not client.tally.received(f"{client.target}.{asker}.{kind}", number - 1):
            client.fail(f"message {number} of the {kind} with client {asker} was duplicated")
