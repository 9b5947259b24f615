"""Clients that have not logged in are bounded in number, and no address takes the places of others."""

from __future__ import annotations

from flyball.broker.transport.handshakes import Handshakes


def test_newest_client_of_the_most_crowded_address_is_dropped() -> None:
    handshakes: Handshakes[str] = Handshakes(4)
    assert [handshakes.add(f"many {number}", "10.6.6.6") for number in range(4)] == [None] * 4
    assert handshakes.add("many 4", "10.6.6.6") == "many 4"
    assert handshakes.add("one", "10.0.0.1") == "many 3"
    assert handshakes.add("two", "10.0.0.2") == "many 2"
    assert len(handshakes) == 4


def test_among_equals_the_new_client_is_dropped() -> None:
    handshakes: Handshakes[str] = Handshakes(2)
    assert [handshakes.add(name, name) for name in ("one", "two", "three")] == [None, None, "three"]


def test_lower_limit_for_now_drops_the_newest_of_the_most_crowded_address() -> None:
    handshakes: Handshakes[str] = Handshakes(10)
    assert [handshakes.add(f"many {number}", "10.6.6.6", 3) for number in range(3)] == [None] * 3
    assert handshakes.add("one", "10.0.0.1", 3) == "many 2"
    assert handshakes.shrink(3) is None
    assert handshakes.shrink(2) == "many 1"
    assert [handshakes.shrink(1), handshakes.shrink(0), len(handshakes)] == ["many 0", "one", 0]


def test_client_that_has_logged_in_makes_room() -> None:
    handshakes: Handshakes[str] = Handshakes(1)
    handshakes.add("one", "10.0.0.1")
    handshakes.remove("one")
    handshakes.remove("one")
    assert handshakes.add("two", "10.0.0.1") is None


def test_network_of_ipv6_counts_as_one_address() -> None:
    handshakes: Handshakes[str] = Handshakes(2)
    handshakes.add("one", "2001:db8::1")
    handshakes.add("two", "2001:db8::2")
    assert handshakes.add("other", "2001:db9::1") == "two"
