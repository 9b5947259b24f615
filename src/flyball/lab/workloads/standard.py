"""The Standard Test of ThorBangMQ: one-way clients pass one message around, two-way clients work in pairs."""

from __future__ import annotations

from typing import ClassVar, Literal

from flyball.errors import LabError
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.conversation import Dialogue, Polling
from flyball.lab.workloads.workload import Count, Seconds, Workload

ONE_WAY, TWO_WAY = "one_way", "two_way"


class Standard(Workload):
    """The first `one_way` clients pass a message around on each target; the others form pairs.

    Unlike in the original, pairs do not depend on ids assigned by a server: every client has a partner.
    """

    addressed_queues: ClassVar[tuple[str, ...]] = (ONE_WAY, TWO_WAY)
    needs_messages: ClassVar[bool] = True

    kind: Literal["standard"] = "standard"
    one_way: Count = 0
    two_way: Count = 0
    # Pause before each pop of one-way clients and of requesting clients.
    poll_pause_s: Seconds = 0.2
    # Pause before each pop of answering clients.
    answer_pause_s: Seconds = 0.3

    @property
    def client_count(self) -> int:
        return self.one_way + self.two_way

    @property
    def drains(self) -> bool:
        return True

    def role_of(self, number: int) -> str:
        return ONE_WAY if number < self.one_way else TWO_WAY

    def listens(self, client: Client) -> bool:
        return client.role == ONE_WAY or not self.asks(client)

    def asks(self, client: Client) -> bool:
        """Whether a two-way client is the requesting one of its pair."""
        return self.peers(client).index(client.number) % 2 == 0

    def check(self, target_count: int) -> None:
        for place in range(target_count):
            roles = [self.role_of(number) for number in self.numbers_at(place, target_count)]
            if roles.count(ONE_WAY) == 1:
                raise LabError("workload.one_way of standard is wrong: every target needs two such clients, or none")
            if roles.count(TWO_WAY) % 2:
                raise LabError("workload.two_way of standard is wrong: every target needs an even number of them")

    async def behave(self, client: Client) -> None:
        if client.role == ONE_WAY:
            await self._pass_around(client)
        elif self.asks(client):
            await self._ask(client)
        else:
            await self._dialogue(client, self.answer_pause_s).answer(client, _one_more)

    async def _pass_around(self, client: Client) -> None:
        ring = self.peers(client)
        queue = client.queue(ONE_WAY)
        stream = f"{client.target}.{ONE_WAY}"
        others = [client.address_of(number) for number in ring if number != client.number]
        polling = Polling(self.poll_pause_s, pause_first=True)

        async def send(receiver: int, counter: int) -> None:
            await client.put(queue, receiver, b"%d" % counter)
            client.tally.sent(stream, counter - 1)

        if client.number == ring[0]:
            await send(client.random.choice([*others, client.address]), 1)
        while (message := await polling.wait(client, queue)) is not None:
            counter = _counter(message.body)
            if counter < 1 or not client.tally.received(stream, counter - 1):
                client.fail(f"a message that should not have come, or not again: {message}")
            if not client.stopping:
                await send(client.random.choice(others), counter + 1)

    async def _ask(self, client: Client) -> None:
        pairs = self.peers(client)
        partner = client.address_of(pairs[pairs.index(client.number) + 1])
        dialogue = self._dialogue(client, self.poll_pause_s)
        counter = 0
        while not client.stopping:
            counter += 1
            context = client.random.randrange(1, 2**31 if self.protocol == "telesto" else 2**63)
            answer = await dialogue.ask(client, partner, b"%d" % counter, counter, context)
            if answer is None:
                return

    def _dialogue(self, client: Client, pause_s: float) -> Dialogue:
        queue = client.queue(TWO_WAY)
        polling = Polling(pause_s, pause_first=True)
        return Dialogue(queue, queue, polling, _counter, lambda body: _counter(body) - 1)


def _counter(body: bytes) -> int:
    return int(body) if body.isdigit() else 0


def _one_more(body: bytes) -> bytes:
    return b"%d" % (_counter(body) + 1)
