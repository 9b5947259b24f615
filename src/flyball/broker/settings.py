"""The settings of a node: each declared once, with its default, unit, meaning and names.

The setting `telesto_time_order` is the flag `--telesto-time-order`, the environment variable
`FLYBALL_TELESTO_TIME_ORDER` and, in the TOML file, the key that it declares. Flags win over the environment,
the environment over the file, the file over the default. Nothing below this module reads any of them.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError

from flyball.errors import SettingsError

HIDDEN = "***"

# Where `--thorbang on` listens: the port of the original.
TELESTO_PORT = 9001
THORBANG_PORT = 8123


class Address(NamedTuple):
    """Where a listener waits for clients. Port 0 lets the system choose one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host:port` or `[ipv6]:port`. Raises ValueError for anything else."""
        found = re.fullmatch(r"(?:\[([^\[\]\s]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", text)
        if found is None or int(found[3]) > 65535:
            raise ValueError(f"{text!r} is not an address: give host:port, [ipv6]:port or off")
        return cls(found[1] or found[2], int(found[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Which store keeps the messages. As a text it never shows a password; only `url` does."""

    kind: Literal["embedded", "postgresql", "memory", "null"]
    url: str = field(default="", repr=False)
    """Where an external PostgreSQL is; empty for the other kinds."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a word or a URL. Raises ValueError, which leaves the text out: it may hold a password."""
        for kind in ("embedded", "memory", "null"):
            if text == kind:
                return cls(kind)
        try:
            is_postgresql = urlsplit(text).scheme in ("postgresql", "postgres") and "://" in text
        except ValueError:
            is_postgresql = False
        if not is_postgresql:
            raise ValueError("give embedded, memory, null or postgresql://user:password@host:port/database")
        return cls("postgresql", text)

    @property
    def redacted(self) -> str:
        """The choice as logs and reports may show it."""
        if not self.url:
            return self.kind
        scheme, _, rest = self.url.partition("://")
        # Parameters first and the last @ next: a password may hold an @ that nobody has escaped.
        rest = re.sub(r"(password=)[^&]*", rf"\g<1>{HIDDEN}", rest, flags=re.IGNORECASE)
        user, at, place = rest.rpartition("@")
        name, colon, _ = user.partition(":")
        return f"{scheme}://{name}{colon}{HIDDEN if colon else ''}{at}{place}"

    def __str__(self) -> str:
        return self.redacted


class Form(NamedTuple):
    """What a value looks like, with its unit, for the help."""

    text: str


def _read_listener(value: object) -> object:
    if isinstance(value, str):
        return None if value == "off" else Address.parse(value)
    if value is None or isinstance(value, Address):
        return value
    raise ValueError("give host:port, [ipv6]:port or off")


def _read_research(port: int, value: object) -> object:
    return Address("127.0.0.1", port) if value == "on" else _read_listener(value)


def _read_store(value: object) -> object:
    return value if isinstance(value, StoreChoice) else StoreChoice.parse(str(value))


def _read_names(value: object) -> object:
    if isinstance(value, str):
        return () if value == "none" else tuple(name.strip() for name in value.split(","))
    return tuple(value) if isinstance(value, list) else value


def _read_proxies(value: object) -> object:
    found = _read_names(value)
    if not isinstance(found, tuple):
        return found
    return tuple(_network(str(each)) for each in found)


def _network(text: str) -> str:
    try:
        # As it is written without a mask: an address, and not the network of it alone.
        return str(ipaddress.ip_network(text, strict=False) if "/" in text else ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is no address: give those of proxies, as 10.0.0.1 or 10.0.0.0/24, or none"
        ) from None


Listener = Annotated[Address | None, BeforeValidator(_read_listener), Form("ADDRESS|off")]
Telesto = Annotated[Address | None, BeforeValidator(partial(_read_research, TELESTO_PORT)), Form("on|ADDRESS|off")]
ThorBang = Annotated[Address | None, BeforeValidator(partial(_read_research, THORBANG_PORT)), Form("on|ADDRESS|off")]
Store = Annotated[StoreChoice, BeforeValidator(_read_store), Form("embedded|memory|null|URL")]
Names = Annotated[tuple[str, ...], BeforeValidator(_read_names), Form("NAME,...|none")]
Proxies = Annotated[tuple[str, ...], BeforeValidator(_read_proxies), Form("ADDRESS,...|none")]
OptionalFile = Annotated[Path | None, Form("FILE")]
NodeName = Annotated[str | None, Field(pattern=r"^[\w.-]+$"), Form("NAME")]
Switch = Annotated[bool, Form("on|off")]
Size = Annotated[ByteSize, Field(gt=0), Form("BYTES")]
FrameSize = Annotated[ByteSize, Field(ge=4096, lt=2**31), Form("BYTES")]
Count = Annotated[int, Field(gt=0), Form("COUNT")]
Ratio = Annotated[float, Field(ge=0, le=1), Form("RATIO")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Form("SECONDS")]


def option(default: object, meaning: str, key: str | None) -> Any:
    """Declare a setting.

    The default is what a user would write, and is checked like anything a user writes. `key` is the place in
    the TOML file, None for what cannot be set there.
    """
    return Field(default, validate_default=True, description=meaning, json_schema_extra={"key": key})


class ServeSettings(BaseModel):
    """What `flyball serve` can be told. A new setting is a new line here and nothing elsewhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Annotated[Path | None, Form("FILE")] = option(None, "TOML file with settings.", key=None)
    data: Annotated[Path, Form("FOLDER")] = option(
        "./data", "Folder of the embedded store and the traces.", key="data"
    )
    name: NodeName = option(
        None, "Name of the node in its domain and its traces; the machine's if none is given.", key="name"
    )
    store: Store = option(
        "embedded",
        "What keeps the messages: a PostgreSQL of its own in the data folder, the memory, nothing at all,"
        " or the PostgreSQL at a postgresql:// URL.",
        key="store.location",
    )
    store_time_limit_s: Seconds = option(
        10, "How long a request waits for the store before it fails.", key="store.time_limit_s"
    )
    lease_s: Annotated[float, Field(ge=1, le=600), Form("SECONDS")] = option(
        4, "How long other nodes of the domain wait for this one before they take its place.", key="domain.lease_s"
    )
    capacity: Annotated[float, Field(gt=0, le=1000), Form("NUMBER")] = option(
        1, "How much the node can bear, compared with the others of its domain.", key="domain.capacity"
    )
    link: Listener = option(
        "127.0.0.1:0",
        "Where other nodes of the domain connect; port 0 is any that is free.",
        key="domain.link_address",
    )
    link_tls_cert: OptionalFile = option(
        None,
        "Certificate of the node for links to others over TLS, which all nodes of the domain use or none.",
        key="domain.link_tls_cert",
    )
    link_tls_key: OptionalFile = option(None, "Private key of that certificate.", key="domain.link_tls_key")
    link_tls_ca: OptionalFile = option(
        None,
        "Certificates of the authority that has signed those of the nodes, and nothing else.",
        key="domain.link_tls_ca",
    )
    advertise: Annotated[str | None, Field(pattern=r"^[\w.:-]+$"), Form("HOST")] = option(
        None,
        "Where others reach a node that listens on all addresses: a name or an address; the machine's name if none.",
        key="domain.advertise",
    )
    provisioners: OptionalFile = option(
        None, "TOML file with the ways in which this node may start others, beside local.", key="domain.provisioners"
    )
    amqp: Listener = option("127.0.0.1:5672", "Where clients of AMQP 0-9-1 connect.", key="amqp.address")
    amqps: Listener = option("off", "Where clients of AMQP 0-9-1 over TLS connect.", key="amqp.tls_address")
    amqp_heartbeat_s: Annotated[int, Field(ge=0, le=65535), Form("SECONDS")] = option(
        60, "How often AMQP clients are asked to show that they are alive; 0 is never.", key="amqp.heartbeat_s"
    )
    amqp_channel_max: Annotated[int, Field(gt=0, le=65535), Form("COUNT")] = option(
        2047, "Most channels of an AMQP connection.", key="amqp.channel_max"
    )
    amqp_frame_max_bytes: FrameSize = option("128KiB", "Longest frame of AMQP.", key="amqp.frame_max_bytes")
    amqp_consumer_timeout_s: Seconds = option(
        1800,
        "How long an AMQP consumer may keep a message without acknowledging it.",
        key="amqp.consumer_timeout_s",
    )
    tls_cert: OptionalFile = option(None, "Certificate of the node, with its chain, for TLS.", key="tls.cert")
    tls_key: OptionalFile = option(None, "Private key of the certificate.", key="tls.key")
    tls_ca: OptionalFile = option(
        None, "Certificates whose clients are trusted: with it every TLS client must show one.", key="tls.ca"
    )
    telesto: Telesto = option(
        "off",
        "Where clients of the Telesto protocol connect; on is 127.0.0.1:9001. It has no passwords.",
        key="telesto.address",
    )
    token_file: OptionalFile = option(
        None,
        "File with the token that logs in as the administrator @owner; admin.token in the data folder if none.",
        key="access.token_file",
    )
    telesto_time_order: Literal["newest", "oldest"] = option(
        "newest", "Which message a Telesto client gets first when it reads by time.", key="telesto.time_order"
    )
    thorbang: ThorBang = option(
        "off",
        "Where clients of the ThorBangMQ protocol connect; on is 127.0.0.1:8123. It has no passwords.",
        key="thorbang.address",
    )
    thorbang_max_request_bytes: Size = option(
        "16MiB", "Longest request of the ThorBangMQ protocol.", key="thorbang.max_request_bytes"
    )
    http: Listener = option(
        "127.0.0.1:15672", "Where browsers find the console, and programs the management API.", key="http.address"
    )
    http_proxies: Proxies = option(
        "none", "Proxies that are believed for whom they ask, and whether by HTTPS.", key="http.proxies"
    )
    reports: Annotated[Path | None, Form("FOLDER")] = option(
        None, "Folder of reports that the console shows, beside `reports` in the data folder.", key="http.reports"
    )
    loopback_users: Names = option(
        "guest", "Users who may log in from the node's own machine only.", key="access.loopback_users"
    )
    max_message_bytes: Size = option("128MiB", "Longest body of a message.", key="limits.max_message_bytes")
    max_connections: Count = option(
        10_000, "Most clients connected at a time; links between nodes do not count.", key="limits.max_connections"
    )
    max_channels: Count = option(100_000, "Most channels of all AMQP connections.", key="limits.max_channels")
    max_unauthenticated: Count = option(
        4000,
        "Most AMQP clients that have not logged in yet; of more, those of the address with the most go.",
        key="limits.max_unauthenticated",
    )
    resident_bytes: Size = option(
        "256MiB",
        "Memory for the bodies of waiting messages; more are left in the store.",
        key="limits.resident_bytes",
    )
    memory_bytes: Size = option(
        "1GiB",
        "Memory for what cannot be left in the store: publishers are slowed as it fills, then the largest refused.",
        key="limits.memory_bytes",
    )
    disk_free_bytes: Annotated[ByteSize | None, Form("BYTES")] = option(
        None,
        "Free space to keep in the volume of the embedded store: publishers are blocked below it;"
        " 2GiB if none is given, less on a volume under 40 GiB.",
        key="limits.disk_free_bytes",
    )
    pace_per_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False), Form("OPERATIONS")] = option(
        None,
        "Operations on messages that the node does in a second at most, to model a slower machine; no limit if none.",
        key="limits.pace_per_s",
    )
    trace: Switch = option("on", "Whether to record what requests cost.", key="trace.enabled")
    trace_sample_ratio: Ratio = option(1.0, "Part of the requests that is recorded.", key="trace.sample_ratio")
    trace_most_per_s: Count = option(
        500, "So many requests of a second are all recorded; of further ones one in 64.", key="trace.most_per_s"
    )
    trace_keep_bytes: Size = option(
        "1GiB", "Most disk space for trace files; the oldest are removed.", key="trace.keep_bytes"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "warning", "Least serious messages to log.", key="log.level"
    )
    log_format: Literal["text", "json"] = option("text", "How log lines look.", key="log.format")
    log_file: OptionalFile = option(
        None,
        "Where log lines go instead of standard error. Of 10 MB a copy is kept, FILE.1, and it begins anew.",
        key="log.file",
    )


@dataclass(frozen=True, slots=True)
class Option:
    """The names of one setting and what its declaration says, for those who offer it to users."""

    name: str
    key: str | None
    meaning: str
    default: str | None
    form: str
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "FLYBALL_" + self.name.upper()

    @property
    def place(self) -> str:
        """Where it stands in the TOML file, as in `[telesto] address`."""
        section, dot, name = (self.key or "").rpartition(".")
        return f"[{section}] {name}" if dot else name


def options() -> Iterator[Option]:
    """Yield all settings in the order of their declaration."""
    for name, info in ServeSettings.model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict), "settings are declared with option()"
        key = extra["key"]
        choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
        form = next((entry.text for entry in info.metadata if isinstance(entry, Form)), "|".join(choices))
        yield Option(
            name=name,
            key=None if key is None else str(key),
            meaning=info.description or "",
            default=None if info.default is None else str(info.default),
            form=form,
            choices=choices,
        )


def load_settings(flags: Mapping[str, object], environment: Mapping[str, str]) -> ServeSettings:
    """Put the settings together from the flags given (by name of setting), the environment and the TOML file.

    An empty environment variable counts as absent. Raises SettingsError, which names the place to correct.
    """
    given: dict[str, tuple[object, str]] = {}
    for option in options():
        if option.name in flags:
            given[option.name] = flags[option.name], option.flag
        elif environment.get(option.variable):
            given[option.name] = environment[option.variable], option.variable
    if "config" in given:
        config, place = given["config"]
        for name, found in _read_file(Path(str(config)), place).items():
            given.setdefault(name, found)
    try:
        return ServeSettings.model_validate({name: value for name, (value, _) in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        # Pydantic's own messages leave out what was given; ours say it where it is not a secret.
        problem = str(cause) if isinstance(cause, ValueError) else f"{first['msg']}, not {first['input']!r}"
        raise SettingsError(given[str(first["loc"][0])][1], problem) from None


def _read_file(path: Path, place: str) -> dict[str, tuple[object, str]]:
    """Return the settings in the TOML file at `path`, each with its place, by their names."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(place, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(str(path), f"not a TOML file: {error}") from error
    known = {option.key: option for option in options() if option.key is not None}
    found: dict[str, tuple[object, str]] = {}
    for key, value in _flatten(document, {key.partition(".")[0] for key in known if "." in key}):
        if key not in known:
            raise SettingsError(f"{path}: {key}", _unknown(key, known))
        option = known[key]
        found[option.name] = value, f"{path}: {option.place}"
    return found


def _flatten(document: Mapping[str, object], sections: set[str]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name in sections and isinstance(value, dict):
            for inner, inner_value in value.items():
                yield f"{name}.{inner}", inner_value
        else:
            yield name, value


def _unknown(key: str, known: Mapping[str, Option]) -> str:
    close = [other for other in known if other.startswith(f"{key}.")] or difflib.get_close_matches(key, known)
    return f"no such setting; did you mean {known[close[0]].place}?" if close else "no such setting"
