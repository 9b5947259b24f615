"""How things of a domain are called."""

from __future__ import annotations

from flyball.broker.cluster.names import cluster_key, split_key, title


def test_a_key_gives_its_names_back_whatever_is_in_them() -> None:
    assert split_key(cluster_key('a|"b', "c/d")) == ('a|"b', "c/d")
    assert title(cluster_key("/", "orders")) == "orders"
    assert title(cluster_key("shop", "orders")) == "orders in shop"
