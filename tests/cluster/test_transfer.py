"""When members of a clustered queue exchange messages, and how many."""

from __future__ import annotations

import pytest

from flyball.cluster.transfer import MOST_AT_ONCE, WORTH_ASKING, Handover, MemberLoad, share, surplus, whom_to_ask

HUNGRY = MemberLoad(1, ready=0, idle=2, consumers=2)


def test_a_member_keeps_what_it_may_hold() -> None:
    assert surplus(MemberLoad(1, 100), [MemberLoad(2, 0)], may_hold=100) == []


def test_the_surplus_goes_to_those_who_have_room_those_first_whose_consumers_wait() -> None:
    others = [MemberLoad(2, 10), MemberLoad(3, 0, idle=1), MemberLoad(4, 60)]
    found = surplus(MemberLoad(1, 150), others, may_hold=100)
    assert found == [Handover(3, 50)]


def test_a_member_that_is_marked_gives_all_it_has_to_those_that_are_not() -> None:
    others = [MemberLoad(2, 500), MemberLoad(3, 500), MemberLoad(4, 0, is_marked=True)]
    found = surplus(MemberLoad(1, 11, is_marked=True), others, may_hold=100)
    assert sorted((handover.destination, handover.count) for handover in found) == [(2, 6), (3, 5)]


def test_nobody_gets_more_than_fits_into_one_transfer() -> None:
    assert surplus(MemberLoad(1, 10**6), [MemberLoad(2, 0)], may_hold=100) == [Handover(2, MOST_AT_ONCE)]


def test_a_member_whose_consumers_wait_asks_the_fullest() -> None:
    others = [MemberLoad(2, 50, consumers=1), MemberLoad(3, 80, consumers=1), MemberLoad(4, 90, idle=1, consumers=1)]
    assert whom_to_ask(HUNGRY, others) == others[1]


@pytest.mark.parametrize(
    "own", [MemberLoad(1, ready=1, idle=1), MemberLoad(1, ready=0), MemberLoad(1, 0, idle=1, is_marked=True)]
)
def test_a_member_that_has_messages_or_no_use_for_them_asks_nobody(own: MemberLoad) -> None:
    assert whom_to_ask(own, [MemberLoad(2, 50)]) is None


def test_few_messages_are_left_to_the_consumers_that_are_there() -> None:
    assert whom_to_ask(HUNGRY, [MemberLoad(2, WORTH_ASKING - 1, consumers=1)]) is None


def test_the_last_message_of_a_member_without_consumers_is_not_left_behind() -> None:
    lonely = MemberLoad(2, ready=1)
    assert whom_to_ask(HUNGRY, [lonely]) == lonely
    assert share(lonely, MOST_AT_ONCE) == 1


def test_a_member_gives_half_of_what_its_own_consumers_take_too_and_all_if_it_is_marked() -> None:
    assert share(MemberLoad(2, 50, consumers=1), MOST_AT_ONCE) == 25
    assert share(MemberLoad(2, 50, is_marked=True, consumers=1), MOST_AT_ONCE) == 50
    assert share(MemberLoad(2, 10**6, consumers=1), 7) == 7
