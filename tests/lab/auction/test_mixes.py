"""The mixes: what visitors do in the long run, and their walks."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from flyball.lab.auction.interactions import INTERACTIONS
from flyball.lab.auction.mixes import BIDDING, BROWSING, MIXES, START, Table, Walk


def shares(table: Table) -> dict[str, float]:
    """Return which share of all pages each interaction has, in the long run."""
    found = dict.fromkeys(table, 1 / len(table))
    for _ in range(2_000):
        ahead = dict.fromkeys(table, 0.0)
        for state, share in found.items():
            for following, probability in table[state].items():
                ahead[following] += share * probability
        # A visitor that leaves makes room for one that comes.
        ahead[START] += 1 - sum(ahead.values())
        found = ahead
    return found


def session_pages(table: Table) -> float:
    """Return how many pages a session has on average."""
    ends = sum(share * (1 - sum(table[state].values())) for state, share in shares(table).items())
    return 1 / ends


@pytest.mark.parametrize("table", MIXES.values(), ids=MIXES)
def test_a_table_leads_only_to_what_it_says_how_to_leave(table: Table) -> None:
    assert table.keys() <= INTERACTIONS.keys()
    for row in table.values():
        assert row.keys() <= table.keys()
        assert 0.85 < sum(row.values()) < 1


@pytest.mark.parametrize("table", MIXES.values(), ids=MIXES)
def test_a_session_has_about_fifty_pages(table: Table) -> None:
    assert session_pages(table) == pytest.approx(50, abs=10)


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("search_in_category", 17),
        ("view_item", 16),
        ("browse", 8),
        ("put_bid", 7),
        ("search_in_region", 7),
        ("store_bid", 5),
        ("user_info", 4),
        ("about_me", 3),
    ],
)
def test_the_bidding_mix_has_the_shares_of_rubis(name: str, percent: float) -> None:
    assert 100 * shares(BIDDING)[name] == pytest.approx(percent, abs=1.2)


@pytest.mark.parametrize(
    ("name", "percent"), [("view_item", 35), ("search_in_category", 34), ("search_in_region", 14)]
)
def test_the_browsing_mix_has_the_shares_of_rubis(name: str, percent: float) -> None:
    assert 100 * shares(BROWSING)[name] == pytest.approx(percent, abs=3)


def test_an_eleventh_of_the_bidding_mix_writes_and_none_of_the_browsing_mix() -> None:
    def writes(table: Table) -> float:
        return sum(share for name, share in shares(table).items() if INTERACTIONS[name].is_write)

    assert writes(BIDDING) == pytest.approx(0.09, abs=0.01)
    assert writes(BROWSING) == 0


def test_a_walk_begins_at_home_and_has_the_shares_of_its_table() -> None:
    walk = Walk(BIDDING, Random(1))
    assert walk.step() == (START, True)
    seen = Counter(walk.step()[0] for _ in range(50_000))
    for name, share in shares(BIDDING).items():
        assert seen[name] / 50_000 == pytest.approx(share, abs=0.01)


def test_a_new_session_begins_as_often_as_one_ends() -> None:
    walk = Walk(BIDDING, Random(2))
    begun = sum(walk.step()[1] for _ in range(50_000))
    assert 50_000 / begun == pytest.approx(session_pages(BIDDING), rel=0.1)


def test_a_walk_with_only_some_interactions_leaves_the_others_out() -> None:
    walk = Walk(BIDDING, Random(3), only=["browse", "view_item"])
    steps = [walk.step() for _ in range(1000)]
    assert {name for name, _ in steps} == {"browse", "view_item"}
    assert any(is_new for _, is_new in steps[1:])


def test_a_walk_with_nothing_left_is_refused() -> None:
    with pytest.raises(ValueError, match="none of about_me is in the table"):
        Walk(BROWSING, Random(4), only=["about_me"])
