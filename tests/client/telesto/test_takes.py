"""What becomes of the answers to takes that were given up."""

from __future__ import annotations

import asyncio

from flyball.broker.wire.telesto import Messages, Packet, Record
from tests.telesto_client.takes import AbandonedTakes

RECORD = Record(1, 1, 0, 0, 0, 0, 0, True, False, 0, b"", b"x")


def new_answer() -> asyncio.Future[Packet]:
    return asyncio.get_running_loop().create_future()


async def test_a_caller_that_waits_adopts_an_answer_that_may_come() -> None:
    takes = AbandonedTakes()
    answer = new_answer()
    takes.leave(b"key", answer)
    assert takes.adopt(b"key", waits=False) is None
    assert takes.adopt(b"other key", waits=True) is None
    assert takes.adopt(b"key", waits=True) is answer
    assert takes.adopt(b"key", waits=True) is None


async def test_an_answer_with_messages_goes_to_any_caller() -> None:
    takes = AbandonedTakes()
    pending, ready = new_answer(), new_answer()
    takes.leave(b"key", pending)
    takes.leave(b"key", ready)
    ready.set_result(Messages(1, [RECORD]))
    await asyncio.sleep(0)
    assert takes.adopt(b"key", waits=True) is ready
    pending.cancel()
    await asyncio.sleep(0)
    assert len(takes) == 0


async def test_answers_without_messages_are_forgotten() -> None:
    takes = AbandonedTakes()
    empty, failed, late = new_answer(), new_answer(), new_answer()
    for answer in (empty, failed):
        takes.leave(b"key", answer)
    empty.set_result(Messages(1, []))
    failed.set_exception(ValueError("lost"))
    late.set_result(Messages(1, []))
    takes.leave(b"key", late)
    await asyncio.sleep(0)
    assert len(takes) == 0
