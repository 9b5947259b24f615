"""Errors of Spark in one line, without Java's stack trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from flyball.errors import PipelineError

_OURS = re.compile(r"PipelineError: (.+)")
_MOST_CHARACTERS = 300


@contextmanager
def one_line_errors(what: str) -> Iterator[None]:
    """Turn errors of Spark within the block into a PipelineError that says what could not be done."""
    try:
        yield
    except PySparkException as error:
        raise _translated(what, str(error)) from error
    except Py4JError as error:
        # Java has ended, or got a request while it ended.
        raise _translated(what, str(error) or "Spark has ended") from error


def _translated(what: str, said: str) -> PipelineError:
    ours = _OURS.search(said)
    if ours:
        # Our own error, raised in another process of Spark.
        return PipelineError(ours[1].strip())
    first = next((line.strip() for line in said.splitlines() if line.strip()), "no reason given")
    return PipelineError(f"{what} failed: {first[:_MOST_CHARACTERS]}. Give --log FILE to see all that Spark says.")
