"""The `flyball` command and its global options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flyball import __version__
from flyball.cli import clients, control, domain, lab, models, permissions, pipeline, policies, queues, users, vhosts
from flyball.cli.demo import demo
from flyball.cli.gateway import gateway
from flyball.cli.help import Commands
from flyball.cli.messages import get, put
from flyball.cli.serve import serve
from flyball.cli.status import status
from flyball.cli.store import store
from flyball.cli.top import top
from flyball.client.owner import FILE_VARIABLE

ABOUT = "A durable message broker with feedback control, for clients of AMQP 0-9-1."

app = typer.Typer(name="flyball", cls=Commands, help=ABOUT, no_args_is_help=True)
for command in (serve, demo, store, gateway, status, top, put, get):
    app.command()(command)
for commands in (queues, clients, users, vhosts, permissions, policies, domain, models, lab, pipeline, control):
    app.add_typer(commands.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flyball {__version__}")
        raise typer.Exit


@app.callback()
def flyball(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar=FILE_VARIABLE,
            metavar="FILE",
            help="File with the node's token; default: admin.token in FLYBALL_DATA or ./data.",
        ),
    ] = None,
) -> None:
    # The help text is ABOUT: Typer would use a docstring instead.
    if token_file is not None:
        # For every client that the command creates.
        os.environ[FILE_VARIABLE] = str(token_file)
