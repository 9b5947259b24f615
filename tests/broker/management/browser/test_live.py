"""Samples come by themselves, the page survives the node's absence, and a day of samples fits into its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from playwright.sync_api import Browser, StorageState, expect

from flyball.lab.rabbitmq import free_ports
from tests.broker.management.browser.visitor import Visitor
from tests.nodes import ANSWER_LIMIT_S, ServeProcess

MADE_STREAM = """
const realFetch = window.fetch;
window.fetch = (where, options) => {
  if (!String(where).startsWith('/api/flyball/stream')) return realFetch(where, options);
  const body = new ReadableStream({ start(controller) { window.stream = controller; } });
  return Promise.resolve(new Response(body, { status: 200, headers: { 'Content-Type': 'text/event-stream' } }));
};
let at = 1700000000;
window.feed = async (count) => {
  const encoder = new TextEncoder();
  for (let number = 0; number < count; number += 1) {
    at += 1;
    const value = 1000 + 500 * Math.sin(at / 20);
    const phases = { wait: 0.1, parse: 0.1, engine: 0.2, store: 1, emit: 0.1, p50: 1.2, p99: 4 };
    const sample = {
      at, node: 'made', alarms: [],
      rates: {
        publish: value, confirm: value, deliver: value, ack: value, get: 0, redeliver: 0, return: 0,
        commits: 50, read_bytes: 1e6, written_bytes: 1e6,
      },
      gauges: {
        ready: value, unacked: 10, connections: 3, channels: 3, consumers: 2, queues: 5, exchanges: 7,
        memory_bytes: 1e8, resident_bytes: 1e6, pending_bytes: 0, pending_changes: 1, cpu_ratio: 0.5,
      },
      latency_ms: { publish: phases, get: phases },
    };
    window.stream.enqueue(encoder.encode(`event: sample\\ndata: ${JSON.stringify(sample)}\\n\\n`));
    if (number % 10 === 9) await new Promise((resolve) => requestAnimationFrame(resolve));
  }
};
"""


PLACES = [
    ("/", "Overview"),
    ("/queues", "Queues"),
    ("/queues/%2F/left", "left"),
    ("/connections", "Connections"),
    ("/exchanges", "Exchanges"),
    ("/exchanges/%2F/amq.topic", "amq.topic"),
    ("/governor", "Governor"),
    ("/admission", "Admission"),
    ("/domain", "Domain"),
    ("/experiments", "Experiments"),
]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A node with little memory that a test may stop and start again at the same address."""
    flags = {"store": "memory", "memory_bytes": "1MiB"}
    with (
        free_ports(1) as [port],
        ServeProcess(tmp_path_factory.mktemp("mortal"), **flags, http=f"127.0.0.1:{port}") as process,
    ):
        yield process


def test_an_alarm_is_shown_for_as_long_as_it_lasts(browser: Browser, mortal: ServeProcess) -> None:
    host, port = mortal.address("amqp")
    parameters = pika.ConnectionParameters(host, port, heartbeat=0)
    with Visitor(browser, mortal) as visitor, pika.BlockingConnection(parameters) as connection:
        visitor.log_in().open("/", "Overview")
        alarm = visitor.main.get_by_text("Alarm: low on memory.")
        channel = connection.channel()
        channel.queue_declare("flood")
        for _ in range(12):
            channel.basic_publish("", "flood", bytes(100_000))
        expect(alarm).to_be_visible()
        visitor.keep_picture("alarm")
        visitor.page.evaluate("() => import('/web/api.js').then(api => api.del('/api/queues/%2F/flood/contents'))")
        expect(alarm).to_have_count(0)
        assert visitor.complaints == []


def test_a_node_that_stops_is_told_and_the_page_goes_on_when_it_is_back(
    browser: Browser, mortal: ServeProcess
) -> None:
    with Visitor(browser, mortal) as visitor:
        visitor.log_in().open("/", "Overview")
        expect(visitor.page.get_by_text("Live", exact=True)).to_be_visible()
        mortal.stop()
        banner = visitor.page.get_by_role("alert").filter(has_text="The node does not answer")
        expect(banner).to_be_visible()
        visitor.keep_picture("down")
        visitor.page.get_by_role("button", name="Try now").click()
        expect(banner).to_be_visible()
        mortal.start()
        # Sessions end with the node that keeps them.
        expect(visitor.page.get_by_text("Your session has ended")).to_be_visible()
        visitor.fill_log_in("guest", "guest")
        expect(visitor.page.get_by_text("Live", exact=True)).to_be_visible()
        expect(banner).to_have_count(0)
        assert visitor.own_complaints == []


def test_network_failure_is_shown_and_the_page_recovers(visit: Callable[..., Visitor], session: StorageState) -> None:
    visitor = visit(storage_state=session).open("/queues", "Queues")
    expect(visitor.page.get_by_text("Live", exact=True)).to_be_visible()
    banner = visitor.page.get_by_role("alert").filter(has_text="The node does not answer")
    visitor.context.set_offline(True)
    visitor.page.evaluate("() => import('/web/live.js').then(live => { live.stop(); live.start(); })")
    expect(banner).to_be_visible()
    visitor.context.set_offline(False)
    # The note goes by itself, the banner does not come again.
    expect(visitor.toast("Reconnected to the node")).to_be_visible()
    expect(banner).not_to_be_visible()
    assert visitor.own_complaints == []


def test_ten_minutes_of_samples_leave_nothing_behind(visit: Callable[..., Visitor], session: StorageState) -> None:
    visitor = visit(storage_state=session)
    visitor.page.add_init_script(MADE_STREAM)
    visitor.open("/", "Overview")
    visitor.page.wait_for_function("() => window.stream")
    inspector = visitor.context.new_cdp_session(visitor.page)

    def used() -> tuple[int, int]:
        inspector.send("HeapProfiler.collectGarbage")
        heap = inspector.send("Runtime.getHeapUsage")["usedSize"]
        return heap, inspector.send("Memory.getDOMCounters")["nodes"]

    # Five minutes fill what is kept.
    visitor.page.evaluate("feed(400)")
    heap, nodes = used()
    visitor.page.evaluate("feed(600)")
    heap_after, nodes_after = used()
    assert heap_after - heap < 300_000
    assert nodes_after - nodes < 50
    assert visitor.page.evaluate("import('/web/live.js').then(live => live.history().length)") == 300
    assert visitor.complaints == []


def test_leaving_pages_leaves_nothing_behind(visitor: Visitor, channel: Any) -> None:
    channel.queue_declare("left")
    # Other tests may hold what they saw, and what they see from then on.
    visitor.page.reload()
    inspector = visitor.context.new_cdp_session(visitor.page)

    def tour() -> None:
        for place, heading in PLACES:
            visitor.open(place, heading)
        visitor.open("/nowhere", "Page not found")

    def nodes() -> int:
        inspector.send("HeapProfiler.collectGarbage")
        return int(inspector.send("Memory.getDOMCounters")["nodes"])

    tour()
    # An answer that is still in progress holds the page that asked for it.
    first = min(nodes() for _ in range(20))
    for _ in range(3):
        tour()
    end_s = time.monotonic() + ANSWER_LIMIT_S
    while (more := nodes() - first) >= 50:
        assert time.monotonic() < end_s, f"{more} are left"
    assert visitor.complaints == []
