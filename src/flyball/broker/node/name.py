"""The name of a node, in its traces and in its domain."""

from __future__ import annotations

import socket

from flyball.broker.settings import ServeSettings

# Keeps the name of a node that was not given one, in its data folder.
NAME_FILE = "node.name"


def node_name(settings: ServeSettings) -> str:
    """Return the name of the node, in its traces and in its domain.

    Under another name it would be another node, and wait until this one is declared dead. So what a data folder of
    its own was first used with is kept there, though the machine be called otherwise later, as containers are.
    """
    if settings.name or settings.store.kind != "embedded":
        return settings.name or socket.gethostname()
    kept = settings.data / NAME_FILE
    if not kept.exists():
        kept.write_text(socket.gethostname())
    return kept.read_text().strip() or socket.gethostname()
