"""A thread next to the browser, with its own event loop, since the browser's is in the test's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")

START_LIMIT_S = 60.0
PAUSE_S = 0.1


@contextmanager
def in_background(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Make something and enter it in a thread of its own, where it is left in the end."""
    entered: Future[T] = Future()
    over: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        is_over = asyncio.Event()
        over.set_result((asyncio.get_running_loop(), is_over))
        async with make() as thing:
            entered.set_result(thing)
            await is_over.wait()

    def main() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = threading.Thread(target=main, name="background")
    thread.start()
    try:
        yield entered.result(START_LIMIT_S)
    finally:
        loop, is_over = over.result(START_LIMIT_S)
        if thread.is_alive():
            loop.call_soon_threadsafe(is_over.set)
        thread.join()


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Do something again and again, in a thread of its own."""
    over = threading.Event()

    def main() -> None:
        while not over.wait(PAUSE_S):
            act()

    thread = threading.Thread(target=main, name="meanwhile")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
