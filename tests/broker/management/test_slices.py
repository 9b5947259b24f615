"""However many long answers are made at once, one slice of them is made in a turn of the loop."""

from __future__ import annotations

import asyncio

from flyball.broker.management.slices import next_slice


def test_one_slice_is_made_in_a_turn_of_the_loop() -> None:
    turn = 0
    slices: list[tuple[int, str]] = []

    async def make(name: str) -> None:
        for _ in range(5):
            await next_slice()
            slices.append((turn, name))

    async def run() -> None:
        nonlocal turn
        answers = [asyncio.ensure_future(make(name)) for name in "abc"]
        while not all(answer.done() for answer in answers):
            turn += 1
            await asyncio.sleep(0)

    asyncio.run(run())
    turns = [at for at, _ in slices]
    assert len(set(turns)) == len(turns) == 15
    # All have their share.
    assert {name for _, name in slices[:3]} == {"a", "b", "c"}


def test_an_answer_that_nobody_waits_for_any_more_keeps_no_other_from_its_slice() -> None:
    async def run() -> list[str]:
        made: list[str] = []

        async def make(name: str) -> None:
            await next_slice()
            made.append(name)

        given_up, other = (asyncio.ensure_future(make(name)) for name in ("given up", "other"))
        await asyncio.sleep(0)
        given_up.cancel()
        await other
        await make("late")
        return made

    assert asyncio.run(run()) == ["other", "late"]
