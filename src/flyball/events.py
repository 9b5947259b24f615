"""Events: what happens in one part of a program, for others to follow without being known to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """An attribute of what it happens to, which calls it; its listeners are called in the order of subscription."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def subscribe(self, listener: Callable[P, object]) -> None:
        self._listeners.append(listener)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*arguments, **options)
