"""Errors of `flyball control`: one line and an exit code. Quick to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from flyball.cli.os_errors import explained
from flyball.cli.session import INTERRUPTED, WRONG_USE, fail, pipe_closed
from flyball.errors import FlyballError

_EXTRA_PACKAGES = {"aio_pika", "aiormq", "control", "matplotlib", "numpy", "pamqp", "scipy", "yarl"}


class WrongUse(FlyballError):
    """The options are invalid or do not fit together."""


class Interrupted(FlyballError):
    """Interrupted with Ctrl-C; the text says what was kept."""


def warn(text: str | None) -> None:
    """Print a warning, if there is one, on stderr: stdout may be parsed."""
    if text is not None:
        typer.echo(f"flyball: {text}", err=True)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn errors, including failed imports in the block, into one line and an exit code."""
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
        # A full disk, or a folder without permission.
        fail(explained(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_PACKAGES:
            raise
        fail("`flyball control` needs additional packages: pip install 'flyball[control]'")
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
