"""Options of the data source, checked before reading or writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.client.client import DEFAULT_ADDRESS
from flyball.errors import FlyballError

DEFAULT_MAX_ROWS = 1_000_000

PEEK, CONSUME = "peek", "consume"

_COMMON = ("address", "user", "password", "vhost", "httpUrl", "queue")
_READ = (*_COMMON, "queues", "mode", "partitions", "maxRowsPerBatch")
# Options that Spark passes to every source.
_OF_SPARK = frozenset({"checkpointlocation"})


class InvalidOption(FlyballError):
    """An invalid option, column or mode. Nothing was read or written."""


@dataclass(frozen=True, slots=True)
class Access:
    """A node with credentials. None means the address's value, or the client's default."""

    address: str = field(default=DEFAULT_ADDRESS, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    vhost: str | None = None
    http_url: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address without a password."""
        return self.address.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read."""

    access: Access
    queues: tuple[str, ...]
    mode: str
    # None: chosen by the number of messages.
    partitions: int | None
    max_rows_per_batch: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to publish."""

    access: Access
    # None: the column `queue` of each row.
    queue: str | None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises InvalidOption."""
    given = _given(options, _READ)
    mode = given.get("mode", PEEK)
    if mode not in (PEEK, CONSUME):
        raise InvalidOption(f"invalid option 'mode' {mode!r}: use {PEEK!r} or {CONSUME!r}")
    return ReadOptions(
        _access(given),
        _queues(given),
        mode,
        _number(given, "partitions") if "partitions" in given else None,
        _number(given, "maxRowsPerBatch") if "maxrowsperbatch" in given else DEFAULT_MAX_ROWS,
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises InvalidOption."""
    given = _given(options, _COMMON)
    return WriteOptions(_access(given), given.get("queue"))


def _given(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    unknown = given.keys() - {name.lower() for name in known} - _OF_SPARK
    if unknown:
        raise InvalidOption(f"unknown option {min(unknown)!r}; available: {', '.join(known)}")
    return given


def _access(given: Mapping[str, str]) -> Access:
    return Access(
        given.get("address", DEFAULT_ADDRESS),
        given.get("user"),
        given.get("password"),
        given.get("vhost"),
        given.get("httpurl"),
    )


def _queues(given: Mapping[str, str]) -> tuple[str, ...]:
    if ("queue" in given) == ("queues" in given):
        raise InvalidOption("no queue given: use option 'queue', or 'queues' with comma-separated names")
    if "queue" in given:
        return (given["queue"],)
    names = [name.strip() for name in given["queues"].split(",") if name.strip()]
    if not names:
        raise InvalidOption("option 'queues' is empty")
    return tuple(dict.fromkeys(names))


def _number(given: Mapping[str, str], name: str) -> int:
    text = given[name.lower()]
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidOption(f"invalid option {name!r} {text!r}: use an integer above 0")
    return int(text)
