"""Files of the pipeline by their URIs: on this machine, or wherever Spark's Hadoop client reaches.

A place is a text: a path, or a URI such as `s3a://bucket/traces`. All files that are not tables of Spark go
through here: manifests, models, reports, the lock of a store. Paths and `file:` need no Spark; other schemes go to
Hadoop's FileSystem, in the Java of the session.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from flyball.errors import PipelineError

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
        """Yield the files in `folder` whose name fits; none if it is missing.

        Names that begin with a dot or `_` are passed over, also of folders, as Spark does.
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
    """Return a place as the URI that Spark is given: of a path the absolute one, with `file:`."""
    return str(place).rstrip("/") if is_uri(place) else "file:" + str(path_of(place).resolve())


def join(place: str | Path, *names: str) -> str:
    """Return the place of something in a folder."""
    return "/".join((str(place).rstrip("/"), *names))


def name_of(place: str | Path) -> str:
    """Return the last part of a place."""
    return str(place).rstrip("/").rpartition("/")[2]


def as_pattern(place: str | Path) -> str:
    """Return the URI of a place so that Spark takes no character in it for a pattern."""
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", uri_of(place))


def files_at(place: str | Path, spark: SparkSession | None = None) -> Files:
    """Return the file system of a place. Raises PipelineError if it takes a Java that is not in this process."""
    if is_local(place):
        return LOCAL
    if spark is None or is_remote():
        raise PipelineError(f"{place} cannot be reached with Spark Connect: give a path, or another --master")
    return HadoopFiles(spark, str(place))


class LocalFiles:
    """Files of this machine."""

    def exists(self, place: str) -> bool:
        return path_of(place).exists()

    def is_folder(self, place: str) -> bool:
        return path_of(place).is_dir()

    def find(self, folder: str, pattern: str, *, is_deep: bool = True) -> Iterator[Entry]:
        root = path_of(folder)
        for path in sorted(root.rglob(pattern) if is_deep else root.glob(pattern)):
            if not _is_hidden(path.relative_to(root).parts) and path.is_file():
                status = path.stat()
                yield Entry(str(path), status.st_size, status.st_mtime_ns // 1_000_000)

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


LOCAL: Files = LocalFiles()


class HadoopFiles:
    """Files behind Hadoop's FileSystem, each call a call to Java."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._java: Any = spark.sparkContext._jvm
        self._hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        with _os_errors(place):
            self._files = self._path(place).getFileSystem(self._hadoop)

    def exists(self, place: str) -> bool:
        with _os_errors(place):
            return bool(self._files.exists(self._path(place)))

    def is_folder(self, place: str) -> bool:
        with _os_errors(place):
            path = self._path(place)
            return bool(self._files.exists(path) and self._files.getFileStatus(path).isDirectory())

    def find(self, folder: str, pattern: str, *, is_deep: bool = True) -> Iterator[Entry]:
        if not self.is_folder(folder):
            return
        with _os_errors(folder):
            root = self._path(folder)
            start = len(self._files.makeQualified(root).toString().rstrip("/")) + 1
            found = self._files.listFiles(root, is_deep)
            entries = []
            while found.hasNext():
                status = found.next()
                place = status.getPath().toString()
                parts = place[start:].split("/")
                if fnmatch(parts[-1], pattern) and not _is_hidden(parts):
                    entries.append(Entry(place, status.getLen(), status.getModificationTime()))
        yield from sorted(entries)

    def folders(self, folder: str) -> list[str]:
        if not self.is_folder(folder):
            return []
        with _os_errors(folder):
            found = self._files.listStatus(self._path(folder))
            return sorted(status.getPath().getName() for status in found if status.isDirectory())

    def read(self, place: str) -> bytes:
        with _os_errors(place):
            stream = self._files.open(self._path(place))
            try:
                return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, place: str, content: bytes) -> None:
        folder, _, name = place.rpartition("/")
        part = f"{folder}/.{name}"
        with _os_errors(place):
            self._fill(self._files.create(self._path(part), True), content)
        self.rename(part, place)

    def create(self, place: str, content: bytes) -> None:
        with _os_errors(place):
            self._fill(self._files.create(self._path(place), False), content)

    def modified_s(self, place: str) -> float:
        with _os_errors(place):
            return float(self._files.getFileStatus(self._path(place)).getModificationTime()) / 1e3

    def rename(self, place: str, target: str) -> None:
        with _os_errors(place):
            # Hadoop's FileSystem does not replace; an object store copies, and then there is no moment without.
            if self._files.exists(self._path(target)):
                self._files.delete(self._path(target), False)
            if not self._files.rename(self._path(place), self._path(target)):
                raise OSError(errno.EIO, "cannot be renamed", place)

    def delete(self, place: str) -> None:
        with _os_errors(place):
            self._files.delete(self._path(place), True)

    def _path(self, place: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(place)

    @staticmethod
    def _fill(stream: Any, content: bytes) -> None:
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


@contextmanager
def _os_errors(place: str) -> Iterator[None]:
    """Turn Java's exceptions into OSErrors."""
    try:
        yield
    except Py4JJavaError as error:
        kind = error.java_exception.getClass().getSimpleName()
        said = str(error.java_exception.getMessage() or kind).splitlines()[0]
        if kind == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, "there is no such file", place) from error
        if kind == "FileAlreadyExistsException" or "already exists" in said:
            raise FileExistsError(errno.EEXIST, "it exists already", place) from error
        raise OSError(errno.EIO, said, place) from error
    except Py4JError as error:
        raise OSError(errno.EIO, "Spark has ended", place) from error


def _is_hidden(parts: Any) -> bool:
    return any(part.startswith((".", "_")) for part in parts)
