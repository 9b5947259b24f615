"""Connected clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from playwright.sync_api import expect

from tests.broker.management.api.conftest import wait_for_the_end
from tests.broker.management.browser.visitor import Visitor
from tests.broker.peers import telesto
from tests.nodes import ServeProcess


@pytest.fixture
def connection(node: ServeProcess) -> Iterator[Any]:
    """A connection with a name; the test may close it."""
    host, port = node.address("amqp")
    named = pika.ConnectionParameters(
        host, port, heartbeat=0, client_properties={"connection_name": "seen in a test"}
    )
    connection = pika.BlockingConnection(named)
    yield connection
    if connection.is_open:
        connection.close()


def test_connections_and_their_channels_are_listed(visitor: Visitor, connection: Any) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=23)
    visitor.open("/connections", "Connections")
    row = visitor.card("Connections").get_by_role("row").filter(has_text="seen in a test")
    expect(row).to_contain_text("guest")
    expect(row).to_contain_text("running")
    channels = visitor.card("Channels").get_by_role("row").filter(has_text="confirms")
    expect(channels).to_contain_text("23")
    visitor.keep_picture("connections")
    assert visitor.complaints == []


def test_a_connection_is_closed_with_the_reason_that_was_given(visitor: Visitor, connection: Any) -> None:
    visitor.open("/connections", "Connections")
    row = visitor.card("Connections").get_by_role("row").filter(has_text="seen in a test")
    row.get_by_role("button", name="Close").click()
    visitor.dialog.get_by_role("textbox").fill("spring cleaning")
    visitor.dialog.get_by_role("button", name="Close it").click()
    expect(visitor.toast("Connection closed")).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosed, match="spring cleaning"):
        wait_for_the_end(connection)
    visitor.page.reload()
    expect(visitor.card("Connections").locator(".loading")).to_have_count(0)
    expect(row).to_have_count(0)
    assert visitor.complaints == []


def test_registered_clients_are_listed_with_their_state(visitor: Visitor, node: ServeProcess) -> None:
    peer = telesto(node, "console.telesto")
    visitor.open("/connections", "Connections")
    row = visitor.card("Registered clients").get_by_role("row").filter(has_text="console.telesto")
    expect(row.get_by_text("connected", exact=True)).to_be_visible()
    peer.close()
    visitor.page.reload()
    expect(row.get_by_text("away", exact=True)).to_be_visible()
    assert visitor.complaints == []
