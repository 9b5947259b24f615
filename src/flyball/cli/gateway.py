"""`flyball gateway`: a TCP proxy for AMQP clients that connects each one to its node."""

from __future__ import annotations

import enum
from typing import Annotated

import typer
import uvloop
from pydantic import TypeAdapter

from flyball.broker.node.logs import configure_logging
from flyball.broker.settings import Address, Names
from flyball.cli.os_errors import explained
from flyball.cli.session import WRONG_USE, fail


class GatewayRole(enum.StrEnum):
    """Default role of clients."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    AUTO = "auto"


def gateway(
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Default queue, for clients that name none.")],
    node: Annotated[
        list[str],
        typer.Option("--node", metavar="HOST:PORT", help="HTTP address of a node of the domain; may be repeated."),
    ],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where AMQP clients connect.")
    ] = "127.0.0.1:5670",
    role: Annotated[
        GatewayRole, typer.Option("--role", help="Default role; `auto` picks the role in shorter supply.")
    ] = GatewayRole.AUTO,
    vhost: Annotated[str, typer.Option("--vhost", metavar="NAME", help="Virtual host of the queue.")] = "/",
    max_connections: Annotated[
        int, typer.Option("--max-connections", metavar="COUNT", min=1, help="Maximum number of client connections.")
    ] = 10_000,
    loopback_users: Annotated[
        str,
        typer.Option(
            "--loopback-users",
            metavar="NAME,...|none",
            envvar="FLYBALL_LOOPBACK_USERS",
            help="Users who may connect only from the gateway's own machine; use the same value as on the nodes.",
        ),
    ] = "guest",
) -> None:
    """Run a gateway that connects AMQP clients to the best node of a clustered queue, until it is interrupted.

    A client may override the defaults with its client properties flyball-queue, flyball-role and flyball-vhost. TLS
    is not supported: put a proxy that terminates it in front.

    Example: flyball gateway --listen 0.0.0.0:5670 --node 127.0.0.1:15672 --queue orders --role auto
    """
    try:
        listening, nodes = Address.parse(listen), [Address.parse(text) for text in node]
    except ValueError as error:
        fail(str(error), WRONG_USE)
    # Imported here: other commands do not need it.
    from flyball.broker.cluster import gateway as front
    from flyball.broker.cluster.placer import HttpPlacer

    configure_logging("warning", "text")
    local_only: tuple[str, ...] = TypeAdapter(Names).validate_python(loopback_users)
    settings = front.GatewaySettings(queue, role.value, vhost, max_connections, local_only)
    try:
        uvloop.run(front.serve(HttpPlacer(nodes), settings, listening, typer.echo))
    except OSError as error:
        fail(f"--listen {listen}: {explained(error)}")
