"""Jobs: one at a time for each thing, with longer and longer pauses while they fail."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from flyball.broker.cluster.jobs import BACKOFF, Jobs
from flyball.errors import ClusterError
from flyball.faults import Faults
from tests.broker.cluster.simulation.loop import VirtualLoop, run

LONG_S = 1000.0


def test_what_fails_again_and_again_is_tried_ever_less_often_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    began_s: list[float] = []

    async def fail() -> None:
        began_s.append(asyncio.get_running_loop().time())
        raise ClusterError("nobody is there")

    async def scenario(loop: VirtualLoop) -> None:
        async with asyncio.TaskGroup() as tasks:
            jobs = Jobs(tasks, Faults())
            while loop.time() - (began_s or [loop.time()])[0] < LONG_S:
                jobs.keep_trying("stop n2", fail)
                await asyncio.sleep(0.5)

    with caplog.at_level(logging.WARNING):
        run(scenario, seed=1)
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(began_s)]
    assert pauses_s == sorted(pauses_s)
    assert (pauses_s[0], pauses_s[-1]) == (BACKOFF.first_s, BACKOFF.max_s)
    assert caplog.messages == ["stop n2: nobody is there"]


def test_what_has_come_about_is_tried_at_once_when_it_is_wanted_again() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async with asyncio.TaskGroup() as tasks:
            jobs = Jobs(tasks, Faults())
            outcomes = [ClusterError("not yet"), None, ClusterError("again")]
            began_s: list[float] = []

            async def work() -> None:
                began_s.append(loop.time())
                outcome = outcomes.pop(0)
                if outcome is not None:
                    raise outcome

            while outcomes:
                jobs.keep_trying("stop n2", work)
                await asyncio.sleep(0.1)
            assert began_s[2] - began_s[1] < BACKOFF.first_s

    run(scenario, seed=1)


def test_an_errand_that_is_given_up_before_it_began_can_be_run_again() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        done: list[str] = []

        async def work() -> None:
            done.append("stop n2")

        async with asyncio.TaskGroup() as tasks:
            jobs = Jobs(tasks, Faults())
            jobs.spawn("stop n2", work)
            jobs.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert done == []
            jobs.spawn("stop n2", work)
        assert done == ["stop n2"]

    run(scenario, seed=1)


def test_nothing_is_begun_while_the_tasks_of_a_term_end() -> None:
    async def never() -> None:
        raise AssertionError("it was begun")

    async def scenario(loop: VirtualLoop) -> None:
        async with asyncio.TaskGroup() as tasks:
            jobs = Jobs(tasks, Faults())

            async def begin_late() -> None:
                try:
                    await asyncio.sleep(LONG_S)
                finally:
                    jobs.spawn("start n3", never)

            tasks.create_task(begin_late())
            await asyncio.sleep(0)
            raise ClusterError("the term is over")

    with pytest.raises(ExceptionGroup) as ended:
        run(scenario, seed=1)
    assert [type(error) for error in ended.value.exceptions] == [ClusterError]
