"""Message handlers of a loop: a user's function, or a simulated delay."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from flyball.cli.control_commands.failures import WrongUse
from flyball.errors import ControlError

Handler = Callable[[Any], Awaitable[Any]]


def handler_of(name: str | None, pause_ms: float | None) -> Handler:
    """Return the handler. One must be given: without one, messages would be discarded by accident."""
    if (name is None) == (pause_ms is None):
        raise WrongUse(
            "no handler given: use --handler MODULE:FUNCTION, or --handler-ms 1 to simulate one"
            " (messages are acked, so they are removed from the queue)"
        )
    return _pausing((pause_ms or 0.0) / 1000) if name is None else _imported(name)


def _pausing(pause_s: float) -> Handler:
    async def pause(message: Any) -> None:
        await asyncio.sleep(pause_s)

    return pause


def _imported(name: str) -> Handler:
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise WrongUse(f"invalid --handler {name}: use MODULE:FUNCTION, as in shop.orders:handle")
    # Like `python -m`: the user's modules are in the current folder.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        # Importing runs the user's code, which may raise anything.
        raise ControlError(f"--handler {name}: cannot import {module_name!r} ({error}): check PYTHONPATH") from error
    for part in function_name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ControlError(f"--handler {name}: {module_name} has no function {function_name}")
    if not (inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(found, "__call__", None))):  # noqa: B004
        raise ControlError(f"--handler {name}: must be an `async def` that takes a message")
    handler: Handler = found
    return handler
