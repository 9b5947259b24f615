"""When members of a clustered queue exchange messages, and how many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flyball.broker.cluster.transfer_policy import MAX_TRANSFER, MemberLoad, Transfer, choose_donor, share, surplus


def test_a_member_keeps_what_it_may_hold() -> None:
    assert surplus(MemberLoad(1, 100), [MemberLoad(2, 0, idle=3)], 100) == []


def test_the_surplus_goes_first_to_where_consumers_wait_and_evens_out() -> None:
    others = [MemberLoad(2, 60), MemberLoad(3, 0, idle=1)]
    assert surplus(MemberLoad(1, 300), others, 100) == [Transfer(3, 120), Transfer(2, 60)]


def test_nothing_goes_to_marked_or_full_members() -> None:
    assert surplus(MemberLoad(1, 300), [MemberLoad(2, 0, is_marked=True), MemberLoad(3, 100)], 100) == []


def test_a_marked_member_gives_all_it_has() -> None:
    own = MemberLoad(1, 5, is_marked=True)
    assert surplus(own, [MemberLoad(2, 500), MemberLoad(3, 500)], 100) == [Transfer(2, 3), Transfer(3, 2)]


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=5), st.integers(1, 1000))
def test_exchanging_surplus_comes_to_an_end(held: list[int], may_hold: int) -> None:
    for _ in range(200):
        before = list(held)
        for place in range(len(held)):
            loads = [MemberLoad(number, ready) for number, ready in enumerate(held)]
            for handover in surplus(loads[place], [load for load in loads if load is not loads[place]], may_hold):
                held[place] -= handover.count
                held[handover.destination] += handover.count
        if held == before:
            break
    assert held == before
    assert min(held) >= 0


def test_the_fullest_member_is_asked_unless_its_own_consumers_wait() -> None:
    own = MemberLoad(1, 0, idle=1)
    busy, fuller, idle = MemberLoad(2, 20, consumers=1), MemberLoad(3, 30, consumers=1), MemberLoad(4, 90, idle=1)
    assert choose_donor(own, [busy, fuller, idle], has_waited=False) is fuller


def test_few_messages_are_asked_for_only_if_nobody_seems_to_take_them() -> None:
    own, served, lonely = MemberLoad(1, 0, idle=1), MemberLoad(2, 3, consumers=2), MemberLoad(3, 1)
    assert choose_donor(own, [served], has_waited=False) is None
    assert choose_donor(own, [served], has_waited=True) is served
    assert choose_donor(own, [lonely], has_waited=False) is lonely


def test_half_is_given_where_somebody_consumes_and_all_where_nobody_does() -> None:
    assert share(MemberLoad(1, 9, consumers=1), MAX_TRANSFER) == 5
    assert share(MemberLoad(1, 9), MAX_TRANSFER) == 9
    assert share(MemberLoad(1, 5000), MAX_TRANSFER) == MAX_TRANSFER
