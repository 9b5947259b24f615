"""Admission control in front of any ASGI application: a middleware that lets requests wait, and turns some away.

Speaks ASGI and nothing else: what may begin when is the Admission's decision. Knows no framework.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from flyball.admission.admission import Admission, Admitted, HasMeter, Waiting
from flyball.admission.classifier import Classifier
from flyball.admission.keys import Key, Scope, key_for, path_of
from flyball.admission.meter import current_use
from flyball.admission.metrics import AdmissionCollector
from flyball.admission.options import AdmissionOptions
from flyball.admission.profile import load_profile
from flyball.admission.recording import Recording
from flyball.admission.state import loop_facts_of, state_of
from flyball.errors import AdmissionError, NotAdmitted

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# An ASGI application. Each framework has types of its own for scopes and messages.
App = Callable[[Any, Any, Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# While a request waits its body is taken from the server only as long as less than this is kept.
KEPT_BYTES = 64 * 2**10
# What a message takes besides its body: a body may come in parts of a byte, or of none.
MESSAGE_BYTES = 256

# The code with which a WebSocket is closed where the server cannot answer the handshake with a status.
TRY_AGAIN_LATER = 1013


class Reporter(Protocol):
    """Tells somebody else how admission control stands; whoever runs the application waits for none of it."""

    def watch_admission(
        self,
        name: str,
        state: Callable[[], dict[str, Any]],
        facts: dict[str, Any],
        set_shadow: Callable[[bool], None],
    ) -> object:
        """Tell of it again and again; return what `forget` takes."""
        ...

    async def forget(self, reported: Any) -> None:
        """Tell no more."""
        ...


class AdmissionMiddleware:
    """Lets requests begin when the database behind the application can bear them.

    A request that may not begin yet waits, at most `deadline_s` seconds; then, or when too many wait already, it
    is answered with 503 and Retry-After. A client that goes away leaves the queue at once. Once a request has begun
    it is never touched again.
    """

    def __init__(
        self,
        app: App,
        /,
        admission: Admission | None = None,
        *,
        sensor: HasMeter | None = None,
        profile: str | Path | None = None,
        traces: str | Path | None = None,
        exempt: Sequence[str] = (),
        key: Key | None = None,
        state_path: str | None = None,
        metrics_path: str | None = None,
        reporter: Reporter | None = None,
        options: AdmissionOptions | None = None,
    ) -> None:
        """Wrap `app`. `sensor` watches the pool, and `options` are those of Admission. Or give a whole `admission`.

        `profile` is a file of `flyball pipeline profile`; to `traces`, a folder, goes what that is made of. Paths
        that are `exempt` never wait: "/static" with all below it, "/items/*/picture" with anything for the star.
        `key` says what kind of request one is, by the application's routes if it is not given. At `state_path` and
        `metrics_path` the state is shown, as JSON and for Prometheus; nowhere if they are not given. A `reporter`
        tells the console of a Flyball node: `flyball.client.reporting.LoopReporter`.
        """
        self._app = app
        name = (options or AdmissionOptions()).name
        self._recording = None if traces is None else Recording(Path(traces), name)
        self.admission = _make_admission(admission, sensor, profile, self._recording, options)
        self._key = key or key_for(app)
        self._exempt = _compile_exempt(exempt)
        self._pages: dict[str, Callable[[], tuple[bytes, bytes]]] = {}
        if state_path is not None:
            _check_path("state_path", state_path)
            self._pages[state_path] = self._state_page
        if metrics_path is not None:
            _check_path("metrics_path", metrics_path)
            self._registry = CollectorRegistry()
            self._registry.register(AdmissionCollector(self.admission))
            self._pages[metrics_path] = self._metrics_page
        self._reporter = reporter
        self._reported: object | None = None
        self._has_own_paths = bool(self._pages) or self._exempt is not None
        self._is_started = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind: str = scope["type"]
        if kind != "http" and kind != "websocket":
            await (self._live if kind == "lifespan" else self._app)(scope, receive, send)
            return
        if not self._is_started:
            self._start()
        if self._has_own_paths and await self._passes(scope, receive, send):
            return
        key = self._key(scope)
        try:
            asked = self.admission.ask(key)
            if isinstance(asked, Admitted):
                admitted = asked
            elif (found := await asked.wait_briefly()) is not None:
                admitted = found
            else:
                # Who waits but a moment is not listened to: a task for it would cost more than most short waits.
                inbox = _Inbox(receive)
                found = await _wait(asked, inbox)
                if found is None:
                    return
                admitted, receive = found, inbox.receive
        except NotAdmitted as refusal:
            await _refuse(scope, send, refusal)
            return
        # Not in a method of its own: each switch between tasks would go through one more coroutine.
        answer = _Answer(admitted, send)
        mark = current_use.set(admitted.use)
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            # The server gives up: the client has gone, or the process ends. Nothing of it is the database's fault.
            if answer.is_failure:
                admitted.end(is_failure=True)
            else:
                admitted.leave()
            raise
        except BaseException:
            admitted.end(is_failure=True)
            raise
        finally:
            current_use.reset(mark)
        if not admitted.has_ended:
            admitted.end(answer.is_failure)

    async def _passes(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer what is no matter of admission: our own pages, and paths that are exempt."""
        path = path_of(scope)
        page = self._pages.get(path)
        if page is not None and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            content_type, body = page()
            await _respond(scope, send, 200, content_type, body, [(b"cache-control", b"no-store")])
            return True
        if self._exempt is None or not self._exempt.match(path):
            return False
        # Servers may start a request in the context of one before it.
        current_use.set(None)
        await self._app(scope, receive, send)
        return True

    def _state_page(self) -> tuple[bytes, bytes]:
        return b"application/json", json.dumps(state_of(self.admission)).encode()

    def _metrics_page(self) -> tuple[bytes, bytes]:
        return CONTENT_TYPE_PLAIN_0_0_4.encode(), generate_latest(self._registry)

    def _start(self) -> None:
        if self._recording is not None:
            self._recording.start()
        self.admission.start()
        if self._reporter is not None:
            admission = self.admission
            self._reported = self._reporter.watch_admission(
                admission.name, partial(state_of, admission), loop_facts_of(admission), admission.set_shadow
            )
        self._is_started = True

    async def stop(self) -> None:
        """Refuse whoever waits, and complete the traces. The life span of the application does it by itself."""
        if self._is_started:
            self._is_started = False
            self.admission.stop()
            if self._reporter is not None:
                await self._reporter.forget(self._reported)
            if self._recording is not None:
                await asyncio.to_thread(self._recording.stop)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Live as long as the application: start before it, and stop before the server hears that it has ended."""
        has_listened = False

        async def listen() -> Message:
            nonlocal has_listened
            has_listened = True
            return await receive()

        async def send_or_stop(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self.stop()
            await send(message)

        self._start()
        try:
            try:
                await self._app(scope, listen, send_or_stop)
            except Exception:
                if has_listened:
                    raise
            if not has_listened:
                # It knows nothing of life spans, as Django does not. But we have to stop some day.
                await self._live_alone(receive, send)
        finally:
            await self.stop()

    async def _live_alone(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


class _Gone(Exception):
    """The client has closed its connection."""


class _Inbox:
    """What a client sends while its request waits, kept for the application."""

    __slots__ = ("_kept", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()

    async def listen(self) -> None:
        """Keep what comes. Raises _Gone when the client goes, and returns when enough is kept: the rest may wait."""
        kept_bytes = 0
        while kept_bytes < KEPT_BYTES:
            message = await self._receive()
            self._kept.append(message)
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                raise _Gone
            kept_bytes += MESSAGE_BYTES + len(message.get("body", b""))

    async def receive(self) -> Message:
        """Return the next message, first those that were kept."""
        return self._kept.popleft() if self._kept else await self._receive()


async def _wait(waiting: Waiting, inbox: _Inbox) -> Admitted | None:
    """Wait for admission, or until the client has gone: None. Raises NotAdmitted."""
    admitted: Admitted | None = None
    refusal: NotAdmitted | None = None
    try:
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(inbox.listen())
                try:
                    admitted = await waiting.wait()
                except NotAdmitted as error:
                    refusal = error
                # Servers can bear this: a message that has come meanwhile is there for the next who asks.
                listening.cancel()
        except* _Gone:
            # If it was admitted in the same moment it begins, and finds out by itself.
            pass
    except BaseException:
        if admitted is not None:
            admitted.leave()
        raise
    if refusal is not None:
        raise refusal
    return admitted


class _Answer:
    """What the application sends, watched for its end."""

    __slots__ = ("_admitted", "_send", "is_failure")

    def __init__(self, admitted: Admitted, send: Send) -> None:
        self._admitted = admitted
        self._send = send
        self.is_failure = False

    def send(self, message: Message) -> Awaitable[None]:
        # Not a coroutine itself: that would be one more for each message of each request.
        kind = message["type"]
        if kind == "http.response.body":
            # Some give connections back only after the response, as FastAPI's dependencies do: what they cost is not
            # known before, and the request ends with the application.
            if not message.get("more_body", False) and not self._admitted.use.held:
                self._admitted.end(self.is_failure)
        elif kind == "http.response.start":
            self.is_failure = message["status"] >= 500
        elif kind == "websocket.accept":
            self._admitted.stream()
        return self._send(message)


def _make_admission(
    admission: Admission | None,
    sensor: HasMeter | None,
    profile: str | Path | None,
    recording: Recording | None,
    options: AdmissionOptions | None,
) -> Admission:
    if admission is not None:
        if sensor is not None or profile is not None or recording is not None or options is not None:
            raise AdmissionError(
                "give AdmissionMiddleware either an admission or a sensor with profile, traces and other options:"
                " a whole Admission has its own"
            )
        return admission
    if sensor is None:
        raise AdmissionError(
            "AdmissionMiddleware needs a sensor, which tells it how busy the database is: for a psycopg pool"
            " sensor = PsycopgSensor(); sensor.watch(pool); others are in flyball.admission.sensors"
        )
    options = options or AdmissionOptions()
    if profile is not None:
        if options.classifier is not None:
            raise AdmissionError("give AdmissionMiddleware either a profile or a classifier that was made with one")
        options = replace(options, classifier=Classifier(load_profile(profile)))
    if recording is not None:
        options = replace(options, record=recording.record, note=recording.note)
    return Admission(sensor, options)


def _compile_exempt(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Return one pattern for all: a path itself and all below it, any text without a slash for a star."""
    if isinstance(patterns, str):
        raise AdmissionError(f"exempt is a list of paths: give [{patterns!r}]")
    for pattern in patterns:
        _check_path("an exempt path", pattern)
    if not patterns:
        return None
    alternatives = (re.escape(pattern.rstrip("/")).replace(r"\*", "[^/]*") for pattern in patterns)
    return re.compile(rf"(?:{'|'.join(alternatives)})(?:/|\Z)")


def _check_path(what: str, path: str) -> None:
    if not path.startswith("/"):
        raise AdmissionError(f"{what} begins with a slash, {path!r} does not")


async def _refuse(scope: Scope, send: Send, refusal: NotAdmitted) -> None:
    """Say that the request cannot be served now, and when to come again."""
    retry_after_s = max(1, math.ceil(refusal.retry_after_s))
    headers = [(b"retry-after", b"%d" % retry_after_s), (b"cache-control", b"no-store")]
    if _wants_json(scope):
        content_type = b"application/json"
        body = json.dumps({"error": refusal.reason, "retry_after_s": retry_after_s}).encode()
    else:
        content_type = b"text/plain; charset=utf-8"
        body = f"This site is busy: {refusal.reason}. Please try again in {retry_after_s} s.\n".encode()
    if scope["type"] == "http":
        await _respond(scope, send, 503, content_type, body, headers)
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await _respond(scope, send, 503, content_type, body, headers, prefix="websocket.http")
    else:
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": refusal.reason})


async def _respond(
    scope: Scope, send: Send, status: int, content_type: bytes, body: bytes, headers: Headers, prefix: str = "http"
) -> None:
    """Send a whole response; to HEAD its headers only."""
    all_headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": f"{prefix}.response.start", "status": status, "headers": all_headers})
    await send({"type": f"{prefix}.response.body", "body": b"" if scope.get("method") == "HEAD" else body})


def _wants_json(scope: Scope) -> bool:
    """Whether the client names JSON among what it accepts, and before any text."""
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept").lower()
    json_at, text_at = accepted.find(b"json"), accepted.find(b"text/")
    return json_at >= 0 and not 0 <= text_at < json_at
