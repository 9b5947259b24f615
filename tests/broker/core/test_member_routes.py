"""Clients that name queues by their ids are served by the member that they were sent to."""

from __future__ import annotations

import pytest

from flyball.broker.core.member_routes import MemberRoutes
from flyball.broker.core.placement import Role

PRODUCER, CONSUMER = Role.PRODUCER, Role.CONSUMER


@pytest.fixture
def members() -> set[int]:
    return {1, 2, 3}


@pytest.fixture
def usage(members: set[int]) -> MemberRoutes:
    return MemberRoutes(members.__contains__)


def test_only_members_are_counted(usage: MemberRoutes) -> None:
    for queue_id in (1, 1, 9):
        usage.note(queue_id, PRODUCER)
    assert usage.counts == {(1, PRODUCER): 2}


def test_a_client_is_served_where_it_was_sent_whatever_it_names(usage: MemberRoutes) -> None:
    usage.note(1, CONSUMER)
    usage.move(1, CONSUMER, 2)
    assert (usage.home(1, CONSUMER), usage.home(1, PRODUCER)) == (2, 1)
    assert usage.counts == {(2, CONSUMER): 1}
    usage.move(2, CONSUMER, 3)
    assert (usage.home(1, CONSUMER), usage.home(2, CONSUMER)) == (3, 3)
    usage.move(3, CONSUMER, 1)
    assert [usage.home(named, CONSUMER) for named in (1, 2, 3)] == [1, 1, 1]


def test_a_member_that_is_gone_serves_nobody(usage: MemberRoutes, members: set[int]) -> None:
    usage.note(1, PRODUCER)
    usage.move(1, PRODUCER, 2)
    members.remove(2)
    assert usage.home(1, PRODUCER) == 1
    usage.forget_gone()
    assert usage.counts == {}
