"""What is done with each message: a function of the user's, or nothing for a while."""

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
    """Return the handler. One of both must be said: whoever handles messages with nothing throws them away."""
    if (name is None) == (pause_ms is None):
        raise WrongUse(
            "messages are handled, acknowledged and so gone: say how, with --handler MODULE:FUNCTION, or with"
            " --handler-ms 1 to do nothing with each for so long"
        )
    return _pausing((pause_ms or 0.0) / 1000) if name is None else _imported(name)


def _pausing(pause_s: float) -> Handler:
    async def pause(message: Any) -> None:
        await asyncio.sleep(pause_s)

    return pause


def _imported(name: str) -> Handler:
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise WrongUse(f"--handler {name}: give MODULE:FUNCTION, as in shop.orders:handle")
    # As `python -m` does: the user's modules lie here.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        # Whatever the module does while it is imported is not ours.
        raise ControlError(f"--handler {name}: {module_name} cannot be imported: {error!r}") from error
    for part in function_name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ControlError(f"--handler {name}: {module_name} has no {function_name}")
    if not (inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(found, "__call__", None))):  # noqa: B004
        raise ControlError(f"--handler {name}: it must be an `async def` that takes a message")
    handler: Handler = found
    return handler
