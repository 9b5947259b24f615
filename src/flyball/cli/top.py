"""`flyball top`: live view of a node on a terminal."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from flyball.cli.output import Output
from flyball.cli.session import INTERRUPTED, WRONG_USE, AsJson, Url, fail, pipe_closed
from flyball.cli.view.feed import FORBIDDEN, Feed, Seen
from flyball.cli.view.keyboard import keys_to
from flyball.cli.view.screen import screen
from flyball.client.api import DEFAULT_URL, place_at
from flyball.client.http import AWAY, Place, Refused, reason_of

FAILED_ADVICE = "Start a node with `flyball serve`, or set its address with --url."


class OutputClosed(Exception):
    """The output pipe was closed."""


def top(
    url: Url = DEFAULT_URL,
    once: Annotated[bool, typer.Option("--once", help="Print the current state once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a node: rates, latencies by phase, store, memory, alarms, queues and loops, once a second.

    Keys: q quits, s changes the sort order of queues, p pauses. With --json each sample is a line; with --once only
    one is printed.

    Example: flyball top --url http://guest:guest@127.0.0.1:15672
    """
    try:
        place = place_at(url)
    except ValueError as error:
        fail(f"--url: {error}", WRONG_USE)
    if not (once or as_json or sys.stdout.isatty()):
        fail("not a terminal: use --once, or --json for a line per second", WRONG_USE)
    try:
        with asyncio.Runner() as runner:
            if once:
                runner.run(_once(place, as_json))
            elif as_json:
                runner.run(_lines(place))
            else:
                runner.run(_Watching(place).run())
    except Refused as error:
        advice = "Use a user with the tag monitoring in --url." if error.status in FORBIDDEN else FAILED_ADVICE
        fail(f"{place.shown}: {error.reason}. {advice}")
    except OutputClosed:
        pipe_closed()
    except AWAY as error:
        fail(f"{place.shown}: {reason_of(error)}. {FAILED_ADVICE}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _once(place: Place, as_json: bool) -> None:
    seen = Seen(place.shown)
    await Feed(place, seen, lambda: None).look_once()
    if as_json:
        Output(sys.stdout.buffer, True).json(seen.document())
        return
    console = Console()
    console.print(screen(seen, console.width, console.height), height=console.height)


async def _lines(place: Place) -> None:
    """Print a line per sample, until the pipe is closed. While the node is unreachable there are none."""
    seen = Seen(place.shown)
    out = Output(sys.stdout.buffer, True)
    printed_at = 0.0

    def print_news() -> None:
        nonlocal printed_at
        if seen.problem is not None:
            typer.echo(f"flyball: {place.shown}: {seen.problem}; retrying", err=True)
        elif seen.last["at"] > printed_at:
            printed_at = seen.last["at"]
            try:
                out.json(seen.document())
            except BrokenPipeError as error:
                # As an OSError it would look as if the node were unreachable.
                raise OutputClosed from error

    await Feed(place, seen, print_news).run()


class _Watching:
    """The interactive screen."""

    def __init__(self, place: Place) -> None:
        self._seen = Seen(place.shown)
        self._feed = Feed(place, self._seen, self._draw)
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._is_paused = False
        self._task: asyncio.Task[None] | None = None
        self._refused: Refused | None = None

    async def run(self) -> None:
        """Show the node until q is pressed. Raises Refused if access is denied."""
        with self._live, keys_to(self._press):
            self._draw()
            async with asyncio.TaskGroup() as tasks:
                self._task = tasks.create_task(self._follow())
        if self._refused is not None:
            raise self._refused

    async def _follow(self) -> None:
        try:
            await self._feed.run()
        except Refused as error:
            self._refused = error

    def _press(self, key: str) -> None:
        match key.lower():
            case "q" if self._task is not None:
                self._task.cancel()
            case "s":
                self._feed.sort_by(self._seen.sort.next)
                self._draw(is_forced=True)
            case "p":
                self._is_paused = not self._is_paused
                self._draw(is_forced=True)

    def _draw(self, *, is_forced: bool = False) -> None:
        # Samples that arrive while paused are kept, and shown on resume.
        if self._is_paused and not is_forced:
            return
        size = self._console.size
        drawn = screen(self._seen, size.width, size.height, is_paused=self._is_paused)
        with suppress(BlockingIOError):
            self._live.update(drawn, refresh=True)
