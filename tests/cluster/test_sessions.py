from __future__ import annotations

from flyball.cluster.domain import Role, cluster_key
from flyball.cluster.sessions import Rates, new_session_id, read_session_id


def test_a_session_id_tells_its_role_and_its_clustered_queue() -> None:
    cluster = cluster_key("/", "orders.eu")
    assert read_session_id(new_session_id(Role.CONSUMER, cluster)) == (Role.CONSUMER, cluster)
    assert read_session_id("amqp.1.2.orders") is None


def test_a_rate_is_what_a_counter_gained_since_it_was_looked_at() -> None:
    clock = [0.0]
    rates = Rates(lambda: clock[0])
    assert rates.of("p", 100) is None
    clock[0] = 2.0
    assert rates.of("p", 300) == 100
    clock[0] = 2.1
    assert rates.of("p", 1000) == 100, "too early to say"
    rates.keep([])
    assert rates.of("p", 300) is None
