"""How the commands of `flyball control` fail: one line and an exit code. Quick to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flyball.cli.session import INTERRUPTED, WRONG_USE, fail
from flyball.errors import FlyballError

_EXTRA_PACKAGES = {"aio_pika", "aiormq", "control", "matplotlib", "numpy", "pamqp", "scipy", "yarl"}


class WrongUse(FlyballError):
    """The flags do not fit together."""


class Interrupted(FlyballError):
    """Somebody pressed Ctrl-C; says what is left."""


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
    except OSError as error:
        # A full disk, or a folder that may not be read or written.
        fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_PACKAGES:
            raise
        fail("`flyball control` needs further packages: pip install 'flyball[control]'")
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
