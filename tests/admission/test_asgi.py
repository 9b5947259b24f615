"""The middleware in front of plain ASGI applications, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyball.admission import AdmissionOptions, OneClass
from flyball.admission.admission import Admission
from flyball.admission.asgi import KEPT_BYTES, MESSAGE_BYTES, AdmissionMiddleware, Message
from flyball.admission.meter import current_use
from flyball.admission.state import state_of
from flyball.admission.use import Unit, Use
from flyball.errors import AdmissionError
from tests.admission.serving import Database, ask, begin, count, on_uvloop, serve, until, waiting
from tests.control.clock import leaping


async def respond(send: Any, status: int = 200, body: bytes = b"done") -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


class App:
    """Answers every request with its body, or as its path says."""

    def __init__(self) -> None:
        self.begun = 0
        self.bodies: list[bytes] = []
        self.uses: list[Use | None] = []
        self.may_go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
            return
        self.begun += 1
        self.uses.append(current_use.get())
        match scope["path"]:
            case "/error":
                await respond(send, 502)
            case "/bug":
                raise RuntimeError("a mistake of the application")
            case "/stream":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"first", "more_body": True})
                await self.may_go_on.wait()
                await send({"type": "http.response.body", "body": b", last"})
            case "/afterwards":
                await respond(send)
                await self.may_go_on.wait()
            case _:
                self.bodies.append(await read_body(receive))
                await respond(send, body=self.bodies[-1] or b"done")

    async def live(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


@on_uvloop
async def test_requests_pass_while_the_database_is_not_busy() -> None:
    app = App()
    guarded = AdmissionMiddleware(app, sensor=Database())
    async with serve(guarded) as port:
        response = await ask(port, "/items", "POST", body=b"a bid")
    assert (response.status, response.body) == (200, b"a bid")
    assert count(guarded.admission, "served") == 1


@on_uvloop
async def test_a_request_waits_while_the_database_is_busy_and_begins_when_it_is_not() -> None:
    app = App()
    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=3600))
    busy = database.take()
    async with serve(guarded) as port:
        client = await begin(port, "/items")
        await until(lambda: waiting(guarded.admission) == 1)
        assert app.begun == 0
        busy.end()
        assert (await client.response()).status == 200
    assert app.begun == 1


@on_uvloop
async def test_whoever_has_waited_too_long_is_told_when_to_come_again() -> None:
    app = App()
    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=0.05))
    database.take()
    async with serve(guarded) as port:
        response = await ask(port, "/items")
    assert response.status == 503
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert "try again in" in response.text
    assert app.begun == 0
    assert count(guarded.admission, "refused") == 1


@on_uvloop
async def test_whoever_comes_when_too_many_wait_is_refused_at_once() -> None:
    database = Database()
    guarded = AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(queue_limit=1, deadline_s=3600))
    busy = database.take()
    async with serve(guarded) as port:
        first = await begin(port, "/items")
        await until(lambda: waiting(guarded.admission) == 1)
        assert (await ask(port, "/items")).status == 503
        assert waiting(guarded.admission) == 1
        busy.end()
        assert (await first.response()).status == 200


@pytest.mark.parametrize(
    ("accepted", "is_json"),
    [
        ("application/json", True),
        ("application/problem+json, */*", True),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("text/plain, application/json;q=0.5", False),
        ("*/*", False),
    ],
)
def test_a_refusal_is_json_for_those_who_ask_for_it(accepted: str, is_json: bool) -> None:
    @on_uvloop
    async def check() -> None:
        database = Database()
        database.take()
        async with serve(
            AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(deadline_s=0.01))
        ) as port:
            response = await ask(port, "/items", headers=[("accept", accepted)])
        assert response.status == 503
        if is_json:
            assert response.headers["content-type"] == "application/json"
            document = json.loads(response.body)
            assert document["error"]
            assert document["retry_after_s"] == int(response.headers["retry-after"])
        else:
            assert response.headers["content-type"].startswith("text/plain")

    check()


@on_uvloop
async def test_a_refusal_of_head_has_no_body() -> None:
    database = Database()
    database.take()
    async with serve(AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(deadline_s=0.01))) as port:
        response = await ask(port, "/items", "HEAD")
    assert (response.status, response.body) == (503, b"")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
def test_head_and_options_wait_as_others_do(method: str) -> None:
    @on_uvloop
    async def check() -> None:
        database = Database()
        guarded = AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(deadline_s=3600))
        busy = database.take()
        async with serve(guarded) as port:
            client = await begin(port, "/items", method)
            await until(lambda: waiting(guarded.admission) == 1)
            busy.end()
            assert (await client.response()).status == 200

    check()


@on_uvloop
async def test_a_client_that_hangs_up_leaves_the_queue_at_once() -> None:
    app = App()
    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=3600))
    busy = database.take()
    async with serve(guarded) as port:
        client = await begin(port, "/items", "POST", body=b"a bid")
        await until(lambda: waiting(guarded.admission) == 1)
        await client.hang_up()
        await until(lambda: waiting(guarded.admission) == 0)
        busy.end()
    assert app.begun == 0
    assert count(guarded.admission, "left") == 1


@on_uvloop
async def test_a_body_that_comes_while_its_request_waits_is_kept() -> None:
    app = App()
    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=3600))
    busy = database.take()
    body = bytes(range(256)) * 40
    async with serve(guarded) as port:
        client = await begin(port, "/items", "POST", headers=[("content-length", str(len(body)))])
        await until(lambda: waiting(guarded.admission) == 1)
        for start in range(0, len(body), 1024):
            client.writer.write(body[start : start + 1024])
            await client.writer.drain()
        busy.end()
        assert (await client.response()).body == body


@on_uvloop
async def test_a_body_larger_than_what_is_kept_arrives_whole_and_in_order() -> None:
    app = App()
    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=3600))
    busy = database.take()
    body = b"".join(b"%015d," % number for number in range(40 * KEPT_BYTES // 16))
    async with serve(guarded) as port, asyncio.TaskGroup() as tasks:
        client = await begin(port, "/items", "POST", headers=[("content-length", str(len(body)))])
        client.writer.write(body)
        sending = tasks.create_task(client.writer.drain())
        await until(lambda: waiting(guarded.admission) == 1)
        busy.end()
        assert (await client.response()).body == body
        await sending


@leaping
async def test_no_more_is_taken_of_a_body_than_is_kept_while_its_request_waits() -> None:
    database = Database()
    taken_bytes = 0

    async def receive() -> Message:
        nonlocal taken_bytes
        taken_bytes += 1000
        return {"type": "http.request", "body": bytes(1000), "more_body": True}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    database.take()
    guarded = AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(deadline_s=0.05))
    await guarded({"type": "http", "method": "POST", "path": "/items", "headers": []}, receive, send)
    assert sent[0]["status"] == 503
    kept_bytes = taken_bytes // 1000 * (MESSAGE_BYTES + 1000)
    assert KEPT_BYTES <= kept_bytes < KEPT_BYTES + MESSAGE_BYTES + 1000


@leaping
async def test_of_a_body_in_tiny_parts_few_are_kept() -> None:
    database = Database()
    guarded = AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(deadline_s=0.05))
    database.take()
    received = 0

    async def receive() -> Message:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"", "more_body": True}

    async def send(message: Message) -> None: ...

    await guarded({"type": "http", "method": "POST", "path": "/items", "headers": []}, receive, send)
    assert received * MESSAGE_BYTES == KEPT_BYTES


@on_uvloop
async def test_a_request_that_has_begun_is_never_dropped() -> None:
    app = App()
    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=0.01))
    async with serve(guarded) as port:
        client = await begin(port, "/stream")
        await client.first_bytes()
        database.take()
        assert (await ask(port, "/items")).status == 503
        app.may_go_on.set()
        await until(lambda: count(guarded.admission, "served") == 1)
        await client.hang_up()
    assert count(guarded.admission, "failed") == 0


@on_uvloop
async def test_connection_returned_after_the_last_byte_is_charged() -> None:
    database = Database()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        hold = database.take()
        await respond(send)
        hold.end()

    guarded = AdmissionMiddleware(app, sensor=database)
    async with serve(guarded, lifespan="off") as port:
        await ask(port, "/items")
        await until(lambda: guarded.admission.in_flight == 0)
    assert guarded.admission.classifier.keys["GET /items"].mean > 0


@on_uvloop
async def test_request_that_passes_on_its_connection_is_not_free() -> None:
    database = Database()
    holds = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        holds.append(database.take())
        await respond(send)

    guarded = AdmissionMiddleware(app, sensor=database)
    async with serve(guarded, lifespan="off") as port:
        await ask(port, "/items")
        await until(lambda: guarded.admission.in_flight == 0)
    assert count(guarded.admission, "served") == 1
    assert "GET /items" not in guarded.admission.classifier.keys


@on_uvloop
async def test_request_ends_with_its_last_byte() -> None:
    app = App()
    guarded = AdmissionMiddleware(app, sensor=Database())
    async with serve(guarded) as port:
        assert (await ask(port, "/afterwards")).status == 200
        assert guarded.admission.in_flight == 0
        assert count(guarded.admission, "served") == 1
        app.may_go_on.set()


@on_uvloop
async def test_a_response_in_parts_ends_with_its_last_part() -> None:
    app = App()
    guarded = AdmissionMiddleware(app, sensor=Database())
    async with serve(guarded) as port:
        client = await begin(port, "/stream")
        await client.first_bytes()
        assert guarded.admission.in_flight == 1
        app.may_go_on.set()
        await until(lambda: guarded.admission.in_flight == 0)
        await client.hang_up()
    assert count(guarded.admission, "served") == 1


@on_uvloop
async def test_what_lasts_is_a_stream_and_is_no_longer_in_flight() -> None:
    app = App()
    guarded = AdmissionMiddleware(
        app, sensor=Database(), options=AdmissionOptions(stream_after_s=0.02, period_s=0.01)
    )
    async with serve(guarded) as port:
        client = await begin(port, "/stream")
        await until(lambda: guarded.admission.streams == 1)
        assert guarded.admission.in_flight == 0
        app.may_go_on.set()
        await until(lambda: guarded.admission.streams == 0)
        await client.hang_up()
    # What it took says nothing about what others of its kind take.
    assert "GET /stream" not in guarded.admission.classifier.keys


@pytest.mark.parametrize(("path", "status"), [("/error", 502), ("/bug", 500)])
def test_errors_of_the_application_count_as_failures_and_reach_the_client(path: str, status: int) -> None:
    @on_uvloop
    async def check() -> None:
        guarded = AdmissionMiddleware(App(), sensor=Database())
        async with serve(guarded) as port:
            assert (await ask(port, path)).status == status
        assert count(guarded.admission, "failed") == 1
        assert guarded.admission.in_flight == 0

    check()


@on_uvloop
async def test_a_request_that_the_server_cancels_is_over_but_no_failure() -> None:
    app = App()
    guarded = AdmissionMiddleware(app, sensor=Database())

    async def send(message: Message) -> None: ...

    async def receive() -> Message:
        return {"type": "http.request"}

    async with asyncio.TaskGroup() as tasks:
        scope = {"type": "http", "method": "GET", "path": "/stream", "headers": []}
        serving = tasks.create_task(guarded(scope, receive, send))
        await until(lambda: guarded.admission.in_flight == 1)
        serving.cancel()
    assert guarded.admission.in_flight == 0
    assert count(guarded.admission, "failed") == 0
    assert count(guarded.admission, "left") == 1
    assert not guarded.admission.classifier.keys, "what it had taken until then is not what others of its kind take"


@on_uvloop
async def test_what_a_request_takes_of_the_database_is_charged_to_its_kind() -> None:
    database = Database()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(int(scope["path"][-1])):
            database.query()
        await respond(send)

    guarded = AdmissionMiddleware(
        app, sensor=database, key=lambda scope: scope["path"], options=AdmissionOptions(unit=Unit.CONNECTIONS)
    )
    async with serve(guarded, lifespan="off") as port:
        for _ in range(3):
            await ask(port, "/a1")
            await ask(port, "/b7")
    keys = guarded.admission.classifier.keys
    assert keys["/a1"].mean == pytest.approx(1.0)
    assert keys["/b7"].mean == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("path", "is_exempt"),
    [
        ("/static", True),
        ("/static/style.css", True),
        ("/statics", False),
        ("/health/live", True),
        ("/items/7/picture", True),
        ("/items/7/8/picture", False),
        ("/items/7", False),
        ("/also/static", False),
    ],
)
def test_exempt_paths_never_wait_and_are_not_counted(path: str, is_exempt: bool) -> None:
    @on_uvloop
    async def check() -> None:
        app = App()
        database = Database()
        database.take()
        guarded = AdmissionMiddleware(
            app,
            sensor=database,
            exempt=["/static", "/health/", "/items/*/picture"],
            options=AdmissionOptions(deadline_s=0.01),
        )
        async with serve(guarded) as port:
            assert (await ask(port, path)).status == (200 if is_exempt else 503)
        assert count(guarded.admission, "arrived") == (0 if is_exempt else 1)
        assert app.uses == ([None] if is_exempt else [])

    check()


def test_an_exempt_path_without_its_slash_is_a_mistake() -> None:
    with pytest.raises(AdmissionError, match="must start with a slash"):
        AdmissionMiddleware(App(), sensor=Database(), exempt=["static"])


@on_uvloop
async def test_the_state_is_shown_where_it_is_wanted_even_while_everybody_waits() -> None:
    database = Database()
    guarded = AdmissionMiddleware(
        App(), sensor=database, state_path="/admission", options=AdmissionOptions(deadline_s=3600, period_s=3600)
    )
    busy = database.take()
    async with serve(guarded, root_path="/shop") as port:
        client = await begin(port, "/items")
        await until(lambda: waiting(guarded.admission) == 1)
        response = await ask(port, "/admission")
        assert response.headers["content-type"] == "application/json"
        state = json.loads(response.body)
        assert state == json.loads(json.dumps(state_of(guarded.admission))) | {"pool": state["pool"]}
        assert state["classes"][0]["waiting"] == 1
        busy.end()
        await client.response()


@on_uvloop
async def test_metrics_are_shown_to_prometheus() -> None:
    guarded = AdmissionMiddleware(App(), sensor=Database(), metrics_path="/metrics")
    async with serve(guarded) as port:
        await ask(port, "/items")
        response = await ask(port, "/metrics")
        head = await ask(port, "/metrics", "HEAD")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name for family in text_string_to_metric_families(response.text)}
    assert families
    assert all(name.startswith("flyball_admission_") for name in families)
    assert (head.status, head.body) == (200, b"")


@on_uvloop
async def test_state_and_metrics_are_shown_nowhere_unless_wanted() -> None:
    app = App()
    async with serve(AdmissionMiddleware(app, sensor=Database())) as port:
        await ask(port, "/metrics")
        await ask(port, "/admission")
    assert app.begun == 2


@on_uvloop
async def test_to_other_methods_the_path_of_the_state_is_one_of_the_application() -> None:
    app = App()
    async with serve(AdmissionMiddleware(app, sensor=Database(), state_path="/admission")) as port:
        await ask(port, "/admission", "POST")
    assert app.begun == 1


class Lifespan:
    """An application that records the lifespan events it receives."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.sent: list[str] = []
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(self) -> Message:
        return await self.inbox.get()

    async def send(self, message: Message) -> None:
        self.sent.append(message["type"])

    async def live(self, app: Any, messages: Sequence[str]) -> None:
        for message in messages:
            self.inbox.put_nowait({"type": message})
        await app({"type": "lifespan"}, self.receive, self.send)


@on_uvloop
async def test_the_life_of_the_application_passes_through() -> None:
    server = Lifespan()
    await server.live(AdmissionMiddleware(App(), sensor=Database()), ["lifespan.startup", "lifespan.shutdown"])
    assert server.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@on_uvloop
async def test_an_application_that_fails_to_start_is_not_hidden() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise RuntimeError("no database")

    server = Lifespan()
    with pytest.raises(RuntimeError, match="no database"):
        await server.live(AdmissionMiddleware(app, sensor=Database()), ["lifespan.startup"])
    assert server.sent == []


@on_uvloop
async def test_an_application_without_a_life_span_is_given_one() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("only HTTP")

    server = Lifespan()
    await server.live(AdmissionMiddleware(app, sensor=Database()), ["lifespan.startup", "lifespan.shutdown"])
    assert server.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@on_uvloop
async def test_an_application_that_ignores_its_life_span_is_given_one() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await respond(send)

    heard: list[str] = []

    async def receive() -> Message:
        return {"type": "lifespan.shutdown" if heard else "lifespan.startup"}

    async def send(message: Message) -> None:
        heard.append(message["type"])

    await AdmissionMiddleware(app, sensor=Database())({"type": "lifespan"}, receive, send)
    assert heard == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@on_uvloop
async def test_what_is_neither_a_request_nor_a_life_span_passes_through() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    database = Database()
    guarded = AdmissionMiddleware(app, sensor=database)
    guarded.admission.start()
    database.take()
    task = asyncio.ensure_future(guarded.admission.admit("GET /items"))
    await asyncio.sleep(0)
    await guarded({"type": "news"}, None, None)
    await asyncio.sleep(0)
    assert seen == ["news"]
    assert not task.done(), "it does not end the admission of others"
    task.cancel()
    guarded.admission.stop()


@on_uvloop
async def test_whoever_waits_when_the_application_ends_is_refused() -> None:
    database = Database()
    database.take()
    guarded = AdmissionMiddleware(App(), sensor=database, options=AdmissionOptions(deadline_s=3600))
    async with serve(guarded) as port:
        client = await begin(port, "/items")
        await until(lambda: waiting(guarded.admission) == 1)
        guarded.admission.stop()
        assert (await client.response()).status == 503


class Socket:
    """The server's side of a WebSocket."""

    def __init__(self, *, can_respond: bool = True) -> None:
        self.scope: dict[str, Any] = {"type": "websocket", "path": "/chat", "headers": []}
        if can_respond:
            self.scope["extensions"] = {"websocket.http.response": {}}
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.inbox.put_nowait({"type": "websocket.connect"})
        self.sent: list[Message] = []

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


@on_uvloop
async def test_a_websocket_waits_before_its_handshake_and_is_a_stream_after_it() -> None:
    database = Database()
    guarded = AdmissionMiddleware(echo, sensor=database, options=AdmissionOptions(deadline_s=3600))
    busy = database.take()
    socket = Socket()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(guarded(socket.scope, socket.inbox.get, socket.send))
        await until(lambda: waiting(guarded.admission) == 1)
        assert socket.sent == []
        busy.end()
        await until(lambda: guarded.admission.streams == 1)
        assert guarded.admission.in_flight == 0
        socket.inbox.put_nowait({"type": "websocket.receive", "text": "hello"})
        socket.inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
    assert [message["type"] for message in socket.sent] == ["websocket.accept", "websocket.send"]
    assert guarded.admission.streams == 0
    assert count(guarded.admission, "served") == 1


@on_uvloop
async def test_a_websocket_is_refused_by_a_status_where_the_server_can_do_that() -> None:
    database = Database()
    database.take()
    socket = Socket()
    guarded = AdmissionMiddleware(echo, sensor=database, options=AdmissionOptions(deadline_s=0.01))
    await guarded(socket.scope, socket.inbox.get, socket.send)
    assert [message["type"] for message in socket.sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert socket.sent[0]["status"] == 503
    assert b"retry-after" in dict(socket.sent[0]["headers"])


@on_uvloop
async def test_a_websocket_is_closed_with_try_again_later_where_there_is_no_status() -> None:
    database = Database()
    database.take()
    socket = Socket(can_respond=False)
    guarded = AdmissionMiddleware(echo, sensor=database, options=AdmissionOptions(deadline_s=0.01))
    await guarded(socket.scope, socket.inbox.get, socket.send)
    assert [(message["type"], message["code"]) for message in socket.sent] == [("websocket.close", 1013)]


@on_uvloop
async def test_a_websocket_that_goes_away_before_its_handshake_leaves_the_queue() -> None:
    database = Database()
    database.take()
    socket = Socket()
    guarded = AdmissionMiddleware(echo, sensor=database, options=AdmissionOptions(deadline_s=3600))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(guarded(socket.scope, socket.inbox.get, socket.send))
        await until(lambda: waiting(guarded.admission) == 1)
        socket.inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})
    assert waiting(guarded.admission) == 0
    assert socket.sent == []


@on_uvloop
async def test_a_client_that_goes_in_the_moment_of_its_admission_is_no_leak() -> None:
    database = Database()
    app = App()
    guarded = AdmissionMiddleware(app, sensor=database, options=AdmissionOptions(deadline_s=3600))
    busy = database.take()
    inbox: asyncio.Queue[Message] = asyncio.Queue()

    async def send(message: Message) -> None: ...

    async with asyncio.TaskGroup() as tasks:
        scope = {"type": "http", "method": "GET", "path": "/stream", "headers": []}
        app.may_go_on.set()
        tasks.create_task(guarded(scope, inbox.get, send))
        await until(lambda: waiting(guarded.admission) == 1)
        busy.end()
        guarded.admission.end_period(asyncio.get_running_loop().time())
        inbox.put_nowait({"type": "http.disconnect"})
    assert waiting(guarded.admission) == guarded.admission.in_flight == 0
    assert count(guarded.admission, "left") + count(guarded.admission, "served") == 1


def test_traces_tell_what_became_of_each_request_and_what_each_period_came_to(tmp_path: Path) -> None:
    @on_uvloop
    async def run() -> None:
        database = Database()
        guarded = AdmissionMiddleware(
            App(), sensor=database, traces=tmp_path, options=AdmissionOptions(deadline_s=0.05, period_s=0.01)
        )
        async with serve(guarded) as port:
            await ask(port, "/items/1")
            await ask(port, "/error")
            database.take()
            await ask(port, "/items/2")

    run()
    [admissions] = tmp_path.glob("admissions-*.parquet")
    rows = pq.read_table(admissions).to_pylist()
    assert sorted((row["key"], row["outcome"]) for row in rows) == [
        ("GET /error", "failed"),
        ("GET /items/{}", "refused"),
        ("GET /items/{}", "served"),
    ]
    [samples] = tmp_path.glob("samples-*.parquet")
    recorded = pq.read_table(samples).to_pylist()
    assert {row["loop"] for row in recorded} == {"admission"}
    assert {(row["mode"], row["lowest"], row["highest"]) for row in recorded} == {("active", 0.0, None)}
    assert {json.loads(row["gains"])["kind"] for row in recorded} == {"i"}


def test_an_application_that_runs_without_life_span_still_writes_traces(tmp_path: Path) -> None:
    @on_uvloop
    async def run() -> None:
        guarded = AdmissionMiddleware(App(), sensor=Database(), traces=tmp_path)
        async with serve(guarded, lifespan="off") as port:
            await ask(port, "/items/1")
        await guarded.stop()

    run()
    assert len(list(tmp_path.glob("admissions-*.parquet"))) == 1


def test_a_middleware_without_a_sensor_says_what_it_needs() -> None:
    with pytest.raises(AdmissionError, match="needs a sensor"):
        AdmissionMiddleware(App())


def test_a_middleware_with_an_admission_takes_no_other_options() -> None:
    admission = Admission(Database())
    assert AdmissionMiddleware(App(), admission).admission is admission
    with pytest.raises(AdmissionError, match="either admission, or sensor"):
        AdmissionMiddleware(App(), admission, options=AdmissionOptions(deadline_s=1.0))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"exempt": "/health"}, r"use \['/health'\]"),
        ({"state_path": "admission"}, "state_path must start with a slash"),
        ({"metrics_path": "metrics"}, "metrics_path must start with a slash"),
        ({"sensor": Database}, "invalid sensor"),
    ],
)
def test_options_that_would_do_nothing_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(AdmissionError, match=message):
        AdmissionMiddleware(App(), **({"sensor": Database()} | option))


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdmissionError, match=r"profile\.json"):
        AdmissionMiddleware(App(), sensor=Database(), profile=tmp_path / "profile.json")


def test_a_profile_and_a_classifier_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(AdmissionError, match="either profile or classifier"):
        AdmissionMiddleware(
            App(), sensor=Database(), profile=tmp_path, options=AdmissionOptions(classifier=OneClass())
        )


def test_a_name_that_cannot_be_part_of_a_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdmissionError, match="letters, digits"):
        AdmissionMiddleware(App(), sensor=Database(), traces=tmp_path, options=AdmissionOptions(name="my/app"))
