"""The check that a data folder belongs to a node, whose start changes its mode and creates a database in it."""

from __future__ import annotations

from flyball.broker.node.name import NAME_FILE
from flyball.broker.settings import ServeSettings
from flyball.errors import SettingsError
from flyball.model import TOKEN_FILE

# Files and folders that a node creates; any of them identifies the folder as a node's.
OWN = frozenset({NAME_FILE, TOKEN_FILE, "broker.lock", "nodes", "postgresql", "postgresql.log", "traces"})

# Contents allowed in an empty folder, such as those of a mounted volume.
NEUTRAL = frozenset({"lost+found", "reports"})

# Maximum number of names quoted in an error.
QUOTED = 3


def check_data_folder(settings: ServeSettings) -> None:
    """Raise SettingsError if the data folder is not empty and does not belong to a node.

    Hidden files and files of other settings do not count.
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
    """Return the names in the data folder that other settings refer to."""
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
