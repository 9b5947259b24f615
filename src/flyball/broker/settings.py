"""The settings of a node, each declared once with its default, unit, description and names.

The setting `telesto_time_order` is the flag `--telesto-time-order`, the environment variable
`FLYBALL_TELESTO_TIME_ORDER` and, in the TOML file, the key in its declaration. Flags override the environment, the
environment overrides the file, the file overrides the default. No other module reads any of them.
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

# Ports for `--telesto on` and `--thorbang on`, those of the original systems.
TELESTO_PORT = 9001
THORBANG_PORT = 8123


# Valid values in errors, by the metavariable in the help; others are understood as they are.
VALID = {
    "BYTES": "a size such as 64MiB",
    "COUNT": "a whole number",
    "SECONDS": "a number of seconds",
    "RATIO": "a number from 0 to 1",
    "NAME": "a name of letters, digits, _ . and -",
}

# Headings in the help, by section of the TOML file.
HEADINGS = {
    "": "Node",
    "store": "Store",
    "domain": "Domain",
    "amqp": "AMQP",
    "tls": "TLS of clients",
    "http": "HTTP: console and management API",
    "access": "Users",
    "limits": "Limits",
    "trace": "Traces",
    "log": "Log",
    "telesto": "Research protocols",
    "thorbang": "Research protocols",
}


class Address(NamedTuple):
    """The address of a listener. Port 0 lets the system choose one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port` or `[ipv6]:port`. Raises ValueError."""
        found = re.fullmatch(r"(?:\[([^\[\]\s]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", text)
        if found is None or int(found[3]) > 65535:
            raise ValueError(f"{text!r} is not a valid address: use host:port, [ipv6]:port or off")
        return cls(found[1] or found[2], int(found[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The store of the messages. `str` and `repr` never show a password; only `url` does."""

    kind: Literal["embedded", "postgresql", "memory", "null"]
    # URL of an external PostgreSQL; empty for the other kinds.
    url: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a keyword or a URL. Raises ValueError without the text, which may hold a password."""
        for kind in ("embedded", "memory", "null"):
            if text == kind:
                return cls(kind)
        try:
            is_postgresql = urlsplit(text).scheme in ("postgresql", "postgres") and "://" in text
        except ValueError:
            is_postgresql = False
        if not is_postgresql:
            raise ValueError(
                "not a valid store: use embedded, memory, null or postgresql://user:password@host:port/database"
            )
        return cls("postgresql", text)

    @property
    def redacted(self) -> str:
        """The store for logs and reports, without the password."""
        if not self.url:
            return self.kind
        scheme, _, rest = self.url.partition("://")
        # Parameters first, then split at the last @: a password may contain an unescaped @.
        rest = re.sub(r"(password=)[^&]*", rf"\g<1>{HIDDEN}", rest, flags=re.IGNORECASE)
        user, at, place = rest.rpartition("@")
        name, colon, _ = user.partition(":")
        return f"{scheme}://{name}{colon}{HIDDEN if colon else ''}{at}{place}"

    def __str__(self) -> str:
        return self.redacted


class Form(NamedTuple):
    """The metavariable of a setting in the help, with its unit."""

    text: str


def _read_listener(value: object) -> object:
    if isinstance(value, str):
        return None if value == "off" else Address.parse(value)
    if value is None or isinstance(value, Address):
        return value
    raise ValueError(f"{value!r} is not a valid address: use host:port, [ipv6]:port or off")


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
        # Without a mask it is an address and stays one, not a /32 network.
        return str(ipaddress.ip_network(text, strict=False) if "/" in text else ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a valid address: use those of the proxies, such as 10.0.0.1 or 10.0.0.0/24, or none"
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

    The default is written as a user would write it, and validated likewise. `key` is the key in the TOML file, None
    for a setting that the file cannot have.
    """
    return Field(default, validate_default=True, description=meaning, json_schema_extra={"key": key})


class ServeSettings(BaseModel):
    """The settings of `flyball serve`, documented in docs/reference/settings.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Annotated[Path | None, Form("FILE")] = option(None, "TOML file with settings.", key=None)
    data: Annotated[Path, Form("FOLDER")] = option(
        "./data", "Folder for the embedded PostgreSQL, the traces and the node's token.", key="data"
    )
    name: NodeName = option(
        None, "Name of the node in its domain and its traces; default: the machine's host name.", key="name"
    )
    store: Store = option(
        "embedded",
        "Where messages are stored: `embedded` (a PostgreSQL that the node runs in the data folder), `memory`,"
        " `null` (nowhere, for benchmarks), or an external PostgreSQL by its postgresql:// URL.",
        key="store.location",
    )
    store_time_limit_s: Seconds = option(10, "Timeout of a request to the store.", key="store.time_limit_s")
    lease_s: Annotated[float, Field(ge=1, le=600), Form("SECONDS")] = option(
        4,
        "Lease of the node: when it has not been renewed for this long, other nodes take over its queues.",
        key="domain.lease_s",
    )
    capacity: Annotated[float, Field(gt=0, le=1000), Form("NUMBER")] = option(
        1,
        "Weight of the node when queues and clients are placed, relative to the other nodes of its domain.",
        key="domain.capacity",
    )
    link: Listener = option(
        "127.0.0.1:0",
        "Address to listen on for the other nodes of the domain; port 0 picks a free port.",
        key="domain.link_address",
    )
    link_tls_cert: OptionalFile = option(
        None,
        "Certificate for TLS between nodes; either all nodes of a domain use TLS or none.",
        key="domain.link_tls_cert",
    )
    link_tls_key: OptionalFile = option(None, "Private key of the link certificate.", key="domain.link_tls_key")
    link_tls_ca: OptionalFile = option(
        None,
        "CA certificates that sign the nodes' link certificates; use a CA that signs nothing else.",
        key="domain.link_tls_ca",
    )
    advertise: Annotated[str | None, Field(pattern=r"^[\w.:-]+$"), Form("HOST")] = option(
        None,
        "Host name or address that other nodes use to reach this one, for a node that listens on all interfaces;"
        " default: the machine's host name.",
        key="domain.advertise",
    )
    provisioners: OptionalFile = option(
        None,
        "TOML file with provisioners, the ways in which this node may start others; `local` is always there.",
        key="domain.provisioners",
    )
    amqp: Listener = option("127.0.0.1:5672", "Address to listen on for AMQP 0-9-1.", key="amqp.address")
    amqps: Listener = option("off", "Address to listen on for AMQP 0-9-1 over TLS.", key="amqp.tls_address")
    amqp_heartbeat_s: Annotated[int, Field(ge=0, le=65535), Form("SECONDS")] = option(
        60, "Heartbeat interval proposed to AMQP clients; 0 disables heartbeats.", key="amqp.heartbeat_s"
    )
    amqp_channel_max: Annotated[int, Field(gt=0, le=65535), Form("COUNT")] = option(
        2047, "Maximum number of channels per AMQP connection.", key="amqp.channel_max"
    )
    amqp_frame_max_bytes: FrameSize = option("128KiB", "Maximum size of an AMQP frame.", key="amqp.frame_max_bytes")
    amqp_consumer_timeout_s: Seconds = option(
        1800,
        "Acknowledgement timeout: the channel of an AMQP consumer that holds a delivery longer is closed.",
        key="amqp.consumer_timeout_s",
    )
    tls_cert: OptionalFile = option(
        None, "Certificate chain of the node, for client connections over TLS.", key="tls.cert"
    )
    tls_key: OptionalFile = option(None, "Private key of the node's certificate.", key="tls.key")
    tls_ca: OptionalFile = option(
        None,
        "CA certificates for client authentication; if set, every TLS client must present a certificate signed by"
        " one.",
        key="tls.ca",
    )
    telesto: Telesto = option(
        "off",
        "Address to listen on for the Telesto protocol; `on` means 127.0.0.1:9001. It has no authentication:"
        " anyone who can connect has full access.",
        key="telesto.address",
    )
    token_file: OptionalFile = option(
        None,
        "File with the token of the administrator @owner; default: admin.token in the data folder.",
        key="access.token_file",
    )
    telesto_time_order: Literal["newest", "oldest"] = option(
        "newest", "Which message a Telesto client gets first when it reads by time.", key="telesto.time_order"
    )
    thorbang: ThorBang = option(
        "off",
        "Address to listen on for the ThorBangMQ protocol; `on` means 127.0.0.1:8123. It has no"
        " authentication: anyone who can connect has full access.",
        key="thorbang.address",
    )
    thorbang_max_request_bytes: Size = option(
        "16MiB", "Maximum size of a ThorBangMQ request.", key="thorbang.max_request_bytes"
    )
    http: Listener = option(
        "127.0.0.1:15672",
        "Address to listen on for HTTP: the console, the management API and metrics.",
        key="http.address",
    )
    http_proxies: Proxies = option(
        "none",
        "Trusted proxies whose X-Forwarded-For and X-Forwarded-Proto headers are honoured.",
        key="http.proxies",
    )
    reports: Annotated[Path | None, Form("FOLDER")] = option(
        None,
        "Additional folder of reports for the console, which always shows `reports` in the data folder.",
        key="http.reports",
    )
    loopback_users: Names = option(
        "guest", "Users who may connect only from the node's own machine.", key="access.loopback_users"
    )
    max_message_bytes: Size = option("128MiB", "Maximum size of a message body.", key="limits.max_message_bytes")
    max_connections: Count = option(
        10_000,
        "Maximum number of client connections; links between nodes are not counted.",
        key="limits.max_connections",
    )
    max_channels: Count = option(
        100_000, "Maximum number of channels of all AMQP connections together.", key="limits.max_channels"
    )
    max_unauthenticated: Count = option(
        4000,
        "Maximum number of AMQP connections that have not authenticated yet; beyond it, those of the address with the"
        " most are closed.",
        key="limits.max_unauthenticated",
    )
    resident_bytes: Size = option(
        "256MiB",
        "Memory for the bodies of ready messages; further bodies stay in the store until they are needed.",
        key="limits.resident_bytes",
    )
    memory_bytes: Size = option(
        "1GiB",
        "Memory for everything that cannot stay in the store; publishers are throttled as it fills, then the largest"
        " connections are closed.",
        key="limits.memory_bytes",
    )
    disk_free_bytes: Annotated[ByteSize | None, Form("BYTES")] = option(
        None,
        "Minimum free disk space of the embedded store: publishers are blocked below it; default: 2GiB, less on a"
        " volume under 40 GiB.",
        key="limits.disk_free_bytes",
    )
    pace_per_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False), Form("OPERATIONS")] = option(
        None,
        "Rate limit of message operations, to model a slower machine; default: no limit.",
        key="limits.pace_per_s",
    )
    trace: Switch = option("on", "Record the cost of requests in trace files.", key="trace.enabled")
    trace_sample_ratio: Ratio = option(1.0, "Fraction of requests that are traced.", key="trace.sample_ratio")
    trace_most_per_s: Count = option(
        500, "Trace every request up to this rate per second, then 1 in 64.", key="trace.most_per_s"
    )
    trace_keep_bytes: Size = option(
        "1GiB", "Maximum disk space of trace files; the oldest are deleted.", key="trace.keep_bytes"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "warning", "Minimum level of log messages.", key="log.level"
    )
    log_format: Literal["text", "json"] = option("text", "Format of log lines.", key="log.format")
    log_file: OptionalFile = option(
        None,
        "File to log to instead of standard error. Rotated at 10 MB; one previous file (FILE.1) is kept.",
        key="log.file",
    )


@dataclass(frozen=True, slots=True)
class Option:
    """One setting's names and declaration, for the command line and the documentation."""

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
    def heading(self) -> str:
        """The heading of its group in the help."""
        section, dot, _ = (self.key or "").partition(".")
        return HEADINGS[section if dot else ""]

    @property
    def place(self) -> str:
        """Its place in the TOML file, such as `[telesto] address`."""
        section, dot, name = (self.key or "").rpartition(".")
        return f"[{section}] {name}" if dot else name


def listener_names(settings: ServeSettings) -> set[str]:
    """Return the names of the listeners that are on."""
    names = ("amqp", "amqps", "telesto", "thorbang", "link", "http")
    return {name for name in names if getattr(settings, name) is not None}


def options() -> Iterator[Option]:
    """Yield all settings in declaration order."""
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


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], default_file: Path | None = None
) -> ServeSettings:
    """Merge the settings from flags (by name of setting), environment and TOML file.

    The default file is read if it exists and no other is given. An empty environment variable counts as unset. Raises
    SettingsError, which names the flag, variable or key.
    """
    given: dict[str, tuple[object, str]] = {}
    for option in options():
        if option.name in flags:
            given[option.name] = flags[option.name], option.flag
        elif environment.get(option.variable):
            given[option.name] = environment[option.variable], option.variable
    config, place = given.get("config", (default_file, "--config"))
    if "config" in given or (default_file is not None and _may_exist(default_file)):
        for name, found in _read_file(Path(str(config)), place).items():
            given.setdefault(name, found)
    try:
        return ServeSettings.model_validate({name: value for name, (value, _) in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        name = str(first["loc"][0])
        # A cause is one of our validators' texts, which quote the value unless it may be a secret.
        problem = str(cause) if isinstance(cause, ValueError) else _problem(name, dict(first))
        raise SettingsError(given[name][1], problem) from None


def _may_exist(path: Path) -> bool:
    """Whether there is a file, or this process may not find out: its settings must not be missed in silence."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _problem(name: str, error: Mapping[str, Any]) -> str:
    """Describe what is wrong with a value and what is valid."""
    form = next(option.form for option in options() if option.name == name)
    bounds = error.get("ctx", {})
    allowed = {
        "greater_than": "more than {gt}",
        "greater_than_equal": "{ge} or more",
        "less_than": "less than {lt}",
        "less_than_equal": "{le} or less",
    }.get(error["type"])
    wanted = VALID.get(form, form)
    wanted = wanted if allowed is None else f"{wanted}, {allowed.format(**bounds)}"
    return f"{error['input']!r} is not valid: use {wanted}"


def _read_file(path: Path, place: str) -> dict[str, tuple[object, str]]:
    """Return the settings in the TOML file at `path`, each with its place, by name."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(place, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(str(path), f"not a valid TOML file: {error}") from error
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
