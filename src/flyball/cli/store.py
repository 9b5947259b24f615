"""`flyball store`: run the PostgreSQL that the nodes of a domain on one machine share."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from flyball.cli.os_errors import explained
from flyball.cli.output import shown
from flyball.cli.session import fail
from flyball.errors import StoreError

DEFAULT_DATA = Path("./data")


def store(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="Folder of the database.")] = DEFAULT_DATA,
    connections: Annotated[
        int,
        typer.Option(
            "--connections", min=5, max=10_000, help="Maximum number of connections; a node uses about five."
        ),
    ] = 200,
) -> None:
    """Run a PostgreSQL for the nodes of a domain on this machine, until it is interrupted.

    It prints the URL for their --store. Only the user that started it can connect. Ctrl-C stops it gracefully;
    confirmed messages are kept.

    Example: flyball store --data ./domain
    """
    try:
        uvloop.run(_serve(data, connections))
    except StoreError as error:
        fail(f"the store failed: {error}. Check --data.")
    except OSError as error:
        fail(explained(error))


async def _serve(data: Path, connections: int) -> None:
    # Imported here: other commands do not need them.
    from flyball.broker.node.disk import DiskReserve
    from flyball.broker.node.logs import configure_logging
    from flyball.broker.store.postgres.embedded import EmbeddedPostgres

    configure_logging("warning", "text")
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    disk = DiskReserve(data)
    postgres = EmbeddedPostgres(data, connections=connections, max_wal_bytes=disk.wal_bytes, make_room=disk.make_room)
    await postgres.start()
    disk.check()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(postgres.supervise())
            typer.echo(f"store in {shown(str(data))}, for up to {connections} connections")
            typer.echo(f"start nodes with: flyball serve --name NAME --store '{postgres.dsn}'")
            typer.echo("ready; press Ctrl-C to stop")
            await stop.wait()
            typer.echo("stopping")
            await postgres.stop()
    finally:
        await postgres.stop()
