"""The rate limit of login attempts: a few at once, then slowly, counted by name and by address."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from flyball.broker.core import attempts
from flyball.broker.core.attempts import (
    GLANCE_S,
    GLANCES,
    MAX_DELAYED,
    NAME_TRIES,
    REFILL_S,
    TRIES,
    Attempts,
    TooManyAttempts,
    place_of,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def fail(tried: Attempts, name: str = "ann", address: str = "10.0.0.1") -> None:
    async with tried.attempt(name, address):
        pass


async def succeed(tried: Attempts, name: str = "ann", address: str = "10.0.0.1") -> None:
    async with tried.attempt(name, address) as attempt:
        attempt.succeed()


async def use_up(tried: Attempts, name: str, address: str) -> None:
    for _ in range(TRIES):
        await fail(tried, name, address)


def test_after_a_few_failures_one_has_to_wait() -> None:
    async def run() -> None:
        clock = Clock()
        tried = Attempts(now=clock)
        await use_up(tried, "ann", "10.0.0.1")
        with pytest.raises(TooManyAttempts) as refused:
            await fail(tried)
        assert refused.value.retry_after_s == pytest.approx(REFILL_S)
        clock.now_s += REFILL_S
        await fail(tried)
        with pytest.raises(TooManyAttempts):
            await fail(tried)

    asyncio.run(run())


def test_one_name_is_not_tried_quickly_from_many_addresses() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        for number in range(NAME_TRIES):
            await fail(tried, "ann", f"10.0.0.{number}")
        with pytest.raises(TooManyAttempts):
            await fail(tried, "ann", "10.0.1.1")
        await fail(tried, "bob", "10.0.1.1")

    asyncio.run(run())


def test_many_names_are_not_tried_quickly_from_one_address() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        for number in range(TRIES):
            await fail(tried, f"user{number}")
        with pytest.raises(TooManyAttempts):
            await fail(tried, "ann")

    asyncio.run(run())


def test_one_address_that_guesses_leaves_tries_of_the_name_to_others() -> None:
    async def run() -> None:
        clock = Clock()
        tried = Attempts(now=clock)
        for _ in range(100):
            clock.now_s += REFILL_S / 10
            with suppress(TooManyAttempts):
                await fail(tried, "ann", "10.6.6.6")
        await succeed(tried, "ann", "10.0.0.1")

    asyncio.run(run())


def test_try_that_is_cancelled_while_it_waits_does_not_count() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        goes_on = asyncio.Event()

        async def slow_success() -> None:
            async with tried.attempt("ann", "10.0.0.1") as attempt:
                await goes_on.wait()
                attempt.succeed()

        under_way = [asyncio.ensure_future(slow_success()) for _ in range(TRIES)]
        waiting = [asyncio.ensure_future(slow_success()) for _ in range(10)]
        await asyncio.sleep(0)
        for each in waiting[:9]:
            each.cancel()
        goes_on.set()
        results = await asyncio.gather(*under_way, *waiting, return_exceptions=True)
        assert [isinstance(each, asyncio.CancelledError) for each in results] == [False] * TRIES + [True] * 9 + [
            False
        ]
        await use_up(tried, "ann", "10.0.0.1")

    asyncio.run(run())


def test_a_few_that_can_wait_are_delayed_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "REFILL_S", 0.001)

    async def run() -> None:
        tried = Attempts()
        clock = Clock()
        tried._now = clock
        await use_up(tried, "ann", "10.0.0.1")

        async def fail_later() -> bool:
            try:
                async with tried.attempt("bob", "10.0.0.1", can_wait=True):
                    return True
            except TooManyAttempts:
                return False

        later = [asyncio.ensure_future(fail_later()) for _ in range(10)]
        await asyncio.sleep(0)
        assert [each.done() for each in later] == [False] * MAX_DELAYED + [True] * (10 - MAX_DELAYED)
        clock.now_s += 1
        assert sum(await asyncio.gather(*later)) == MAX_DELAYED

    asyncio.run(run())


def test_a_success_lets_one_fail_again() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        for _ in range(3):
            for _ in range(TRIES - 1):
                await fail(tried)
            await succeed(tried)

    asyncio.run(run())


def test_who_has_logged_in_is_not_shut_out_by_others_who_guess() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        await succeed(tried, "ann", "10.0.0.1")
        for number in range(NAME_TRIES):
            await fail(tried, "ann", f"10.6.6.{number}")
        await use_up(tried, "bob", "10.0.0.1")
        with pytest.raises(TooManyAttempts):
            await succeed(tried, "ann", "10.0.0.2")
        with pytest.raises(TooManyAttempts):
            await succeed(tried, "carl", "10.0.0.1")
        await succeed(tried, "ann", "10.0.0.1")

    asyncio.run(run())


def test_nobody_guesses_quickly_where_another_has_logged_in() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        await succeed(tried, "ann", "10.0.0.1")
        await use_up(tried, "ann", "10.0.0.1")
        with pytest.raises(TooManyAttempts):
            await succeed(tried, "ann", "10.0.0.1")

    asyncio.run(run())


def test_who_says_what_was_right_need_not_wait_where_others_fail() -> None:
    async def run() -> None:
        clock = Clock()
        tried = Attempts(now=clock)
        await succeed(tried, "ann", "10.0.0.1")
        for _ in range(100):
            clock.now_s += GLANCE_S
            assert tried.glance("ann", "10.0.0.1", lambda: None) is None
            with suppress(TooManyAttempts):
                await fail(tried, "ann", "10.0.0.1")
            assert tried.glance("ann", "10.0.0.1", lambda: "ann") == "ann"

    asyncio.run(run())


def test_nobody_finds_out_quickly_what_was_right() -> None:
    async def run() -> None:
        clock = Clock()
        tried = Attempts(now=clock)
        assert tried.glance("ann", "10.0.0.1", lambda: "ann") is None, "it has not logged in there"
        await succeed(tried, "ann", "10.0.0.1")
        for _ in range(GLANCES):
            tried.glance("ann", "10.0.0.1", lambda: None)
        assert tried.glance("ann", "10.0.0.1", lambda: "ann") is None
        clock.now_s += GLANCE_S
        assert tried.glance("ann", "10.0.0.1", lambda: "ann") == "ann"

    asyncio.run(run())


def test_who_logs_in_does_not_give_more_tries_to_those_who_guess() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        await succeed(tried, "ann", "10.0.0.1")
        for number in range(NAME_TRIES):
            await fail(tried, "ann", f"10.6.6.{number}")
            await succeed(tried, "ann", "10.0.0.1")
        with pytest.raises(TooManyAttempts):
            await fail(tried, "ann", "10.6.7.7")

    asyncio.run(run())


def test_many_tries_at_once_do_not_count_as_one() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())

        async def slow_failure() -> bool:
            try:
                async with tried.attempt("ann", "10.0.0.1"):
                    await asyncio.sleep(0)
            except TooManyAttempts:
                return False
            return True

        assert sum(await asyncio.gather(*[slow_failure() for _ in range(50)])) == TRIES

    asyncio.run(run())


def test_many_requests_of_one_who_knows_the_password_are_all_let_in() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        await asyncio.gather(*[succeed(tried) for _ in range(50)])

    asyncio.run(run())


def test_a_try_that_is_broken_off_counts() -> None:
    async def run() -> None:
        tried = Attempts(now=Clock())
        for _ in range(TRIES):
            with pytest.raises(ConnectionError):
                async with tried.attempt("ann", "10.0.0.1"):
                    raise ConnectionError
        with pytest.raises(TooManyAttempts):
            await fail(tried)

    asyncio.run(run())


def test_the_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_BUCKETS", 10)

    async def run() -> None:
        tried = Attempts(now=Clock())
        for number in range(100):
            await succeed(tried, f"user{number}", f"10.0.0.{number}")
        assert len(tried) == 10

    asyncio.run(run())


def test_names_that_are_made_up_push_out_nobody_who_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_BUCKETS", 60)

    async def run() -> None:
        tried = Attempts(now=Clock())
        for number in range(NAME_TRIES):
            await fail(tried, "ann", f"10.0.0.{number}")
        for number in range(100):
            with suppress(TooManyAttempts):
                await fail(tried, f"user{number}", "10.6.6.6")
        with pytest.raises(TooManyAttempts):
            await fail(tried, "ann", "10.0.1.1")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::"),
        ("2001:db8::2:3:4:5", "2001:db8::"),
        ("2001:db8:0:1::1", "2001:db8:0:1::"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_counts_as_one_place(address: str, place: str) -> None:
    assert place_of(address) == place


def test_long_names_are_remembered_as_digests() -> None:
    async def main() -> None:
        tried = Attempts(now=Clock())
        long = "n" * 45_000
        for _ in range(TRIES):
            await fail(tried, long)
        with pytest.raises(TooManyAttempts):
            await fail(tried, long)
        assert all(len(part) <= 64 for key in tried._buckets for part in key)

    asyncio.run(main())
