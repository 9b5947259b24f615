"""Visitors of the auction site, after RUBiS's client emulator: sessions on a transition table, with think times.

A visitor that is refused, or times out, thinks and continues: that is a result, not a failure of the run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import time
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flyball.errors import LabError
from flyball.lab.auction.interactions import INTERACTIONS, Interaction, Memory
from flyball.lab.auction.mixes import MIXES, Mix, Walk
from flyball.lab.auction.settings import SiteSettings
from flyball.lab.auction.sizes import Sizes
from flyball.lab.drivers import HttpSession, Target, connect
from flyball.lab.workloads.client import Client
from flyball.lab.workloads.workload import Count, EarlierRun, ProtocolName, Seconds, Workload
from flyball.trace.schema import Kind, Result

NORMAL, SMALL_ONLY = "normal", "small_only"
SMALL, LARGE = "small", "large"
PACKAGES = ("jinja2", "psycopg_pool", "starlette", "uvicorn")
WARM_UP_ROUNDS = 3
# Large interactions in the absence of a profile: RUBiS's heavy ones.
LIKELY_LARGE = ("search_in_region", "about_me", "user_info", "bid_history")

_KINDS = {SMALL: int(Kind.SMALL), LARGE: int(Kind.LARGE)}
_OK, _REFUSED, _FAILED = int(Result.OK), int(Result.REFUSED), int(Result.FAILED)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Crowd(BaseModel):
    """The number of visitors of each kind from a time on; surplus visitors leave."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Since the start, before `time_scale` is applied.
    at_s: Positive
    clients: Count
    small_clients: Count


class Auction(Workload):
    """Visitors of two kinds: those who follow the mix, and those whose requests are all small."""

    protocols: ClassVar[tuple[str, ...]] = ("http",)

    kind: Literal["auction"] = "auction"
    protocol: ProtocolName = "http"
    clients: Count = 100
    small_clients: Count = 0
    mix: Mix = "bidding"
    # Mean time from an answer to the next request, exponentially distributed.
    think_time_s: Seconds = 7.0
    # Maximum time that a visitor waits for an answer.
    time_out_s: Positive = 8.0
    # Whether visitors keep their connections while they think. A proxy before a site opens one per request.
    keeps_alive: bool = False
    schedule: tuple[Crowd, ...] = ()
    # Whether control searches for a reference instead of using the one of the experiment in `needs`.
    finds_reference: bool = False
    # Factor for all times in the schedule.
    time_scale: Positive = 1.0

    @model_validator(mode="after")
    def _has_clients(self) -> Self:
        times_s = [crowd.at_s for crowd in self.schedule]
        if times_s != sorted(set(times_s)):
            raise ValueError("the times in schedule must increase")
        if self.client_count == 0:
            raise ValueError("there must be a client at some time")
        return self

    @property
    def client_count(self) -> int:
        return self._most_clients + max([self.small_clients, *(crowd.small_clients for crowd in self.schedule)])

    @property
    def _most_clients(self) -> int:
        return max([self.clients, *(crowd.clients for crowd in self.schedule)])

    def role_of(self, number: int) -> str:
        return NORMAL if number < self._most_clients else SMALL_ONLY

    def spans_of(self, number: int) -> list[tuple[float, float]]:
        """Return the intervals, in seconds since the start, in which that visitor is active."""
        is_small = number >= self._most_clients
        place = number - self._most_clients if is_small else number
        spans: list[tuple[float, float]] = []
        begin_s, count = 0.0, self.small_clients if is_small else self.clients
        for crowd in [*self.schedule, None]:
            end_s = math.inf if crowd is None else crowd.at_s * self.time_scale
            if place < count:
                if spans and spans[-1][1] == begin_s:
                    begin_s = spans.pop()[0]
                spans.append((begin_s, end_s))
            if crowd is not None:
                begin_s, count = end_s, crowd.small_clients if is_small else crowd.clients
        return spans

    def check_packages(self) -> None:
        for package in PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise LabError(f"the auction site needs {package}: pip install 'flyball[auction]'")

    def prepare(self, earlier: Sequence[EarlierRun]) -> dict[str, Any]:
        """Return the `profile` of the site, `classes` of its interactions by key, and the `reference` if known."""
        if not earlier:
            return {}
        # Imported lazily: it is slow.
        from flyball.lab.auction_profile import profiled

        return profiled(earlier)

    def target_settings(self, prepared: Mapping[str, Any]) -> dict[str, Any]:
        names = ["profile"] if self.finds_reference else ["profile", "reference"]
        return {name: prepared[name] for name in names if prepared.get(name) is not None}

    async def set_up(self, targets: Sequence[Target]) -> dict[str, Any]:
        for target in targets:
            await _warm_up(target, self.time_out_s)
        queues = {interaction.key: interaction.key for interaction in INTERACTIONS.values()}
        return {
            "queues": {target.name: queues for target in targets},
            "addresses": {str(number): number + 1 for number in range(self.client_count)},
            "sites": {target.name: target.settings for target in targets},
        }

    async def behave(self, client: Client) -> None:
        settings = SiteSettings.model_validate(client.set_up["sites"][client.target])
        visitor = _Visitor(self, client, settings.sizes, classes_of(client.set_up))
        client.at_next_stage(visitor.hurry)
        for begin_s, end_s in self.spans_of(client.number):
            await client.pause(begin_s - _since_begin_s(client))
            await visitor.visit(end_s)


def classes_of(set_up: Mapping[str, Any]) -> dict[str, str]:
    """Return the class of each key, small or large: from the profile, else an assumption."""
    classes: dict[str, str] = dict(set_up.get("classes", {}))
    for interaction in INTERACTIONS.values():
        classes.setdefault(interaction.key, LARGE if interaction.name in LIKELY_LARGE else SMALL)
    return classes


async def _warm_up(target: Target, limit_s: float) -> None:
    """Request every page several times, so that caches are warm. Raises LabError if a request fails."""
    session = await connect("http", target)
    assert isinstance(session, HttpSession)
    sizes, random, memory = SiteSettings.model_validate(target.settings).sizes, Random(0), Memory()
    for interaction in WARM_UP_ROUNDS * tuple(INTERACTIONS.values()):
        try:
            async with asyncio.timeout(limit_s):
                answer = await session.fetch(*interaction.request(random, sizes, memory), keeps_alive=False)
        except TimeoutError:
            raise LabError(f"{target.name} does not answer {interaction.key} within {limit_s:g} s") from None
        if answer.status >= 500:
            raise LabError(f"{target.name} answers {interaction.key} with {answer.status} before the first visitor")
        memory.read(answer.body)


def _since_begin_s(client: Client) -> float:
    return (time.perf_counter_ns() - client.begin_ns) / 1e9


class _Visitor:
    """A running client: its walk and its pending request."""

    def __init__(self, workload: Auction, client: Client, sizes: Sizes, classes: Mapping[str, str]) -> None:
        assert isinstance(client.session, HttpSession)
        self._workload = workload
        self._client = client
        self._session = client.session
        self._sizes = sizes
        self._classes = classes
        self._walk = Walk(MIXES[workload.mix], client.random, self._only())
        self._memory = Memory()
        self._waiting: asyncio.Timeout | None = None

    def _only(self) -> Collection[str] | None:
        if self._client.role == NORMAL:
            return None
        return [name for name, one in INTERACTIONS.items() if self._classes[one.key] == SMALL]

    def hurry(self) -> None:
        """Abort the pending request: the run stops."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def visit(self, until_s: float) -> None:
        """Visit pages until that time since the start, or until the run stops."""
        client = self._client
        while not client.stopping:
            think_s = client.random.expovariate(1.0) * self._workload.think_time_s
            await client.pause(min(think_s, until_s - _since_begin_s(client)))
            if client.stopping or _since_begin_s(client) >= until_s:
                return
            name, is_new = self._walk.step()
            if is_new:
                self._memory = Memory()
            await self._see(INTERACTIONS[name])

    async def _see(self, interaction: Interaction) -> None:
        client = self._client
        request = interaction.request(client.random, self._sizes, self._memory)
        result, size_bytes = await self._result_of(*request)
        if not client.stopping:
            client.note(_KINDS[self._classes[interaction.key]], result, interaction.key, size_bytes)

    async def _result_of(self, method: str, path: str, form: Mapping[str, str] | None) -> tuple[int, int]:
        """Return the outcome of the request and the length of the page."""
        workload = self._workload
        try:
            async with asyncio.timeout(workload.time_out_s) as self._waiting:
                answer = await self._session.fetch(method, path, form, keeps_alive=workload.keeps_alive)
        except OSError:
            # Connection refused or closed early; TimeoutError is a subclass of OSError.
            return _FAILED, 0
        finally:
            self._waiting = None
        self._memory.read(answer.body)
        if answer.status < 500:
            return _OK, len(answer.body)
        return _REFUSED if answer.status == 503 else _FAILED, len(answer.body)
