"""Messages are listed, peeked at and removed over HTTP without being consumed, on whatever node their queue is."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from flyball.broker.core import memory
from flyball.broker.core.broker import Broker
from flyball.broker.management.api import bodies as bodies_module
from flyball.broker.management.flyball_api import messages
from flyball.broker.management.part import console_part
from flyball.model import Permission
from tests.broker.management.flyball_api.streams import GUEST
from tests.broker.protocols.amqp.compatibility.queues import Consumer, publish
from tests.broker.protocols.amqp.conftest import connect as connect
from tests.broker.protocols.amqp.conftest import open_channel as open_channel
from tests.nodes import ANSWER_LIMIT_S, RunningNode

OpenChannel = Callable[..., Any]

PATH = "/queues/%2F/orders/messages"
ARROW = {"accept": messages.ARROW_STREAM}


@pytest.fixture
def channel(node: RunningNode, open_channel: OpenChannel) -> Any:
    found = open_channel(node)
    found.queue_declare("orders", durable=True)
    return found


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, messages.JSON_LINES)
    return [json.loads(line) for line in answer.text.splitlines()]


def bodies(answer: httpx.Response) -> list[bytes]:
    return [base64.b64decode(line["body"]) for line in lines(answer)]


def table(answer: httpx.Response) -> pa.Table:
    assert (answer.status_code, answer.headers["content-type"]) == (200, messages.ARROW_STREAM)
    return pa.ipc.open_stream(answer.content).read_all()


def test_messages_are_listed_as_json_lines(channel: Any, api: httpx.Client) -> None:
    headers = {
        "x-flyball-sender": 7,
        "x-flyball-receiver": 8,
        "x-flyball-context": -9,
        "x-flyball-properties": b"own",
    }
    publish(channel, "orders", "body", headers=headers, priority=3, delivery_mode=2)
    [found] = lines(api.get(PATH))
    assert found.pop("id") > 0
    assert found.pop("arrived_us") > 1_600_000_000_000_000
    assert found == {
        "queue": "orders",
        "sender": 7,
        "receiver": 8,
        "context": -9,
        "priority": 3,
        "properties": base64.b64encode(b"own").decode(),
        "persistent": True,
        "delivery_count": 0,
        "body": base64.b64encode(b"body").decode(),
    }


def test_messages_are_listed_as_an_arrow_stream(channel: Any, api: httpx.Client) -> None:
    publish(channel, "orders", "one", "two", headers={"x-flyball-context": 5})
    found = table(api.get(PATH, headers=ARROW)).to_pylist()
    assert [(row["body"], row["context"], row["queue"], row["persistent"]) for row in found] == [
        (b"one", 5, "orders", False),
        (b"two", 5, "orders", False),
    ]
    assert found[0]["arrived"].tzinfo is not None


def test_empty_queue_is_an_empty_stream(channel: Any, api: httpx.Client) -> None:
    assert bodies(api.get(PATH)) == []
    assert table(api.get(PATH, headers=ARROW)).num_rows == 0


def test_long_listing_comes_in_pages(channel: Any, api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAGE_MESSAGES", 7)
    monkeypatch.setattr(messages, "PAGE_BYTES", 3000)
    publish(channel, "orders", *[str(number) for number in range(50)])
    publish(channel, "orders", "x" * 10_000)
    assert bodies(api.get(PATH)) == [*[b"%d" % number for number in range(50)], b"x" * 10_000]
    assert table(api.get(PATH, headers=ARROW)).num_rows == 51


def test_large_messages_are_sent_in_pieces(channel: Any, api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PIECE_BYTES", 3000)
    publish(channel, "orders", "x" * 10_000, "y")
    assert bodies(api.get(PATH)) == [b"x" * 10_000, b"y"]
    assert table(api.get(PATH, headers=ARROW))["body"].to_pylist() == [b"x" * 10_000, b"y"]
    assert base64.b64decode(api.get(f"{PATH}/first").json()["body"]) == b"x" * 10_000


def ask(node: RunningNode, path: str) -> socket.socket:
    """Ask for something whose answer is not read."""
    asking = socket.socket()
    asking.settimeout(ANSWER_LIMIT_S)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.connect(node.address("http"))
    asking.sendall(
        f"GET /api/flyball{path} HTTP/1.1\r\nhost: localhost\r\n"
        "authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n".encode()
    )
    return asking


def test_few_listings_read_at_the_same_moment(
    node: RunningNode, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    monkeypatch.setattr(Broker, "browse", lambda self, queue_id, after_id, limit, done: reads.append(done))
    with ExitStack() as all_:
        for _ in range(3 * bodies_module.MAX_CONCURRENT_READS):
            all_.enter_context(closing(ask(node, PATH)))
        api = all_.enter_context(httpx.Client(base_url=f"http://{node.address('http')}/api", auth=GUEST))
        for ended in range(3 * bodies_module.MAX_CONCURRENT_READS):
            node.wait_until(lambda _: len(reads) > ended)  # noqa: B023
            # The others have been asked by now.
            assert api.get("/whoami").status_code == 200
            assert len(reads) <= ended + bodies_module.MAX_CONCURRENT_READS
            node.call(lambda _: reads[ended]([], None))  # noqa: B023


@pytest.mark.parametrize("path", [PATH, f"{PATH}/first"])
def test_messages_that_are_not_read_leave_no_room_for_more(
    node: RunningNode, channel: Any, api: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than the system holds of an answer that is not read.
    publish(channel, "orders", "x" * 20_000_000)
    monkeypatch.setattr(memory, "HTTP_BYTES", 10_000_000)
    with closing(ask(node, path)) as unread:
        assert unread.recv(12) == b"HTTP/1.1 200"
        assert [api.get(f"{PATH}{more}").status_code for more in ("", "/first", "/ids")] == [503, 503, 503]
    while api.get(f"{PATH}/first").status_code == 503:
        continue


def test_listing_whose_queue_is_deleted_is_cut_off(
    node: RunningNode,
    channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(channel, "orders", *["x" * 600_000] * 40)
    with closing(ask(node, PATH)) as slow:
        found = slow.recv(12)
        channel.queue_delete("orders")
        while data := slow.recv(65536):
            found += data
    assert not found.endswith(b"0\r\n\r\n")
    node.wait_until(lambda _: "aborted a listing of queue" in caplog.text)
    assert "Traceback" not in caplog.text


def test_part_of_a_queue_is_listed_by_ids(channel: Any, api: httpx.Client) -> None:
    publish(channel, "orders", *"012345")
    ids = api.get(f"{PATH}/ids").json()["ids"]
    assert (len(ids), sorted(ids)) == (6, ids)
    assert bodies(api.get(PATH, params={"after": ids[1], "up_to": ids[3]})) == [b"2", b"3"]
    assert bodies(api.get(PATH, params={"after": ids[1], "limit": 3})) == [b"2", b"3", b"4"]
    assert bodies(api.get(PATH, params={"up_to": ids[0] - 1})) == []
    assert bodies(api.get(PATH, params={"limit": 0})) == []
    assert api.get(f"{PATH}/ids", params={"after": ids[3], "limit": 1}).json() == {"ids": [ids[4]]}


def test_messages_are_removed_up_to_an_id(channel: Any, api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "REMOVED_AT_ONCE", 2)
    publish(channel, "orders", *"012345")
    held = Consumer(channel, "orders", arguments={"x-prefetch": 1})
    assert held.wait_for(1) == ["0"]
    ids = api.get(f"{PATH}/ids").json()["ids"]
    assert api.delete(PATH, params={"up_to": ids[3]}).json() == {"removed": 4}
    assert api.delete(PATH, params={"up_to": ids[3]}).json() == {"removed": 0}
    channel.basic_nack(held.last.tag)
    assert held.wait_for(2) == ["0", "0*"]
    assert bodies(api.get(PATH)) == [b"5"]


def test_first_message_of_a_selection_is_shown(channel: Any, api: httpx.Client) -> None:
    for number in range(4):
        headers = {"x-flyball-context": number % 2, "x-flyball-sender": 7, "x-flyball-receiver": 8}
        publish(channel, "orders", str(number), headers=headers, priority=number % 3)

    def first(**selection: str | int) -> bytes | None:
        found = api.get(f"{PATH}/first", params=selection).json()
        return None if found is None else base64.b64decode(found["body"])

    assert first() == b"0"
    assert first(context=1) == b"1"
    assert first(context=1, order="newest", sender=7) == b"3"
    assert first(order="priority") == b"2"
    assert first(receiver=9) is None
    refused = api.get(f"{PATH}/first", params={"order": "random"})
    assert (refused.status_code, refused.json()["reason"]) == (
        400,
        "invalid arg 'x-order' for queue 'orders': expected one of oldest, newest, priority",
    )


def test_only_those_who_may_read_a_queue_see_its_messages(
    node: RunningNode, channel: Any, api: httpx.Client, users: dict[str, tuple[str, str]]
) -> None:
    paths = (PATH, f"{PATH}/first", f"{PATH}/ids")
    assert [api.get(path, auth=users["monitoring"]).status_code for path in paths] == [401, 401, 401]
    assert api.delete(PATH, params={"up_to": 1}, auth=users["monitoring"]).status_code == 401
    node.run(lambda node: node.hub.authority.set_permission(Permission("nothing", "/", read="^orders$")))
    assert [api.get(path, auth=users["nothing"]).status_code for path in paths] == [200, 200, 200]
    assert api.get("/queues/%2F/other/messages", auth=users["nothing"]).status_code == 401


def test_queue_that_cannot_be_read_is_refused(channel: Any, api: httpx.Client) -> None:
    channel.queue_declare("mine", exclusive=True)
    answers = [api.get(f"/queues/%2F/{name}/messages") for name in ("none", "mine")]
    assert [answer.status_code for answer in answers] == [404, 400]
    for more, after in (("", "x"), ("", 2**63), ("/ids", 2**63)):
        assert api.get(PATH + more, params={"after": after}).status_code == 400
    assert api.delete(PATH, params={"up_to": 2**63}).status_code == 400
    assert api.delete(PATH).status_code == 400


@pytest.fixture
def two(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[list[RunningNode]]:
    store = new_database()
    with ExitStack() as nodes:
        yield [
            nodes.enter_context(
                RunningNode(
                    tmp_path / name, parts=[console_part()], store=store, name=name, http="127.0.0.1:0", lease_s=60
                )
            )
            for name in ("one", "two")
        ]


def test_queue_of_another_node_is_read_as_ones_own(
    two: list[RunningNode], open_channel: OpenChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PAGE_MESSAGES", 4)
    channel = open_channel(two[1])
    channel.queue_declare("orders", durable=True)
    large = "x" * 700_000
    publish(channel, "orders", *"012345", headers={"x-flyball-context": 3}, delivery_mode=2)
    publish(channel, "orders", large, large, delivery_mode=2)
    with httpx.Client(
        base_url=f"http://{two[0].address('http')}/api/flyball", auth=GUEST, timeout=ANSWER_LIMIT_S
    ) as api:
        expected = [*[b"%d" % number for number in range(6)], large.encode(), large.encode()]
        assert bodies(api.get(PATH)) == expected
        assert table(api.get(PATH, headers=ARROW))["body"].to_pylist() == expected
        assert (
            base64.b64decode(api.get(f"{PATH}/first", params={"order": "newest", "context": 3}).json()["body"])
            == b"5"
        )
        ids = api.get(f"{PATH}/ids").json()["ids"]
        assert len(ids) == 8
        assert api.delete(PATH, params={"up_to": ids[6]}).json() == {"removed": 7}
        assert bodies(api.get(PATH)) == [large.encode()]
