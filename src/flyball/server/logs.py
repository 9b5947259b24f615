"""How log lines look, for people or for machines: one line each, with time, level and origin; and where they go."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

MAX_FILE_BYTES = 10_000_000
"""Of a log file that would be longer a copy is kept, and it begins anew."""


class JsonFormatter(logging.Formatter):
    """One JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _copy_and_empty(source: str, destination: str) -> None:
    """Begin a log anew in the same file, as standard error may lead there too: a failing process writes to that."""
    shutil.copyfile(source, destination)
    os.truncate(source, 0)


def configure_logging(level: str, form: Literal["text", "json"], file: Path | None = None) -> None:
    """Send log lines to stderr or to a file, from that level on. Raises OSError if the file cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = RotatingFileHandler(file, maxBytes=MAX_FILE_BYTES, backupCount=1, encoding="utf-8")
        handler.rotator = _copy_and_empty
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
