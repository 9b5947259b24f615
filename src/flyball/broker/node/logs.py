"""The format of log lines, as text or JSON, with time, level and origin, and their destination."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from flyball.files import make_private_file

# Size at which a log file is rotated; one previous file is kept.
MAX_FILE_BYTES = 10_000_000


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # json.dumps escapes all unsafe characters except DEL.
        return json.dumps(entry).replace("\x7f", "\\u007f")


class TextFormatter(logging.Formatter):
    """One line per message, even if it contains input of clients; the lines of an exception are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        # The text of an exception may contain lines that imitate log lines.
        return "\n".join("    " + escaped(line) for line in super().formatException(ei).split("\n"))


def escaped(text: str) -> str:
    """Escape characters that end a line, control a terminal or reorder text."""
    return text.translate(_ESCAPES)


# Control characters, DEL and C1, line and paragraph separators, bidirectional marks, and surrogates, which cannot be
# encoded.
_UNSAFE = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x61C,
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0xFEFF,
    *range(0xD800, 0xE000),
)
_ESCAPES = {code: ascii(chr(code))[1:-1] for code in _UNSAFE}


def _copy_and_empty(source: str, destination: str) -> None:
    """Copy and truncate a log: standard error may be open on the same file, for the output of a failing process."""
    make_private_file(Path(destination))
    shutil.copyfile(source, destination)
    os.truncate(source, 0)


def configure_logging(level: str, form: Literal["text", "json"], file: Path | None = None) -> None:
    """Log to stderr or to a file, at the level or above. Raises OSError if the file cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        make_private_file(file)
        previous = file.with_name(file.name + ".1")
        if previous.exists():
            make_private_file(previous)
        handler = RotatingFileHandler(file, maxBytes=MAX_FILE_BYTES, backupCount=1, encoding="utf-8")
        handler.rotator = _copy_and_empty
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
