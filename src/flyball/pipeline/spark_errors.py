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
_FULL = "No space left on device"
# A Py4J line without information, and lines that name a cause, the innermost last.
_CALLING = "An error occurred while calling"
_CAUSE = re.compile(r"(?:Caused by: )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error): (.+)")


@contextmanager
def one_line_errors(what: str) -> Iterator[None]:
    """Convert Spark errors within the block to a PipelineError that names the failed operation."""
    try:
        yield
    except PySparkException as error:
        raise _translated(what, str(error)) from error
    except Py4JError as error:
        # Java has exited, or received a request while exiting.
        raise _translated(what, str(error) or "Spark has ended") from error


def _translated(what: str, said: str) -> PipelineError:
    ours = _OURS.search(said)
    if ours:
        # Our own error, raised in another process of Spark.
        return PipelineError(ours[1].strip())
    if _FULL in said:
        return PipelineError(f"{what} failed: no space left on a disk. Free some and repeat the command")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [found[1] for line in lines if (found := _CAUSE.search(line))]
    first = next(iter(lines), "no reason given")
    if first.startswith(_CALLING) and causes:
        first = causes[-1]
    return PipelineError(f"{what} failed: {first[:_MOST_CHARACTERS]}. Give --log FILE to see all that Spark says.")
