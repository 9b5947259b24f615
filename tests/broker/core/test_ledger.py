"""The memory ledger in isolation: its charges, and the connections that it holds back and refuses."""

from __future__ import annotations

import asyncio

import pytest

from flyball.broker.core.memory import CONNECTIONS_RATIO, DEFINITIONS_RATIO, MIN_SHARE_BYTES, UNACKED_RATIO, Ledger
from flyball.errors import MemoryLimitReached

MIB = 1024 * 1024
LIMIT_BYTES = 100 * MIB


class Messages:
    resident_bytes = 0
    resident_limit_bytes: int | None = 10 * MIB
    absent_bytes = 0


class Holder:
    def __init__(self, held_bytes: int = 0, unacked_bytes: int = 0, *, is_link: bool = False) -> None:
        self.now_bytes = held_bytes
        self.unacked_bytes = unacked_bytes
        self.is_link = is_link
        self.charged_bytes = 0
        self.is_held_back = False
        self.reason = ""

    def held_bytes(self) -> int:
        return self.now_bytes

    def page_out(self, wanted_bytes: int) -> int:
        return 0

    def hold_back(self) -> None:
        self.is_held_back = True

    def let_go_on(self) -> None:
        self.is_held_back = False

    def exhaust(self, reason: str) -> None:
        self.reason = reason
        self.now_bytes = 0


def a_ledger(*holders: Holder) -> tuple[Ledger, Messages]:
    messages = Messages()
    ledger = Ledger(messages, LIMIT_BYTES)
    ledger.holders.update(holders)
    return ledger, messages


def test_level_counts_unpageable_messages_connections_and_definitions() -> None:
    holder = Holder(3 * MIB)
    ledger, messages = a_ledger(holder)
    messages.resident_bytes, messages.absent_bytes = 8 * MIB, 4 * MIB
    ledger.tick(MIB)
    assert (ledger.unpageable_bytes, ledger.connections_bytes, ledger.level_bytes) == (2 * MIB, 3 * MIB, 6 * MIB)
    ledger.forget(holder)
    assert ledger.level_bytes == 3 * MIB


def test_largest_connection_is_refused_and_no_other() -> None:
    share = int(CONNECTIONS_RATIO * LIMIT_BYTES)
    small, large, largest = Holder(share // 4), Holder(share // 3), Holder(share // 2)
    ledger, _ = a_ledger(small, largest, large)
    ledger.tick(0)
    assert [bool(holder.reason) for holder in (small, large, largest)] == [False, False, True]
    assert str(share // 2) in largest.reason
    assert ledger.connections_bytes == share // 4 + share // 3
    assert (ledger.refused, largest.charged_bytes) == (1, 0)


def test_links_and_small_connections_are_never_refused() -> None:
    link = Holder(LIMIT_BYTES, is_link=True)
    small = [Holder(MIN_SHARE_BYTES) for _ in range(20)]
    ledger, _ = a_ledger(link, *small)
    ledger.tick(0)
    assert not link.reason
    assert not any(holder.reason for holder in small)


def test_what_links_hold_closes_no_connection() -> None:
    link, honest = Holder(LIMIT_BYTES, is_link=True), Holder(2 * MIN_SHARE_BYTES)
    ledger, _ = a_ledger(link, honest)
    ledger.tick(0)
    assert not honest.reason
    assert (ledger.links_bytes, ledger.connections_bytes) == (LIMIT_BYTES, 2 * MIN_SHARE_BYTES)
    assert ledger.level_bytes == LIMIT_BYTES + 2 * MIN_SHARE_BYTES
    ledger.forget(link)
    assert ledger.level_bytes == 2 * MIN_SHARE_BYTES


def test_many_connections_that_each_hold_little_are_refused_until_all_fit() -> None:
    idle = [Holder(1024) for _ in range(20)]
    small = [Holder(MIN_SHARE_BYTES) for _ in range(60)]
    ledger, _ = a_ledger(*idle, *small)
    ledger.tick(0)
    assert ledger.connections_bytes <= CONNECTIONS_RATIO * LIMIT_BYTES
    assert not any(holder.reason for holder in idle)


def test_connection_above_its_unacked_share_is_held_back_under_pressure() -> None:
    async def check() -> None:
        share = int(UNACKED_RATIO * LIMIT_BYTES)
        hoarder, honest = Holder(unacked_bytes=share), Holder(unacked_bytes=2 * MIB)
        ledger, messages = a_ledger(hoarder, honest)
        ledger.page_out(1)
        assert not hoarder.is_held_back
        messages.resident_bytes = 70 * MIB
        ledger.page_out(1)
        assert (hoarder.is_held_back, honest.is_held_back) == (True, False)
        hoarder.unacked_bytes = share // 5
        async with asyncio.timeout(10):
            while hoarder.is_held_back:  # noqa: ASYNC110
                await asyncio.sleep(0)
        ledger.stop()

    asyncio.run(check())


def test_held_back_connection_goes_on_when_the_pressure_is_over() -> None:
    async def check() -> None:
        hoarder = Holder(unacked_bytes=80 * MIB)
        ledger, messages = a_ledger(hoarder)
        messages.resident_bytes = 90 * MIB
        ledger.tick(0)
        assert hoarder.is_held_back
        messages.resident_bytes = 0
        async with asyncio.timeout(10):
            while hoarder.is_held_back:  # noqa: ASYNC110
                await asyncio.sleep(0)
        ledger.stop()

    asyncio.run(check())


def test_definitions_beyond_their_share_are_refused() -> None:
    ledger, _ = a_ledger()
    limit_bytes = int(DEFINITIONS_RATIO * LIMIT_BYTES)
    ledger.tick(limit_bytes - 1)
    with pytest.raises(MemoryLimitReached, match="raise --memory-bytes"):
        ledger.charge_definition(2)
    ledger.charge_definition(1)


def test_definitions_declared_since_the_last_tick_count() -> None:
    ledger, _ = a_ledger()
    limit_bytes = int(DEFINITIONS_RATIO * LIMIT_BYTES)
    ledger.tick(0)
    for _ in range(4):
        ledger.charge_definition(limit_bytes // 4)
    with pytest.raises(MemoryLimitReached):
        ledger.charge_definition(limit_bytes // 4)
    ledger.tick(limit_bytes // 2)
    ledger.charge_definition(limit_bytes // 4)
