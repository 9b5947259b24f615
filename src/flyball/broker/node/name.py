"""The name of a node, in its traces and in its domain."""

from __future__ import annotations

import socket

from flyball.broker.settings import ServeSettings

# The file in the data folder with the name of a node whose settings have none.
NAME_FILE = "node.name"


def node_name(settings: ServeSettings) -> str:
    """Return the name of the node, in its traces and in its domain.

    With another name it would be another node, and wait until this one is declared dead. Therefore the first host
    name is stored in the data folder, and used even if the host name changes, as with containers.
    """
    if settings.name or settings.store.kind != "embedded":
        return settings.name or socket.gethostname()
    kept = settings.data / NAME_FILE
    if not kept.exists():
        kept.write_text(socket.gethostname())
    return kept.read_text().strip() or socket.gethostname()
