"""How the commands of `flyball control` fail: one line and an exit code. Quick to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from flyball.cli.os_errors import explained
from flyball.cli.session import INTERRUPTED, WRONG_USE, fail, pipe_closed
from flyball.errors import FlyballError

_EXTRA_PACKAGES = {"aio_pika", "aiormq", "control", "matplotlib", "numpy", "pamqp", "scipy", "yarl"}


class WrongUse(FlyballError):
    """The flags do not fit together."""


class Interrupted(FlyballError):
    """Somebody pressed Ctrl-C; says what is left."""


def warn(text: str | None) -> None:
    """Say what may be wrong, if there is something, on stderr: stdout may be for machines."""
    if text is not None:
        typer.echo(f"flyball: {text}", err=True)


@contextmanager
def errors_told() -> Iterator[None]:
    """Turn errors, also of imports in the block, into one line and an exit code."""
    try:
        yield
    except WrongUse as error:
        fail(str(error), WRONG_USE)
    except Interrupted as error:
        fail(str(error), INTERRUPTED)
    except FlyballError as error:
        fail(str(error))
    except BrokenPipeError:
        pipe_closed()
    except OSError as error:
        # A full disk, or a folder that may not be read or written.
        fail(explained(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_PACKAGES:
            raise
        fail("`flyball control` needs further packages: pip install 'flyball[control]'")
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
