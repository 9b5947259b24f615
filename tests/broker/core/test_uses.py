"""Clients that name queues by their ids are served by the member that they were sent to."""

from __future__ import annotations

import pytest

from flyball.broker.core.placement import Role
from flyball.broker.core.uses import Uses

PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


@pytest.fixture
def members() -> set[int]:
    return {1, 2, 3}


@pytest.fixture
def uses(members: set[int]) -> Uses:
    return Uses(members.__contains__)


def test_only_members_are_counted(uses: Uses) -> None:
    for queue_id in (1, 1, 9):
        uses.note(queue_id, PRODUCER)
    assert uses.counts == {(1, PRODUCER): 2}


def test_a_client_is_served_where_it_was_sent_whatever_it_names(uses: Uses) -> None:
    uses.note(1, CONSUMER)
    uses.move(1, CONSUMER, 2)
    assert (uses.home(1, CONSUMER), uses.home(1, PRODUCER)) == (2, 1)
    assert uses.counts == {(2, CONSUMER): 1}
    uses.move(2, CONSUMER, 3)
    assert (uses.home(1, CONSUMER), uses.home(2, CONSUMER)) == (3, 3)
    uses.move(3, CONSUMER, 1)
    assert [uses.home(named, CONSUMER) for named in (1, 2, 3)] == [1, 1, 1]


def test_a_member_that_is_gone_serves_nobody(uses: Uses, members: set[int]) -> None:
    uses.note(1, PRODUCER)
    uses.move(1, PRODUCER, 2)
    members.remove(2)
    assert uses.home(1, PRODUCER) == 1
    uses.forget_gone()
    assert uses.counts == {}
