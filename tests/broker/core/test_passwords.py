"""Passwords are checked off the loop, remembered briefly when right, and never kept."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flyball.broker.core import passwords as module
from flyball.broker.core.passwords import MAX_CACHED, REMEMBER_S, Passwords, check_hash
from flyball.errors import InvalidArgument
from tests.nodes import ANSWER_LIMIT_S


class Clock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def passwords(clock: Clock) -> Passwords:
    return Passwords(now=clock)


def test_only_the_right_password_fits_its_hash(passwords: Passwords) -> None:
    async def run() -> None:
        hashed = await passwords.hash_password("secret")
        assert await passwords.verify(hashed, "secret")
        assert await passwords.verify(hashed, b"secret")
        for wrong in ("Secret", "secret ", "", b"\xff", "half \ud83d", "x" * 2000, hashed):
            assert not await passwords.verify(hashed, wrong)

    asyncio.run(run())


def test_two_hashes_of_a_password_differ_and_do_not_show_it(passwords: Passwords) -> None:
    async def run() -> None:
        first, second = await passwords.hash_password("secret"), await passwords.hash_password("secret")
        assert first != second
        assert first.startswith("$argon2id$")
        assert "secret" not in first
        assert "secret" not in repr(vars(passwords))

    asyncio.run(run())


def test_a_success_is_remembered_and_a_failure_is_not(passwords: Passwords) -> None:
    async def run() -> None:
        hashed = await passwords.hash_password("secret")
        assert passwords.runs == 1
        for _ in range(5):
            assert await passwords.verify(hashed, "secret")
        assert passwords.runs == 2
        for _ in range(3):
            assert not await passwords.verify(hashed, "wrong")
        assert passwords.runs == 5

    asyncio.run(run())


def test_what_is_remembered_holds_no_password(passwords: Passwords) -> None:
    async def run() -> None:
        hashed = await passwords.hash_password("secret")
        await passwords.verify(hashed, "secret")
        assert b"secret" not in repr(passwords._cached).encode()
        # Another process has another key: what one remembers says nothing to another.
        other = Passwords()
        await other.verify(hashed, "secret")
        assert set(other._cached).isdisjoint(passwords._cached)

    asyncio.run(run())


def test_a_success_is_forgotten_after_a_while(passwords: Passwords, clock: Clock) -> None:
    async def run() -> None:
        hashed = await passwords.hash_password("secret")
        await passwords.verify(hashed, "secret")
        clock.time_s += REMEMBER_S
        runs = passwords.runs
        assert await passwords.verify(hashed, "secret")
        assert passwords.runs == runs + 1

    asyncio.run(run())


def test_a_success_is_remembered_while_it_is_repeated(passwords: Passwords, clock: Clock) -> None:
    async def run() -> None:
        hashed = await passwords.hash_password("secret")
        assert not passwords.remembers(hashed, "secret")
        await passwords.verify(hashed, "secret")
        for _ in range(3):
            clock.time_s += REMEMBER_S - 1
            assert passwords.remembers(hashed, "secret")
            assert not passwords.remembers(hashed, "wrong")
        clock.time_s += REMEMBER_S
        assert not passwords.remembers(hashed, "secret")

    asyncio.run(run())


def test_a_success_says_nothing_about_another_hash(passwords: Passwords) -> None:
    async def run() -> None:
        old, new = await passwords.hash_password("old"), await passwords.hash_password("new")
        assert await passwords.verify(old, "old")
        assert not await passwords.verify(new, "old")

    asyncio.run(run())


def test_a_thousand_logins_at_once_cost_a_few_runs(passwords: Passwords) -> None:
    async def run() -> None:
        hashed = await passwords.hash_password("secret")
        async with asyncio.TaskGroup() as tasks:
            logins = [tasks.create_task(passwords.verify(hashed, "secret")) for _ in range(1000)]
        assert all(login.result() for login in logins)
        assert passwords.runs <= 1 + module.MAX_CONCURRENT_RUNS

    asyncio.run(run())


def test_who_does_not_exist_costs_a_full_run(passwords: Passwords) -> None:
    async def run() -> None:
        for runs, (hashed, password) in enumerate([(None, "secret"), (None, ""), (None, "-")], start=1):
            assert not await passwords.verify(hashed, password)
            assert passwords.runs == runs

    asyncio.run(run())


@pytest.mark.usefixtures("usual_password_cost")
def test_the_decoy_costs_what_a_hash_costs(passwords: Passwords) -> None:
    hashed = asyncio.run(passwords.hash_password("secret"))
    assert passwords._decoy.split("$")[:4] == hashed.split("$")[:4]
    assert list(map(len, passwords._decoy.split("$"))) == list(map(len, hashed.split("$")))


def test_the_loop_goes_on_while_argon2_runs(passwords: Passwords) -> None:
    goes_on = threading.Event()

    class Hasher:
        def hash(self, password: bytes) -> str:
            assert goes_on.wait(ANSWER_LIMIT_S), "the loop waits for it"
            return "hash"

    passwords._hasher = Hasher()  # type: ignore[assignment]

    async def run() -> None:
        hashing = asyncio.ensure_future(passwords.hash_password("secret"))
        for _ in range(10):
            await asyncio.sleep(0)
        goes_on.set()
        assert await hashing == "hash"

    asyncio.run(run())


def test_memory_of_successes_is_bounded(passwords: Passwords) -> None:
    for number in range(MAX_CACHED + 10):
        passwords._remember(str(number).encode())
    assert len(passwords._cached) == MAX_CACHED
    assert not passwords._is_cached(b"0")
    assert passwords._is_cached(b"10")


def test_a_damaged_hash_fits_nothing(passwords: Passwords) -> None:
    assert not asyncio.run(passwords.verify("no hash", "secret"))


@pytest.mark.parametrize("password", ["", "zero \0 inside", "x" * 1025, "é" * 600])
def test_a_password_that_cannot_be_used_is_refused_without_being_shown(passwords: Passwords, password: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        asyncio.run(passwords.hash_password(password))
    assert not password or password not in str(refused.value)


HASH = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"


def test_a_hash_of_ours_may_come_from_elsewhere(passwords: Passwords) -> None:
    check_hash(asyncio.run(passwords.hash_password("secret")))
    check_hash(HASH)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("$argon2id", "$argon2i"), "not a password hash of Flyball"),
        (("$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g", "$"), "not a password hash of Flyball"),
        (("$c2FsdHNhbHRzYWx0c2FsdA", "$"), "not a password hash of Flyball"),
        ((HASH, "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"), "not a password hash of Flyball"),
        ((HASH, "x" * 1000), "not a password hash of Flyball"),
        (("m=19456", "m=99999999"), "too expensive to verify"),
        (("t=2", "t=1000"), "too expensive to verify"),
        (("p=1", "p=99"), "too expensive to verify"),
    ],
)
def test_a_hash_that_is_not_ours_or_takes_too_much_is_refused(change: tuple[str, str], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        check_hash(HASH.replace(*change))
