"""Events that one part of a program publishes and others subscribe to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Calls its listeners in the order of subscription when it is called."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def subscribe(self, listener: Callable[P, object]) -> None:
        self._listeners.append(listener)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*arguments, **options)
