"""Prometheus finds what happened on a node, as a whole and by queue, channel and connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pika
import pytest

from flyball.broker.management.metrics import exporter
from flyball.broker.management.metrics.exposition import GAUGE, Family, Metric, labels
from tests.broker.management.flyball_api.streams import report
from tests.broker.management.metrics.scrapes import Scrape, scrape
from tests.nodes import RunningNode

ALL = {"protocol": "all"}
QUEUES = {"protocol": "all", "queue_type": "all"}


@pytest.fixture
def channel(node: RunningNode) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*node.address("amqp"), heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def use(channel: Any, queue: str = "orders") -> None:
    """Publish five messages; get two, acknowledge one of them, and get one more with auto-ack."""
    channel.queue_declare(queue, durable=True)
    for _ in range(5):
        channel.basic_publish("", queue, b"12345")
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
    channel.basic_ack(tags[0])
    channel.basic_get(queue, auto_ack=True)


def until(ask: Callable[[], Scrape], condition: Callable[[Scrape], bool]) -> Scrape:
    while not condition(found := ask()):
        pass
    return found


def test_the_metrics_of_a_node_say_what_its_clients_did(node: RunningNode, channel: Any) -> None:
    use(channel)
    channel.basic_publish("amq.fanout", "nowhere", b"lost")
    found = scrape(node.address("http"))
    assert found.value("rabbitmq_global_messages_received_total", **ALL) == 6
    assert found.value("rabbitmq_global_messages_routed_total", **ALL) == 5
    assert found.value("rabbitmq_global_messages_confirmed_total", **ALL) == 6
    assert found.value("rabbitmq_global_messages_unroutable_dropped_total", **ALL) == 1
    assert found.value("rabbitmq_global_messages_delivered_total", **QUEUES) == 3
    assert found.value("rabbitmq_global_messages_delivered_get_manual_ack_total", **QUEUES) == 2
    assert found.value("rabbitmq_global_messages_delivered_get_auto_ack_total", **QUEUES) == 1
    assert found.value("rabbitmq_global_messages_acknowledged_total", **QUEUES) == 1
    assert found.value("rabbitmq_global_publishers", **ALL) == 1
    assert found.value("rabbitmq_queue_messages_ready") == 2
    assert found.value("rabbitmq_queue_messages_ready_bytes") == 10
    assert found.value("rabbitmq_queue_messages_unacked") == 1
    assert found.value("rabbitmq_channel_messages_unacked") == 1
    assert [found.value(f"rabbitmq_{name}") for name in ("connections", "channels", "queues")] == [1, 1, 1]
    assert found.value("rabbitmq_connection_incoming_bytes_total") > 100
    assert found.value("rabbitmq_alarms_memory_used_watermark") == 0
    assert found.value("flyball_store_pending_bytes") == 0
    assert found.value("process_open_fds") > 5
    assert found.value("process_resident_memory_bytes") > 10e6
    assert abs(time.time() - found.value("process_start_time_seconds")) < 24 * 3600


def test_dashboards_of_rabbitmq_find_the_node_by_its_identity(node: RunningNode) -> None:
    [which] = scrape(node.address("http")).all("rabbitmq_identity_info")
    assert dict(which)["rabbitmq_node"] == "north"


def test_each_queue_channel_and_connection_has_its_own_samples(node: RunningNode, channel: Any) -> None:
    odd = 'odd "name" \\ of {a} queue'
    use(channel, odd)
    channel.queue_declare("empty")
    channel.basic_consume(odd, print)
    channel.basic_qos(prefetch_count=7)
    found = scrape(node.address("http"), "/metrics/per-object")
    this = {"vhost": "/", "queue": odd}
    assert found.value("rabbitmq_queue_messages_ready", vhost="/", queue="empty") == 0
    assert found.value("rabbitmq_queue_messages_unacked", **this) == 3
    assert found.value("rabbitmq_queue_messages", **this) == 3
    assert found.value("rabbitmq_queue_consumers", **this) == 1
    assert found.value("flyball_queue_published_total", **this) == 5
    assert found.value("flyball_queue_delivered_total", **this) == 5
    assert found.value("flyball_queue_acknowledged_total", **this) == 1
    [(which, unacked)] = found.all("rabbitmq_channel_messages_unacked").items()
    assert (unacked, dict(which)["channel"].endswith(" (1)")) == (3, True)
    assert list(found.all("rabbitmq_consumer_prefetch").values()) == [7]
    assert list(found.all("flyball_channel_published_total").values()) == [5]
    [(which, channels)] = found.all("rabbitmq_connection_channels").items()
    assert (channels, " -> " in dict(which)["channel"]) == (1, True)
    assert found.value("rabbitmq_queues") == 2


def test_a_queue_tells_how_old_its_oldest_message_is(node: RunningNode, channel: Any) -> None:
    use(channel)
    channel.queue_declare("empty")
    ages = scrape(node.address("http"), "/metrics/per-object").all("rabbitmq_queue_head_message_timestamp")
    assert [(dict(which)["queue"], abs(time.time() - at) < 60) for which, at in ages.items()] == [("orders", True)]


def test_many_queues_are_written_in_slices_and_all_of_them(
    node: RunningNode, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "SLICE", 3)
    names = {f"queue-{number}" for number in range(10)}
    for name in names:
        channel.queue_declare(name)
    found = scrape(node.address("http"), "/metrics/per-object")
    assert {dict(which)["queue"] for which in found.all("rabbitmq_queue_messages_ready")} == names
    assert {dict(which)["queue"] for which in found.all("flyball_queue_dropped_total")} == names


def test_other_work_goes_on_between_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SLICE", 5)
    turns_at: list[int] = []

    async def write() -> None:
        turns = 0

        async def work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        state = asyncio.ensure_future(work())
        metric = Metric(Family("depth", GAUGE, "Of a queue"), lambda thing: thing)
        async for _ in exporter.samples_of(range(20), lambda thing: labels(queue=str(thing)), [metric]):
            turns_at.append(turns)
        state.cancel()

    asyncio.run(write())
    assert len(set(turns_at)) == 4


def test_only_the_wanted_families_and_virtual_hosts_are_detailed(node: RunningNode, channel: Any) -> None:
    channel.queue_declare("orders")
    node.administer(lambda authority: authority.add_vhost("tests"))
    node.allow_all("guest", "tests")
    credentials = pika.PlainCredentials("guest", "guest")
    parameters = pika.ConnectionParameters(*node.address("amqp"), "tests", credentials, heartbeat=0)
    other = pika.BlockingConnection(parameters)
    other.channel().queue_declare("other")
    query = "family=queue_coarse_metrics&family=connection_coarse_metrics&family=no_such"
    found = scrape(node.address("http"), f"/metrics/detailed?{query}&vhost=tests")
    assert found.kinds.keys() == {
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_connection_incoming_bytes_total",
        "rabbitmq_detailed_connection_outgoing_bytes_total",
        "rabbitmq_build_info",
        "rabbitmq_identity_info",
    }
    [which] = found.all("rabbitmq_detailed_queue_messages")
    assert dict(which) == {"vhost": "tests", "queue": "other"}
    everything = scrape(node.address("http"), "/metrics/detailed?family=queue_coarse_metrics")
    assert len(everything.all("rabbitmq_detailed_queue_messages")) == 2
    other.close()


def test_the_phases_of_requests_are_histograms(node: RunningNode, channel: Any) -> None:
    use(channel)
    found = until(
        lambda: scrape(node.address("http")), lambda found: len(found.all("flyball_phase_seconds_count")) >= 6
    )
    assert found.kinds["flyball_phase_seconds"] == "histogram"
    this = {"kind": "put", "phase": "total"}
    assert found.value("flyball_phase_seconds_count", **this) == 5
    buckets = {
        float(dict(which)["le"]): value
        for which, value in found.all("flyball_phase_seconds_bucket").items()
        if this.items() <= dict(which).items()
    }
    ordered = [buckets[bound] for bound in sorted(buckets)]
    assert ordered == sorted(ordered)
    assert buckets[float("inf")] == 5
    mean_s = found.value("flyball_phase_seconds_sum", **this) / 5
    below = max([bound for bound, count in buckets.items() if count == 0], default=0.0)
    assert below <= mean_s


def test_a_node_without_a_trace_has_no_phases(node: RunningNode, channel: Any) -> None:
    node.call(lambda node: setattr(node.hub, "recorder", None))
    use(channel)
    assert "flyball_phase_seconds" not in scrape(node.address("http")).text


def test_loops_tell_setpoint_measurement_and_action(node: RunningNode) -> None:
    told = report(time.time(), value=380.0, is_shadow=True)
    base = f"http://{node.address('http')}/api/flyball"
    httpx.post(f"{base}/loops/orders/samples", json=told, auth=("guest", "guest")).raise_for_status()
    found = scrape(node.address("http"))
    values = [found.value(f"flyball_loop_{name}", loop="orders") for name in ("setpoint", "measurement", "action")]
    assert values == [400.0, 380.0, 7.5]
    assert found.value("flyball_loop_shadow", loop="orders") == 1
    assert found.value("flyball_loop_running", loop="orders") == 1
    assert found.value("flyball_loop_certified", loop="north.memory") == 1
    # Nothing presses: it measures and has nothing to do.
    found = until(lambda: scrape(node.address("http")), lambda found: len(found.all("flyball_loop_measurement")) == 4)
    assert found.value("flyball_loop_running", loop="north.memory") == 0
    assert {dict(which)["loop"] for which in found.all("flyball_loop_action")} == {"orders"}


def test_of_a_loop_that_is_gone_only_that_is_told(node: RunningNode) -> None:
    told = report(time.time(), value=380.0)
    base = f"http://{node.address('http')}/api/flyball"
    httpx.post(f"{base}/loops/orders/samples", json=told, auth=("guest", "guest")).raise_for_status()
    node.call(lambda node: setattr(node.hub.loops.get("orders"), "reported_at", time.time() - 60))
    found = scrape(node.address("http"))
    assert found.value("flyball_loop_running", loop="orders") == 0
    assert all(dict(which)["loop"] != "orders" for which in found.all("flyball_loop_setpoint"))


def test_admission_control_tells_its_load_and_classes(node: RunningNode) -> None:
    found = until(lambda: scrape(node.address("http")), lambda found: "flyball_admission_load" in found.kinds)
    this = {"admission": "north.listings"}
    assert found.value("flyball_admission_reference", **this, unit="ms") > 0
    assert found.value("flyball_admission_in_flight", **this) == 0
    assert found.value("flyball_admission_requests_total", **this, class_="0", outcome="refused") == 0


def test_a_node_by_itself_is_a_domain_of_one(node: RunningNode) -> None:
    found = scrape(node.address("http"))
    assert found.value("flyball_domain_nodes", state="up") == 1
    assert found.value("flyball_node_lease_seconds", node="north") > 0
    assert found.value("flyball_node_lease_held") == 1


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed"])
def test_metrics_are_for_monitoring(node: RunningNode, path: str) -> None:
    for tag in ("management", "monitoring"):
        node.run(lambda node, tag=tag: node.hub.authority.add_user(tag, "secret", [tag]))  # type: ignore[misc]
    base = f"http://{node.address('http')}{path}"
    assert httpx.get(base).status_code == 401
    assert httpx.get(base, auth=("management", "secret")).json()["error"] == "not_authorised"
    scrape(node.address("http"), path, ("monitoring", "secret"))
