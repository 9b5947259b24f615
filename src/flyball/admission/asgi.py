"""Admission control as ASGI middleware: delays requests, and refuses some with 503.

Independent of frameworks; `Admission` decides.
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
# An ASGI application. Each framework has its own types for scopes and messages.
App = Callable[[Any, Any, Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# While a request waits, its body is read up to this size.
KEPT_BYTES = 64 * 2**10
# Overhead of a message: a body may arrive in single bytes, or empty parts.
MESSAGE_BYTES = 256

# Close code for a WebSocket if the server cannot refuse the handshake with an HTTP status.
TRY_AGAIN_LATER = 1013


class Reporter(Protocol):
    """Reports the state of admission control elsewhere, without delaying the application."""

    def watch_admission(
        self,
        name: str,
        state: Callable[[], dict[str, Any]],
        facts: dict[str, Any],
        set_shadow: Callable[[bool], None],
    ) -> object:
        """Start reporting; return the argument for `forget`."""
        ...

    async def forget(self, reported: Any) -> None:
        """Stop reporting."""
        ...


class AdmissionMiddleware:
    """Starts requests when the application's database has capacity.

    Other requests wait, at most `deadline_s` seconds; then, or if the queue is full, they get 503 with Retry-After. A
    disconnected client leaves the queue at once. A started request is never touched again.
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
        """Wrap `app`. `sensor` watches the pool, and `options` are those of Admission. Or pass a complete
        `admission`.

        `profile` is a file of `flyball pipeline profile`; the traces for it are written to the folder `traces`.
        `exempt` paths never wait: "/static" with everything below, "/items/*/picture" with a wildcard segment. `key`
        returns the kind of a request; the default uses the application's routes. `state_path` and `metrics_path`
        serve the state as JSON and for Prometheus; unset, they are not served. A `reporter` reports to the console of
        a Flyball node: `flyball.client.reporting.LoopReporter`.
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
                # During a brief wait disconnects are not watched: a task for that would cost more than most brief
                # waits.
                inbox = _Inbox(receive)
                found = await _wait(asked, inbox)
                if found is None:
                    return
                admitted, receive = found, inbox.receive
        except NotAdmitted as refusal:
            await _refuse(scope, send, refusal)
            return
        # Inlined: a method would add a coroutine to each task switch.
        answer = _Answer(admitted, send)
        mark = current_use.set(admitted.use)
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            # The server cancels: the client has disconnected, or the process is exiting. Not the database's fault.
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
        """Handle requests outside admission: its own pages, and exempt paths."""
        path = path_of(scope)
        page = self._pages.get(path)
        if page is not None and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            content_type, body = page()
            await _respond(scope, send, 200, content_type, body, [(b"cache-control", b"no-store")])
            return True
        if self._exempt is None or not self._exempt.match(path):
            return False
        # Servers may run a request in the context of an earlier one.
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
        """Refuse waiting requests and complete the traces. The application's lifespan calls this."""
        if self._is_started:
            self._is_started = False
            self.admission.stop()
            if self._reporter is not None:
                await self._reporter.forget(self._reported)
            if self._recording is not None:
                await asyncio.to_thread(self._recording.stop)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap the application's lifespan: start before it, and stop before its end is reported to the server."""
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
                # The application does not support lifespan (such as Django's), but the middleware has to stop as
                # well.
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
    """The client has disconnected."""


class _Inbox:
    """Messages received while the request waits, buffered for the application."""

    __slots__ = ("_kept", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()

    async def listen(self) -> None:
        """Buffer messages. Raises _Gone on disconnect, and returns when the buffer is full."""
        kept_bytes = 0
        while kept_bytes < KEPT_BYTES:
            message = await self._receive()
            self._kept.append(message)
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                raise _Gone
            kept_bytes += MESSAGE_BYTES + len(message.get("body", b""))

    async def receive(self) -> Message:
        """Return the next message, buffered ones first."""
        return self._kept.popleft() if self._kept else await self._receive()


async def _wait(waiting: Waiting, inbox: _Inbox) -> Admitted | None:
    """Wait for admission; return None if the client disconnects. Raises NotAdmitted."""
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
                # Servers support cancelling receive: the message is delivered to the next call.
                listening.cancel()
        except* _Gone:
            # If it was admitted at the same moment, it starts, and notices the disconnect itself.
            pass
    except BaseException:
        if admitted is not None:
            admitted.leave()
        raise
    if refusal is not None:
        raise refusal
    return admitted


class _Answer:
    """Watches the application's output for its end."""

    __slots__ = ("_admitted", "_send", "is_failure")

    def __init__(self, admitted: Admitted, send: Send) -> None:
        self._admitted = admitted
        self._send = send
        self.is_failure = False

    def send(self, message: Message) -> Awaitable[None]:
        # Not a coroutine: that would add one per message of each request.
        kind = message["type"]
        if kind == "http.response.body":
            # Connections may be returned after the response, as by FastAPI's dependencies: the cost is known only
            # then, so the request ends with the application.
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
                "pass AdmissionMiddleware either admission, or sensor with profile, traces and other options:"
                " a complete Admission has its own options"
            )
        return admission
    if sensor is None:
        raise AdmissionError(
            "AdmissionMiddleware needs a sensor that measures the database load: for a psycopg pool"
            " sensor = PsycopgSensor(); sensor.watch(pool); for others see flyball.admission.sensors"
        )
    options = options or AdmissionOptions()
    if profile is not None:
        if options.classifier is not None:
            raise AdmissionError("pass AdmissionMiddleware either profile or classifier, not both")
        options = replace(options, classifier=Classifier(load_profile(profile)))
    if recording is not None:
        options = replace(options, record=recording.record, note=recording.note)
    return Admission(sensor, options)


def _compile_exempt(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Return one pattern for all: each path with everything below it; a star matches one segment."""
    if isinstance(patterns, str):
        raise AdmissionError(f"exempt must be a list of paths: use [{patterns!r}]")
    for pattern in patterns:
        _check_path("an exempt path", pattern)
    if not patterns:
        return None
    alternatives = (re.escape(pattern.rstrip("/")).replace(r"\*", "[^/]*") for pattern in patterns)
    return re.compile(rf"(?:{'|'.join(alternatives)})(?:/|\Z)")


def _check_path(what: str, path: str) -> None:
    if not path.startswith("/"):
        raise AdmissionError(f"{what} must start with a slash, not {path!r}")


async def _refuse(scope: Scope, send: Send, refusal: NotAdmitted) -> None:
    """Refuse the request with 503 and Retry-After."""
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
    """Send a whole response; for HEAD only its headers."""
    all_headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": f"{prefix}.response.start", "status": status, "headers": all_headers})
    await send({"type": f"{prefix}.response.body", "body": b"" if scope.get("method") == "HEAD" else body})


def _wants_json(scope: Scope) -> bool:
    """Whether the client prefers JSON to text."""
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept").lower()
    json_at, text_at = accepted.find(b"json"), accepted.find(b"text/")
    return json_at >= 0 and not 0 <= text_at < json_at
