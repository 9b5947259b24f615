"""`flyball client ...`: register, list and delete clients."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DEFAULT_SERVER, DONE, AsJson, Server, client_id_of, run
from flyball.client import ClientMode
from flyball.client.sync import Client

app = typer.Typer(name="client", help="Register, list and delete clients.", no_args_is_help=True)


class Mode(enum.StrEnum):
    """What a client may do, as one writes it on the command line."""

    FULL = "full"
    READ_ONLY = "read-only"

    @classmethod
    def of(cls, mode: ClientMode | None) -> Mode:
        return cls.FULL if mode == ClientMode.FULL else cls.READ_ONLY


def tell_registered(client: Client, out: Output) -> int:
    facts = {"id": client.id, "name": client.name, "mode": Mode.of(client.mode)}
    out.tell(f"registered {shown(str(client.name))} with id {client.id}", facts)
    return DONE


def list_clients(client: Client, out: Output) -> int:
    clients = client.get_clients()
    if out.is_json:
        for known in clients:
            out.json({"id": known.id, "name": known.name, "mode": Mode.of(known.mode)})
    elif clients:
        out.table(("id", "name", "mode"), [(known.id, known.name, Mode.of(known.mode)) for known in clients])
    return DONE


def delete_client(client: Client, who: str, out: Output) -> int:
    client_id = client_id_of(client, who)
    client.remove_client(client_id)
    out.tell(f"deleted client {shown(who)}", {"id": client_id, "deleted": True})
    return DONE


@app.command()
def register(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new client.")],
    mode: Annotated[Mode, typer.Option("--mode", help="Whether it may put messages.")] = Mode.FULL,
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Register a new client.

    Example: flyball client register alice --mode read-only
    """
    run(server, name, as_json, tell_registered, mode=ClientMode[mode.name], existing_ok=False)


@app.command("list")
def list_(server: Server = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    """List all clients.

    Example: flyball client list
    """
    run(server, None, as_json, list_clients)


@app.command()
def delete(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Name or id of the client.")],
    server: Server = DEFAULT_SERVER,
    as_json: AsJson = False,
) -> None:
    """Delete a client. Messages from and for it stay.

    Example: flyball client delete alice
    """
    run(server, None, as_json, lambda connected, out: delete_client(connected, client, out))
