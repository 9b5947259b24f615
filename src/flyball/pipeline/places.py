"""Places of files, as paths or URIs, and operations on the files of this machine.

A place is a string: a path, or a URI such as `s3a://bucket/traces`. Needs no Spark.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class Entry(NamedTuple):
    """A file that was found."""

    place: str
    size_bytes: int
    modified_ms: int


class Files(Protocol):
    """The file operations that the pipeline needs. Errors are OSErrors."""

    def exists(self, place: str) -> bool: ...

    def is_folder(self, place: str) -> bool: ...

    def find(self, folder: str, pattern: str, *, is_deep: bool = True) -> Iterator[Entry]:
        """Yield the files in `folder` whose name matches; none if it is missing.

        Names that start with a dot or `_`, also of folders, are ignored, as in Spark.
        """

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder; none if it is missing."""

    def read(self, place: str) -> bytes: ...

    def write(self, place: str, content: bytes) -> None:
        """Write a file atomically; create its folder if that is missing."""

    def create(self, place: str, content: bytes) -> None:
        """Write a new file. Raises FileExistsError if it exists: of several writers one succeeds."""

    def modified_s(self, place: str) -> float: ...

    def rename(self, place: str, target: str) -> None:
        """Move a file; a file at the new place is replaced."""

    def delete(self, place: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""


def is_uri(place: str | Path) -> bool:
    """Whether a place is a URI with a scheme, and not a path."""
    return bool(_SCHEME.match(str(place)))


def is_local(place: str | Path) -> bool:
    """Whether a place is on this machine: a path, or a URI of the scheme `file`."""
    return not is_uri(place) or str(place).startswith("file:")


def path_of(place: str | Path) -> Path:
    """Return the path of a place on this machine."""
    text = str(place)
    return Path(unquote(urlsplit(text).path)) if text.startswith("file:") else Path(text)


def uri_of(place: str | Path) -> str:
    """Return a place as a URI for Spark: for a path the absolute one, with `file:`."""
    return str(place).rstrip("/") if is_uri(place) else "file:" + str(path_of(place).resolve())


def join(place: str | Path, *names: str) -> str:
    """Return the place of something in a folder."""
    return "/".join((str(place).rstrip("/"), *names))


def name_of(place: str | Path) -> str:
    """Return the last part of a place."""
    return str(place).rstrip("/").rpartition("/")[2]


def as_pattern(place: str | Path) -> str:
    """Return the URI of a place with all pattern characters escaped for Spark."""
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", uri_of(place))


class LocalFiles:
    """Files of this machine."""

    def exists(self, place: str) -> bool:
        return path_of(place).exists()

    def is_folder(self, place: str) -> bool:
        return path_of(place).is_dir()

    def find(self, folder: str, pattern: str, *, is_deep: bool = True) -> Iterator[Entry]:
        # A day of a node has 17,280 files, which --follow lists every round: glob takes four times as long.
        yield from sorted(_entries(str(path_of(folder)), pattern, is_deep=is_deep))

    def folders(self, folder: str) -> list[str]:
        root = path_of(folder)
        return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []

    def read(self, place: str) -> bytes:
        return path_of(place).read_bytes()

    def write(self, place: str, content: bytes) -> None:
        target = path_of(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}")
        part.write_bytes(content)
        part.replace(target)

    def create(self, place: str, content: bytes) -> None:
        target = path_of(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(content)

    def modified_s(self, place: str) -> float:
        return path_of(place).stat().st_mtime

    def rename(self, place: str, target: str) -> None:
        path_of(place).replace(path_of(target))

    def delete(self, place: str) -> None:
        path = path_of(place)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _entries(folder: str, pattern: str, *, is_deep: bool) -> Iterator[Entry]:
    try:
        found = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        for entry in found:
            if is_hidden((entry.name,)):
                continue
            if entry.is_dir(follow_symlinks=False):
                if is_deep:
                    yield from _entries(entry.path, pattern, is_deep=True)
            elif fnmatchcase(entry.name, pattern) and entry.is_file():
                status = entry.stat()
                yield Entry(entry.path, status.st_size, status.st_mtime_ns // 1_000_000)


LOCAL: Files = LocalFiles()


def is_hidden(parts: Sequence[str]) -> bool:
    """Whether Spark ignores a file: its name or that of a folder starts with a dot or `_`."""
    return any(part.startswith((".", "_")) for part in parts)
