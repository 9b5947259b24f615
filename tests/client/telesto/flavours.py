"""The synchronous client behind the asynchronous one's face, so that one test tests both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from tests import telesto_client as asynchronous
from tests.telesto_client import sync

Connect = Callable[..., Any]


class Threaded:
    """Turns an object of the synchronous client into one whose methods are awaited: they run in a thread."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        if name in ("consume", "subscribe", "topic"):
            return lambda *args, **kwargs: Threaded(value(*args, **kwargs))

        async def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple([_unwrapped(arg) for arg in args])
            return _wrapped(await asyncio.to_thread(value, *args, **kwargs))

        return call

    async def __aenter__(self) -> Threaded:
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._inner.__exit__, kind, error, traceback)

    def __aiter__(self) -> Threaded:
        return self

    async def __anext__(self) -> Any:
        # StopIteration cannot leave a coroutine.
        delivery = await asyncio.to_thread(next, self._inner, None)
        if delivery is None:
            raise StopAsyncIteration
        return Threaded(delivery)


def _wrapped(value: Any) -> Any:
    return Threaded(value) if isinstance(value, sync.Delivery) else value


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_unwrapped(element) for element in value]
    return value._inner if isinstance(value, Threaded) else value


def connect_threaded(*args: Any, **kwargs: Any) -> Threaded:
    return Threaded(sync.Client.connect(*args, **kwargs))


def connect_on_uvloop(*args: Any, **kwargs: Any) -> asynchronous.Client:
    """Connect the asynchronous client; tests with this one run on uvloop."""
    return asynchronous.Client.connect(*args, **kwargs)


FLAVOURS = [
    pytest.param(asynchronous.Client.connect, id="async"),
    pytest.param(connect_on_uvloop, id="uvloop"),
    pytest.param(connect_threaded, id="sync"),
]
