"""Display of the demo: for each part a sentence, a progress bar with live rates, and the results."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from flyball.cli.view.feed import Feed, Seen
from flyball.cli.view.sparklines import short, sparks
from flyball.client.http import Place, Refused
from flyball.lab.plan import PlannedRun
from flyball.lab.runner import Live

SPARK_WIDTH = 30
BAR_WIDTH = 24


class LiveRates(ProgressColumn):
    """The delivery rate of the node, as a sparkline."""

    max_refresh = 0.5

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def render(self, task: Task) -> Text:
        if not task.fields["is_live"]:
            return Text()
        values = [sample["rates"]["ack"] for sample in list(self._seen.samples)]
        line = sparks(values, SPARK_WIDTH)
        return Text.assemble((line, "cyan"), f" {short(values[-1] if values else None)} messages/s")


class Listening:
    """Follows the node's event stream in a thread of its own, so that live rates are available."""

    def __init__(self) -> None:
        self.seen = Seen("")
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, url: str) -> None:
        place = Place(url)
        self.seen.address = place.shown
        self._task = self._loop.create_task(Feed(place, self.seen, lambda: None).run())
        self._thread = threading.Thread(target=self._listen, args=(self._task,), name="listening")
        self._thread.start()

    def _listen(self, task: asyncio.Task[None]) -> None:
        with contextlib.suppress(asyncio.CancelledError, Refused):
            self._loop.run_until_complete(task)

    def stop(self) -> None:
        """Stop following. May be called twice, and before `start`."""
        if self._thread is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            self._thread = None
        self._loop.close()


class Display:
    """Shows the parts of the demo, one after the other."""

    def __init__(self, console: Console, part_count: int) -> None:
        self.console = console
        self._part_count = part_count
        self._number = 0
        self._began = time.monotonic()
        self.listening = Listening()

    @contextlib.contextmanager
    def part(self, title: str, why: str, *, is_live: bool = False) -> Iterator[Part]:
        """Show a part during the block; `is_live` also shows the node's rates."""
        self._number += 1
        passed_s = time.monotonic() - self._began
        number = f"{self._number}/{self._part_count} " if self._number <= self._part_count else ""
        self.console.print()
        self.console.print(Text.assemble((number, "bold cyan"), (title, "bold"), (f"  {passed_s:.0f} s", "dim")))
        self.console.print(Text(why, style="dim"))
        columns = (
            BarColumn(bar_width=BAR_WIDTH),
            TimeElapsedColumn(),
            LiveRates(self.listening.seen),
            TextColumn("{task.description}"),
        )
        progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        with progress:
            yield Part(progress, progress.add_task("", total=None, is_live=is_live), self.console)

    def table(self, table: Table) -> None:
        self.console.print()
        self.console.print(table)

    def say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


class Part:
    """A part in progress; it also watches the progress of the lab's runs."""

    def __init__(self, progress: Progress, task: TaskID, console: Console) -> None:
        self._progress = progress
        self._task = task
        self._console = console
        self._expected_s = 0.0
        self._made_s = 0.0
        self._run_s = 0.0
        self._began: float | None = None

    def say(self, *texts: str) -> None:
        """Print the result."""
        for text in texts:
            self._console.print(Text.assemble(("→ ", "green"), text), soft_wrap=True)

    def stage(self, name: str, done: int, of: int) -> None:
        """Show the stage that starts, and its number."""
        self._progress.update(self._task, description=name, completed=done, total=of)

    def expect(self, seconds: float) -> None:
        """Set the expected duration."""
        self._expected_s = seconds
        self._progress.update(self._task, total=seconds)

    # campaign.Watcher

    def begin(self, run: PlannedRun) -> None:
        self._began = time.monotonic()
        self._run_s = run.expected_s
        label = ", ".join(str(value) for value in run.factors.values())
        self._progress.update(self._task, description=label)

    def live(self, live: Live) -> None:
        if self._began is not None:
            run_s = min(time.monotonic() - self._began, self._run_s)
            self._progress.update(self._task, completed=self._made_s + run_s)

    def end(self, run: PlannedRun, manifest: Mapping[str, Any]) -> None:
        self._made_s += run.expected_s
        self._began = None
        self._progress.update(self._task, completed=self._made_s)

    def fail(self, run: PlannedRun, reason: str, folder: Path) -> None:
        self._began = None
