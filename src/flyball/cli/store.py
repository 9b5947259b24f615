"""`flyball store`: run the PostgreSQL that the nodes of a domain on one machine share."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from flyball.cli.output import shown
from flyball.cli.session import fail
from flyball.errors import StoreError

DEFAULT_DATA = Path("./data")


def store(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="Folder of the database.")] = DEFAULT_DATA,
    connections: Annotated[
        int,
        typer.Option("--connections", min=5, max=10_000, help="Most connections to it; a node takes about five."),
    ] = 200,
) -> None:
    """Run the store of a domain until it is interrupted.

    It is for the nodes of this machine and this user. It prints the address that
    they take with --store. Ctrl-C ends it in good order; what was confirmed stays.

    Example: flyball store --data ./domain
    """
    try:
        uvloop.run(_serve(data, connections))
    except StoreError as error:
        fail(f"the store does not work: {error}. Check --data.")


async def _serve(data: Path, connections: int) -> None:
    # Here, not above: other commands do not need them.
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
            typer.echo("ready; Ctrl-C stops it")
            await stop.wait()
            typer.echo("stopping")
            await postgres.stop()
    finally:
        await postgres.stop()
