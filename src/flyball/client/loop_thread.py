"""A thread with an event loop, in which synchronous code runs coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from flyball.client.errors import ClientClosed

T = TypeVar("T")

_LONGEST_SLEEP_S = 0.5


class LoopThread:
    """Runs coroutines for callers of any thread. `start` and `stop` may be called twice."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        if self._thread is not None:
            return
        started = threading.Event()
        # Daemon: a program that forgets to close its client can still exit.
        self._thread = threading.Thread(target=self._main, args=(started,), name="flyball-client", daemon=True)
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """Stop the loop; calls of other threads raise ClientClosed."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def _main(self, started: threading.Event) -> None:
        asyncio.run(self._run(started))

    async def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        started.set()
        await self._stop.wait()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result.

        If the caller is interrupted, the coroutine is cancelled, and has ended when the interruption propagates.
        """
        if self._loop is None:
            coroutine.close()
            raise ClientClosed("the client is not open: use it in a `with` block")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the synchronous client was called from its own event loop")
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_signalling(coroutine, ended), self._loop)
        try:
            return _result_of(future)
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed by another thread") from None
        except BaseException:
            # Ctrl-C most likely: cancel the request before propagating.
            if future.cancel():
                ended.wait()
            raise


def _result_of(future: concurrent.futures.Future[T]) -> T:
    """Wait for the result. A Ctrl-C just before the thread sleeps does not wake it, so sleep in short intervals."""
    while True:
        try:
            return future.result(_LONGEST_SLEEP_S)
        except TimeoutError:
            if future.done():
                raise


async def _signalling(coroutine: Coroutine[Any, Any, T], ended: threading.Event) -> T:
    try:
        return await coroutine
    finally:
        ended.set()
