"""The tests of the Telesto report: counters that are passed around, request-response pairs, and a request service."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flyball.errors import LabError
from flyball.lab.drivers import ANY_RECEIVER
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.conversation import Dialogue, Polling
from flyball.lab.workloads.workload import ProtocolName, Seconds, Workload

ONE_WAY, PAIRS, SERVICE, SERVICE_ANSWERS = "one_way", "pairs", "service", "service_answers"
ASKER, ANSWERER = "asker", "answerer"
PAIR_ASKER, PAIR_ANSWERER = "pair_asker", "pair_answerer"
# The roles of a mixed population, in the order of its clients' numbers.
MIXED_ROLES = (ONE_WAY, PAIR_ASKER, PAIR_ANSWERER, ASKER, ANSWERER)


class TelestoWorkload(Workload):
    """Base of the workloads with polling clients."""

    needs_messages: ClassVar[bool] = True

    protocol: ProtocolName = "telesto"
    # Pause of a client after a read that found nothing.
    retry_delay_s: Seconds = 0.1

    @property
    def drains(self) -> bool:
        return True

    @property
    def polling(self) -> Polling:
        return Polling(self.retry_delay_s)


class TelestoOneWay(TelestoWorkload):
    """Each client puts a counter to a random other one, polls until it receives one, passes that on, and so on."""

    addressed_queues: ClassVar[tuple[str, ...]] = (ONE_WAY,)

    kind: Literal["telesto_one_way"] = "telesto_one_way"
    clients: Annotated[int, Field(ge=2)] = 50

    @property
    def client_count(self) -> int:
        return self.clients

    def role_of(self, number: int) -> str:
        return ONE_WAY

    def listens(self, client: Client) -> bool:
        return True

    def check(self, target_count: int) -> None:
        if self.clients < 2 * target_count:
            raise LabError("workload.clients of telesto_one_way is wrong: every target needs two of them")

    async def behave(self, client: Client) -> None:
        await pass_counters(client, self.polling, self.peers(client))


async def pass_counters(client: Client, polling: Polling, ring: Sequence[int]) -> None:
    """Put a counter to a random other client of the ring, wait for one, and pass it on."""
    queue = client.queue(ONE_WAY)
    others = [client.address_of(number) for number in ring if number != client.number]
    counter, sent = 1, 0
    while True:
        if not client.stopping:
            sent += 1
            # The context numbers this client's messages; the text is the counter that is passed around.
            await client.put(queue, client.random.choice(others), b"%d" % counter, sent)
            client.tally.sent(f"{client.target}.{client.address}", sent - 1)
        message = await polling.wait(client, queue)
        if message is None:
            return
        if message.context < 1 or not message.body.isdigit():
            client.fail(f"a message that was never sent: {message}")
        if not client.tally.received(f"{client.target}.{message.sender}", message.context - 1):
            client.fail(f"message {message.context} of client {message.sender} was duplicated")
        counter = int(message.body) + 1


class TelestoDialogue(TelestoWorkload):
    """Requesting and answering clients, with texts `a-b` in which each side increments its part."""

    def listens(self, client: Client) -> bool:
        return client.role == ANSWERER

    def in_pairs(self, client: Client) -> Dialogue:
        """Return the dialogue between the two clients of a pair."""
        queue = client.queue(PAIRS)
        return Dialogue(queue, queue, self.polling, _number, _number)

    def of_service(self, client: Client) -> Dialogue:
        """Return the dialogue with any server that takes the request."""
        # In the original both are one queue. There a reader of ThorBangMQ would mistake requests for answers.
        queues = client.queue(SERVICE), client.queue(SERVICE_ANSWERS)
        return Dialogue(*queues, self.polling, _number, _number)

    async def ask_on(self, client: Client, dialogue: Dialogue, receiver: int) -> None:
        """Send requests, each after the previous answer, until the run stops."""
        asked = answered = 0
        while not client.stopping:
            asked += 1
            answer = await dialogue.ask(client, receiver, b"%d-%d" % (asked, answered), asked, asked)
            if answer is None:
                return
            answered = _parts(answer.body)[1]


class TelestoPairs(TelestoDialogue):
    """Request-response pairs: one client of each pair sends requests to the other."""

    addressed_queues: ClassVar[tuple[str, ...]] = (PAIRS,)

    kind: Literal["telesto_pairs"] = "telesto_pairs"
    pairs: Annotated[int, Field(ge=1)] = 15

    @property
    def client_count(self) -> int:
        return 2 * self.pairs

    def role_of(self, number: int) -> str:
        return ASKER if number < self.pairs else ANSWERER

    def check(self, target_count: int) -> None:
        if self.pairs % target_count:
            raise LabError("workload.pairs of telesto_pairs is wrong: every target needs the same number of them")

    async def behave(self, client: Client) -> None:
        dialogue = self.in_pairs(client)
        if client.role == ASKER:
            await self.ask_on(client, dialogue, client.address_of(client.number + self.pairs))
        else:
            await dialogue.answer(client, _one_more)


class TelestoService(TelestoDialogue):
    """A request service: requests have no receiver, and any server takes them."""

    shared_queues: ClassVar[tuple[str, ...]] = (SERVICE,)
    addressed_queues: ClassVar[tuple[str, ...]] = (SERVICE_ANSWERS,)

    kind: Literal["telesto_service"] = "telesto_service"
    askers: Annotated[int, Field(ge=1)] = 20
    servers: Annotated[int, Field(ge=1)] = 10

    @property
    def client_count(self) -> int:
        return self.askers + self.servers

    def role_of(self, number: int) -> str:
        return ASKER if number < self.askers else ANSWERER

    def check(self, target_count: int) -> None:
        if self.servers < target_count:
            raise LabError("workload.servers of telesto_service is wrong: every target needs one of them")

    async def behave(self, client: Client) -> None:
        dialogue = self.of_service(client)
        if client.role == ASKER:
            await self.ask_on(client, dialogue, ANY_RECEIVER)
        else:
            await dialogue.answer(client, _one_more, unaddressed=True)


class TelestoMixed(TelestoDialogue):
    """All three at once, as in the report's experiments: one-way clients, then pairs, then a request service."""

    shared_queues: ClassVar[tuple[str, ...]] = (SERVICE,)
    addressed_queues: ClassVar[tuple[str, ...]] = (ONE_WAY, PAIRS, SERVICE_ANSWERS)

    kind: Literal["telesto_mixed"] = "telesto_mixed"
    one_way: Annotated[int, Field(ge=2)] = 30
    pairs: Annotated[int, Field(ge=1)] = 15
    askers: Annotated[int, Field(ge=1)] = 15
    servers: Annotated[int, Field(ge=1)] = 15

    @property
    def client_count(self) -> int:
        return self.one_way + 2 * self.pairs + self.askers + self.servers

    def role_of(self, number: int) -> str:
        counts = (self.one_way, self.pairs, self.pairs, self.askers, self.servers)
        ends = itertools.accumulate(counts)
        return next(role for role, end in zip(MIXED_ROLES, ends, strict=True) if number < end)

    def listens(self, client: Client) -> bool:
        return client.role in (ONE_WAY, PAIR_ANSWERER, ANSWERER)

    def check(self, target_count: int) -> None:
        if self.one_way < 2 * target_count:
            raise LabError("workload.one_way of telesto_mixed is wrong: every target needs two of them")
        if self.pairs % target_count:
            raise LabError("workload.pairs of telesto_mixed is wrong: every target needs the same number of them")
        if self.servers < target_count:
            raise LabError("workload.servers of telesto_mixed is wrong: every target needs one of them")

    async def behave(self, client: Client) -> None:
        if client.role == ONE_WAY:
            await pass_counters(client, self.polling, self.peers(client))
        elif client.role == PAIR_ASKER:
            await self.ask_on(client, self.in_pairs(client), client.address_of(client.number + self.pairs))
        elif client.role == PAIR_ANSWERER:
            await self.in_pairs(client).answer(client, _one_more)
        elif client.role == ASKER:
            await self.ask_on(client, self.of_service(client), ANY_RECEIVER)
        else:
            await self.of_service(client).answer(client, _one_more, unaddressed=True)


def _parts(text: bytes) -> tuple[int, int]:
    """Return both parts of a text `a-b`, zeros if it does not match."""
    asked, _, answered = text.partition(b"-")
    return (int(asked), int(answered)) if asked.isdigit() and answered.isdigit() else (0, 0)


def _number(text: bytes) -> int:
    return _parts(text)[0]


def _one_more(text: bytes) -> bytes:
    asked, answered = _parts(text)
    return b"%d-%d" % (asked, answered + 1)
