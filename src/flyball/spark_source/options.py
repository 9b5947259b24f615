"""What a user may say with `.option(...)`, checked before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.client.client import DEFAULT_ADDRESS
from flyball.errors import FlyballError

DEFAULT_MAX_ROWS = 1_000_000

PEEK, CONSUME = "peek", "consume"

_COMMON = ("address", "user", "password", "vhost", "httpUrl", "queue")
_READ = (*_COMMON, "queues", "mode", "partitions", "maxRowsPerBatch")
# What Spark passes on to every source.
_OF_SPARK = frozenset({"checkpointlocation"})


class InvalidOption(FlyballError):
    """An option, a column or a mode that the source does not have. Nothing was read or written."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which node, and as which user. What is None is said by the address, or is the default of the client."""

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
    """What to read, and in which parts."""

    access: Access
    queues: tuple[str, ...]
    mode: str
    # None: so many that each has enough to do.
    partitions: int | None
    max_rows_per_batch: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to publish."""

    access: Access
    # None: the column `queue` says it, row by row.
    queue: str | None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return what is to be read. Raises InvalidOption."""
    given = _given(options, _READ)
    mode = given.get("mode", PEEK)
    if mode not in (PEEK, CONSUME):
        raise InvalidOption(f"option 'mode' is {PEEK!r} or {CONSUME!r}, not {mode!r}")
    return ReadOptions(
        _access(given),
        _queues(given),
        mode,
        _number(given, "partitions") if "partitions" in given else None,
        _number(given, "maxRowsPerBatch") if "maxrowsperbatch" in given else DEFAULT_MAX_ROWS,
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return where to publish. Raises InvalidOption."""
    given = _given(options, _COMMON)
    return WriteOptions(_access(given), given.get("queue"))


def _given(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    unknown = given.keys() - {name.lower() for name in known} - _OF_SPARK
    if unknown:
        raise InvalidOption(f"there is no option {min(unknown)!r}; there are {', '.join(known)}")
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
        raise InvalidOption("say which queue to read: option 'queue', or 'queues' with several names and commas")
    if "queue" in given:
        return (given["queue"],)
    names = [name.strip() for name in given["queues"].split(",") if name.strip()]
    if not names:
        raise InvalidOption("option 'queues' names no queue")
    return tuple(dict.fromkeys(names))


def _number(given: Mapping[str, str], name: str) -> int:
    text = given[name.lower()]
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidOption(f"option {name!r} is a whole number above 0, not {text!r}")
    return int(text)
