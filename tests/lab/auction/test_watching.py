"""A site that is only watched: what is noted of its requests and of its load."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from flyball.admission.counts import Served
from flyball.admission.meter import Meter
from flyball.admission.use import Unit
from flyball.control.loop import Sample
from flyball.lab.auction.watching import LOOP, LoadSampler, Watch


class Watched:
    """A site with a database, and what was noted of it."""

    def __init__(self, status: int = 200) -> None:
        self.noted: list[tuple[str, str, int]] = []
        self.meter = Meter()
        self._status = status
        self.app = Watch(self._site, lambda scope: f"{scope['method']} {scope['path']}", self._note)

    async def _site(self, scope: Scope, receive: Receive, send: Send) -> None:
        hold = self.meter.ask()
        hold.got()
        hold.end()
        if self._status == 0:
            raise RuntimeError("broken")
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _note(self, served: Served) -> None:
        self.noted.append((served.key, served.outcome, served.connections))

    def ask(self) -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            pass

        asyncio.run(self.app({"type": "http", "method": "GET", "path": "/x"}, receive, send))


@pytest.mark.parametrize(("status", "outcome"), [(200, "served"), (404, "served"), (503, "failed")])
def test_a_request_is_noted_with_what_it_took(status: int, outcome: str) -> None:
    site = Watched(status)
    site.ask()
    assert site.noted == [("GET /x", outcome, 1)]


def test_a_request_that_breaks_the_site_is_noted_and_still_breaks_it() -> None:
    site = Watched(0)
    with pytest.raises(RuntimeError, match="broken"):
        site.ask()
    assert site.noted == [("GET /x", "failed", 1)]


def test_the_load_is_recorded_as_a_loop_without_a_goal() -> None:
    async def main() -> list[Sample]:
        meter = Meter()
        samples: list[Sample] = []
        enough = asyncio.Event()

        def record(sample: Sample) -> None:
            samples.append(sample)
            if len(samples) == 3:
                enough.set()

        meter.ask().got()
        sampler = LoadSampler(meter, Unit.BUSY_MS, 0.1, record)
        sampler.start()
        sampler.start()
        await enough.wait()
        sampler.stop()
        sampler.stop()
        return samples

    samples = asyncio.run(main())
    assert [sample.sequence for sample in samples] == [0, 1, 2]
    for sample in samples:
        assert (sample.loop, sample.setpoint, sample.sample_time_s) == (LOOP, 0.0, 0.1)
        assert sample.action == sample.measurement
        # One connection, busy all the time.
        assert sample.measurement == pytest.approx(1000, rel=0.2)
