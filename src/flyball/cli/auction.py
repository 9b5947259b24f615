"""What `flyball lab auction` does: serve the auction site for people to look at, until Ctrl-C.

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
from flyball.lab.auction.serve import Tell, serve
from flyball.lab.auction.settings import CONTROLLED, SiteSettings

NAME = "auction"


def serve_auction(host: str, port: int, options: Mapping[str, Any]) -> None:
    """Serve the site until Ctrl-C. Raises LabError if an option is wrong or the address is taken."""
    settings = settings_of(options)

    def say_ready(host: str, port: int) -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        typer.echo(f"auction site: {address}/  (policy {settings.policy}; Ctrl-C ends it)")
        if settings.policy in CONTROLLED:
            typer.echo(f"admission:    {address}{STATE_PATH}")

    with tempfile.TemporaryDirectory(prefix="flyball-auction-") as folder, _progress() as tell:
        uvloop.run(serve(Path(folder), NAME, settings, host, port, say_ready, tell))
    typer.echo("ended")


def settings_of(options: Mapping[str, Any]) -> SiteSettings:
    """Return the settings that options mean; those that are None were not given. Raises LabError."""
    try:
        return SiteSettings.model_validate({name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0] if first["loc"] else "users").replace("_", "-")
        raise LabError(f"{flag}: {first['msg'].removeprefix('Value error, ')}") from None


@contextmanager
def _progress() -> Iterator[Tell]:
    """Show how far the data are, on a terminal."""
    console = Console(stderr=True)
    columns = BarColumn(bar_width=24), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=1.0)

        def tell(what: str, ratio: float) -> None:
            progress.update(task, description=what, completed=ratio)
            if ratio >= 1:
                progress.stop()

        yield tell
