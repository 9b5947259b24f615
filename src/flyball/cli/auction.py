"""`flyball lab auction`: serve the auction site until Ctrl-C.

Needs the packages of flyball[auction].
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
import uvloop
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flyball.errors import LabError
from flyball.lab.auction.policies import STATE_PATH
from flyball.lab.auction.serve import OnProgress, serve
from flyball.lab.auction.settings import CONTROLLED, SiteSettings

NAME = "auction"


def serve_auction(host: str, port: int, options: Mapping[str, Any]) -> None:
    """Serve the site until Ctrl-C. Raises LabError for an invalid option or an address in use."""
    settings = settings_of(options)

    def say_ready(host: str, port: int) -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        typer.echo(f"auction site: {address}/  (policy {settings.policy}; press Ctrl-C to stop)")
        if settings.policy in CONTROLLED:
            typer.echo(f"admission:    {address}{STATE_PATH}")

    with tempfile.TemporaryDirectory(prefix="flyball-auction-") as folder, _progress() as report:
        uvloop.run(serve(Path(folder), NAME, settings, host, port, say_ready, report))
    typer.echo("ended")


def settings_of(options: Mapping[str, Any]) -> SiteSettings:
    """Return the settings from the options; None stands for the default. Raises LabError."""
    try:
        return SiteSettings.model_validate({name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0] if first["loc"] else "users").replace("_", "-")
        if first["type"] == "literal_error":
            raise LabError(
                f"invalid {flag} {first['input']!r}: use {first['ctx']['expected'].replace(chr(39), '')}"
            ) from None
        raise LabError(f"{flag}: {first['msg'].removeprefix('Value error, ')}") from None


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Show the progress of filling the database, on a terminal."""
    console = Console(stderr=True)
    columns = BarColumn(bar_width=24), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=1.0)

        def report(what: str, ratio: float) -> None:
            progress.update(task, description=what, completed=ratio)
            if ratio >= 1:
                progress.stop()

        yield report
