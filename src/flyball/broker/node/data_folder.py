"""The check that a data folder is a node's own: its mode is changed, and a database is created in it."""

from __future__ import annotations

from flyball.broker.node.name import NAME_FILE
from flyball.broker.settings import ServeSettings
from flyball.errors import SettingsError
from flyball.model import TOKEN_FILE

# What a node creates; one of them shows that the folder is a node's.
OWN = frozenset({NAME_FILE, TOKEN_FILE, "broker.lock", "nodes", "postgresql", "postgresql.log", "traces"})

# What may be in a folder that is otherwise empty: a mounted volume has it.
NEUTRAL = frozenset({"lost+found", "reports"})

# Names that an error quotes.
QUOTED = 3


def check_data_folder(settings: ServeSettings) -> None:
    """Raise SettingsError if the data folder has contents, and none of them is a node's.

    Hidden files and those that the settings name do not count.
    """
    try:
        names = {path.name for path in settings.data.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError("--data", f"cannot read {settings.data}: {error.strerror}") from error
    if names & OWN:
        return
    foreign = sorted(name for name in names - NEUTRAL - _named_in(settings) if not name.startswith("."))
    if foreign:
        listed = ", ".join(repr(name) for name in foreign[:QUOTED])
        more = f" and {len(foreign) - QUOTED} more" if len(foreign) > QUOTED else ""
        raise SettingsError(
            "--data",
            f"{settings.data} is not a data folder of Flyball: it contains {listed}{more}; use an empty folder",
        )


def _named_in(settings: ServeSettings) -> set[str]:
    """Return the names in the data folder of files that other settings name."""
    paths = (
        settings.config,
        settings.log_file,
        settings.provisioners,
        settings.reports,
        settings.tls_ca,
        settings.tls_cert,
        settings.tls_key,
        settings.link_tls_ca,
        settings.link_tls_cert,
        settings.link_tls_key,
        settings.token_file,
    )
    folder = settings.data.absolute()
    inside = [path.absolute() for path in paths if path is not None and folder in path.absolute().parents]
    found = {path.relative_to(folder).parts[0] for path in inside}
    # The previous log file, after a rotation.
    return found | {f"{name}.1" for name in found}
