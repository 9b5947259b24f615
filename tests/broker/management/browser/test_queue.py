"""One queue: looking into it and acting on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pika
import pytest
from playwright.sync_api import Route, expect

from tests.broker.management.browser.visitor import Visitor


@pytest.fixture
def queue(channel: Any, request: pytest.FixtureRequest) -> str:
    """An empty queue of the test's own."""
    name = f"queue.{request.node.name}"[:60]
    channel.queue_declare(name)
    return name


def opened(visitor: Visitor, queue: str) -> Visitor:
    return visitor.open(f"/queues/%2F/{queue}", queue)


def ready(channel: Any, queue: str) -> int:
    found: int = channel.queue_declare(queue, passive=True).method.message_count
    return found


def test_messages_are_peeked_at_with_their_properties_and_stay(visitor: Visitor, channel: Any, queue: str) -> None:
    properties = pika.BasicProperties(content_type="text/x-order", headers={"kind": "urgent"}, delivery_mode=2)
    channel.basic_publish("", queue, b"twelve screws", properties)
    opened(visitor, queue)
    visitor.button("Show messages").click()
    message = visitor.main.get_by_role("article")
    expect(message).to_contain_text("twelve screws")
    expect(message).to_contain_text("text/x-order")
    expect(message).to_contain_text('{"kind":"urgent"}')
    expect(message).to_contain_text("2 (persistent)")
    assert ready(channel, queue) == 1
    visitor.keep_picture("queue")
    assert visitor.complaints == []


def test_a_message_is_published_to_the_queue_and_counted_live(visitor: Visitor, channel: Any, queue: str) -> None:
    opened(visitor, queue)
    expect(visitor.tile("Ready")).to_have_text("0")
    form = visitor.card("Publish a message")
    form.get_by_label("Message").fill("hello")
    form.get_by_label("Other properties").fill('{"content_type": "text/plain"}')
    visitor.button("Publish").click()
    expect(visitor.toast("Published to")).to_be_visible()
    expect(visitor.tile("Ready")).to_have_text("1")
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (body, properties.content_type, properties.delivery_mode) == (b"hello", "text/plain", 2)
    assert visitor.complaints == []


def test_parked_messages_are_shown_and_dropped_after_a_question(visitor: Visitor, queue: str) -> None:
    asked: list[Any] = []

    def tell_queue(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "messages_parked": 0 if asked else 1})

    def tell_parked(route: Route) -> None:
        if route.request.method == "POST":
            asked.append(route.request.post_data_json)
            route.fulfill(json={"count": 1})
        else:
            route.fulfill(json=[{"id": 17, "reason": "expired", "problem": "no <b>route</b>"}])

    # A healthy node parks nothing: this answer is made up.
    visitor.page.route(re.compile(f"/api/queues/%2F/{re.escape(queue)}$"), tell_queue)
    visitor.page.route(re.compile(r"/parked$"), tell_parked)
    opened(visitor, queue)
    parked = visitor.card("Parked messages")
    expect(parked).to_contain_text("Message 17, expired: no <b>route</b>")
    visitor.button("Drop all").click()
    visitor.dialog.get_by_role("button", name="Drop").click()
    expect(visitor.toast("Dropped the parked messages")).to_be_visible()
    expect(parked).to_have_count(0)
    assert asked == [{"action": "drop"}]
    visitor.page.unroute_all()
    assert visitor.complaints == []


def test_messages_are_taken_out_after_a_question(visitor: Visitor, channel: Any, queue: str) -> None:
    for number in range(3):
        channel.basic_publish("", queue, str(number).encode())
    opened(visitor, queue)
    visitor.page.get_by_label("How", exact=True).select_option("ack_requeue_false")
    visitor.page.get_by_label("How many").fill("2")
    visitor.button("Show messages").click()
    visitor.dialog.get_by_role("button", name="Cancel").click()
    assert ready(channel, queue) == 3
    visitor.button("Show messages").click()
    visitor.dialog.get_by_role("button", name="Take out").click()
    expect(visitor.toast("2 messages taken out")).to_be_visible()
    assert ready(channel, queue) == 1
    assert visitor.complaints == []


def test_an_empty_queue_says_what_to_do_next(visitor: Visitor, queue: str) -> None:
    opened(visitor, queue)
    visitor.button("Show messages").click()
    expect(visitor.main.get_by_text("The queue is empty")).to_be_visible()
    expect(visitor.main.get_by_text("No consumers")).to_be_visible()


def test_purging_is_confirmed_first(visitor: Visitor, channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"order")
    opened(visitor, queue)
    visitor.button("Purge").click()
    visitor.page.keyboard.press("Escape")
    assert ready(channel, queue) == 1
    visitor.button("Purge").click()
    visitor.dialog.get_by_role("button", name="Purge").click()
    expect(visitor.toast("Purged")).to_be_visible()
    assert ready(channel, queue) == 0
    assert visitor.complaints == []


def test_deleting_wants_the_name_to_be_typed(
    visitor: Visitor, new_channel: Callable[[], Any], api: httpx.Client
) -> None:
    new_channel().queue_declare("queue.goes")
    opened(visitor, "queue.goes")
    visitor.button("Delete").click()
    delete = visitor.dialog.get_by_role("button", name="Delete")
    expect(delete).to_be_disabled()
    visitor.dialog.get_by_role("textbox").fill("queue.goe")
    expect(delete).to_be_disabled()
    visitor.keep_picture("delete")
    visitor.dialog.get_by_role("textbox").fill("queue.goes")
    delete.click()
    expect(visitor.toast("Deleted queue")).to_be_visible()
    expect(visitor.page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    assert api.get("/queues/%2F/queue.goes").status_code == 404
    assert visitor.complaints == []


def test_a_queue_that_is_not_there_is_told_with_advice(visitor: Visitor) -> None:
    visitor.open("/queues/%2F/no%20such%20queue", "no such queue")
    problem = visitor.main.get_by_role("alert")
    expect(problem.locator(".reason")).not_to_be_empty()
    expect(problem.locator(".advice")).not_to_be_empty()
    assert visitor.own_complaints == []


def test_consumers_and_bindings_are_listed(
    visitor: Visitor, new_channel: Callable[[], Any], channel: Any, queue: str
) -> None:
    consumer = new_channel()
    consumer.basic_qos(prefetch_count=17)
    consumer.basic_consume(queue, lambda *_: None, consumer_tag="tag-of-the-test")
    channel.queue_bind(queue, "amq.topic", "orders.#")
    opened(visitor, queue)
    row = visitor.card("Consumers").get_by_role("row").filter(has_text="tag-of-the-test")
    expect(row).to_contain_text("17")
    expect(visitor.card("Bindings").get_by_role("row").filter(has_text="orders.#")).to_contain_text("amq.topic")
    assert visitor.complaints == []
