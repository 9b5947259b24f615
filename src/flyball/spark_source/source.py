"""The data source: format name, readers and writers."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from flyball.spark_source import rows
from flyball.spark_source.options import CONSUME, InvalidOption, WriteOptions, read_options, write_options
from flyball.spark_source.reader import BatchReader, StreamReader
from flyball.spark_source.writer import BatchWriter, StreamWriter


class FlyballSource(DataSource):
    """Queues of a Flyball node. All methods raise InvalidOption for invalid options."""

    @classmethod
    def name(cls) -> str:
        return "flyball"

    def schema(self) -> StructType:
        read_options(self.options)
        return rows.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        rows.check_read(schema)
        if options.mode == CONSUME:
            raise InvalidOption(
                "mode consume needs readStream, as batch reads are not committed: read in mode peek,"
                " then remove with Client.remove_messages"
            )
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = read_options(self.options)
        rows.check_read(schema)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._checked(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(self._checked(schema, overwrite))

    def _checked(self, schema: StructType, overwrite: bool) -> WriteOptions:
        options = write_options(self.options)
        rows.check_written(schema, options.queue is not None)
        if overwrite:
            raise InvalidOption("mode overwrite is not supported: use mode append")
        return options
