"""`flyball client ...`: register, list and delete clients."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, AsJson, Url, run
from flyball.client.api import DEFAULT_URL, Api
from flyball.errors import ClientNotFound

app = typer.Typer(name="client", help="Register, list and delete clients.", no_args_is_help=True)


class Mode(enum.StrEnum):
    """Mode of a client, as on the command line."""

    FULL = "full"
    READ_ONLY = "read-only"

    @classmethod
    def of(cls, api_name: str) -> Mode:
        """Return the mode from the node's name of it."""
        return cls(api_name.replace(" ", "-"))

    @property
    def api_name(self) -> str:
        """The node's name of the mode."""
        return self.value.replace("-", " ")


def register_client(api: Api, name: str, mode: Mode, out: Output) -> int:
    client = api.put("flyball", "clients", name, document={"mode": mode.api_name}).document
    facts = {"id": client["id"], "name": name, "mode": mode}
    out.show(f"registered {shown(name)} with id {client['id']}", facts)
    return DONE


def known_clients(api: Api) -> list[dict[str, Any]]:
    clients: list[dict[str, Any]] = api.get("flyball", "clients")
    return clients


def client_id_of(api: Api, name_or_id: str) -> int:
    """Return the id of a client by name or number. Raises ClientNotFound."""
    for known in known_clients(api):
        if known["name"] == name_or_id:
            return int(known["id"])
    if name_or_id.isascii() and name_or_id.isdigit() and 0 < int(name_or_id) < 2**31:
        return int(name_or_id)
    raise ClientNotFound(name_or_id)


def list_clients(api: Api, out: Output) -> int:
    columns = ("id", "name", "mode")
    clients = [{**known, "mode": Mode.of(known["mode"])} for known in known_clients(api)]
    if out.is_json:
        for client in clients:
            out.json({column: client[column] for column in columns})
    elif clients:
        out.table(columns, [[client[column] for column in columns] for client in clients])
    return DONE


def delete_client(api: Api, name_or_id: str, out: Output) -> int:
    client_id = client_id_of(api, name_or_id)
    api.delete("flyball", "clients", str(client_id))
    out.show(f"deleted client {shown(name_or_id)}", {"id": client_id, "deleted": True})
    return DONE


@app.command()
def register(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new client.")],
    mode: Annotated[Mode, typer.Option("--mode", help="Operations that the client may use.")] = Mode.FULL,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Register a new client.

    Example: flyball client register alice --mode read-only
    """
    run(url, as_json, lambda api, out: register_client(api, name, mode, out))


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List all clients.

    Example: flyball client list
    """
    run(url, as_json, list_clients)


@app.command()
def delete(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Name or id of the client.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a client. Its messages stay.

    Example: flyball client delete alice
    """
    run(url, as_json, lambda api, out: delete_client(api, client, out))
