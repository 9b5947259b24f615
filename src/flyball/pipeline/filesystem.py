"""Files of the pipeline on this machine, or wherever Spark's Hadoop client has access.

All files except Spark's tables are accessed here: manifests, models, reports, the lock of a store. Paths and `file:`
need no Spark session; other schemes use Hadoop's FileSystem, in the Java process of the session.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from flyball.errors import PipelineError
from flyball.pipeline.places import LOCAL, Entry, Files, is_hidden, is_local


def files_at(place: str | Path, spark: SparkSession | None = None) -> Files:
    """Return the file system of a place. Raises PipelineError if it needs Java and this process has none."""
    if is_local(place):
        return LOCAL
    if spark is None or is_remote():
        raise PipelineError(f"{place} cannot be reached with Spark Connect: give a path, or another --master")
    return HadoopFiles(spark, str(place))


class HadoopFiles:
    """Files of Hadoop's FileSystem; each operation is a call to Java."""

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
                if fnmatch(parts[-1], pattern) and not is_hidden(parts):
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
            # Hadoop's rename does not replace an existing file.
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
