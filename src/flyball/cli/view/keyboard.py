"""Single key presses, without Enter. Restores the terminal in any case."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def keys_to(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with each key on the running event loop, during the block; never if stdin is not a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    number = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(number, 64)
        if not pressed:
            loop.remove_reader(number)
        for key in pressed.decode("utf-8", "ignore"):
            press(key)

    before = termios.tcgetattr(number)
    # Not raw mode: Ctrl-C and Ctrl-Z keep their effect.
    tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
