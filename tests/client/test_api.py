"""Requests to a node over HTTP, and the errors of requests that cannot be made."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyball.broker.management.part import console_part
from flyball.client.api import Api, NoAnswer, place_at
from flyball.client.http import Place, Refused, path_of
from tests.nodes import RunningNode
from tests.ports import kept_port


@pytest.fixture
def node(start_memory_node: Callable[..., RunningNode]) -> RunningNode:
    return start_memory_node(parts=[console_part()], http="127.0.0.1:0")


@pytest.fixture
def api(node: RunningNode) -> Iterator[Api]:
    with Api(place_at(f"http://{node.address('http')}")) as api:
        yield api


def test_parts_of_a_path_may_hold_any_character(api: Api) -> None:
    name = "a/b?c=d&e %2F ü"
    assert api.put("queues", "/", name, document={"durable": True}).status == 201
    assert api.put("queues", "/", name, document={"durable": True}).status == 204
    assert api.get("queues", "/", name, columns="name") == {"name": name}
    assert api.delete("queues", "/", name).document is None


def test_refusal_tells_status_reason_and_kind(api: Api) -> None:
    with pytest.raises(Refused, match="status 404: no queue 'gone' in vhost '/'") as caught:
        api.get("queues", "/", "gone")
    assert (caught.value.status, caught.value.kind, caught.value.is_from_node) == (404, "QueueNotFound", True)
    assert api.get("whoami")["name"] == "@owner"


def test_node_that_went_away_is_said_to_be_away(api: Api, node: RunningNode) -> None:
    assert api.get("whoami")
    node.stop()
    with pytest.raises(NoAnswer, match=r"connection refused|truncated"):
        api.get("whoami")
    with kept_port() as port, Api(Place(f"http://u:secret@127.0.0.1:{port}")) as other:
        with pytest.raises(NoAnswer) as caught:
            other.get("whoami")
        assert str(caught.value) == f"no answer from http://127.0.0.1:{port}: connection refused"


def test_node_that_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with Api(Place(url), time_limit_s=0.05) as api, pytest.raises(NoAnswer, match="the node does not answer"):
            api.get("whoami")


def test_another_server_is_told_from_a_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\noops")

        thread = threading.Thread(target=serve)
        thread.start()
        with Api(Place(f"http://127.0.0.1:{server.getsockname()[1]}")) as api:
            with pytest.raises(Refused, match="not a Flyball node") as caught:
                api.get("whoami")
            assert not caught.value.is_from_node
        thread.join()


def test_who_can_read_the_token_is_the_owner_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "admin.token"
    token.write_text("secret\n")
    monkeypatch.setenv("FLYBALL_TOKEN_FILE", str(token))
    for url in ("http://127.0.0.1:15672", "http://localhost", "http://[::1]:1"):
        assert (place_at(url).user, place_at(url).password) == ("@owner", b"secret")
    for url in ("http://192.0.2.1", "http://node.example:15672", "https://localhost.example"):
        assert (place_at(url).user, place_at(url).password) == ("guest", b"guest")
    place = place_at("http://ann%40home:p%2Fq%FF@127.0.0.1:15672")
    assert (place.user, place.password, place.shown) == ("ann@home", b"p/q\xff", "http://127.0.0.1:15672")
    monkeypatch.setenv("FLYBALL_TOKEN_FILE", "/nowhere")
    assert place_at("http://127.0.0.1").user == "guest"


@pytest.mark.parametrize("url", ["127.0.0.1", "ftp://u:secret@host", "http://u:secret@host:x", "http://u:secret@"])
def test_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="address: use http://user:password@host:15672") as caught:
        Place(url)
    assert "secret" not in str(caught.value)


def test_paths_have_queries() -> None:
    assert path_of("queues", "/", page=1, name="a b") == "/api/queues/%2F?page=1&name=a+b"
