"""The description of an experiment, a TOML file: target, workload, varied factors and views.

Validates descriptions and finds their files; runs nothing and plans nothing.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.settings import ServeSettings, StoreChoice, load_settings
from flyball.errors import ClusterError, LabError, SettingsError
from flyball.lab.auction.settings import SiteSettings
from flyball.lab.papers import current_name
from flyball.lab.workloads import WORKLOADS, find_workload

SHIPPED = Path(__file__).parent / "experiments"
# The sections of a description whose values can be varied.
SECTIONS = ("target", "workload", "clients", "noise", "run")
# Value of `quick.sweep` for a quick run with all levels.
ALL = "all"

# Settings of a node that the lab sets itself: its own data folder, free ports.
OWN_SETTINGS = ("config", "data", "store", "name", "amqp", "amqps", "telesto", "thorbang", "http", "link")

# One value of a factor. A table varies several values together and is named by its `label`.
Level = bool | int | float | str | dict[str, Any]

# Values by dotted names, such as `workload.clients`.
Values = Mapping[str, object]


def _check_store(text: str) -> str:
    StoreChoice.parse(text)
    return text


def _check_host(text: str) -> str:
    place = urlsplit(text)
    if place.scheme != "ssh" or not place.hostname:
        raise ValueError(f"{text!r} is not a host: give ssh://user@host:port")
    return text


def _check_address(text: str) -> str:
    if not re.fullmatch(r"(\[[^\[\]\s]+\]|[^\[\]:\s]+):[0-9]{1,5}", text) or int(text.rpartition(":")[2]) > 65535:
        raise ValueError(f"{text!r} is not an address: give host:port")
    return text


def _check_name(text: str) -> str:
    if text and not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", text):
        raise ValueError(f"{text!r} is not a name of an experiment: see `flyball lab list`")
    return text


Host = Annotated[str, AfterValidator(_check_host)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def _check_levels(levels: list[Level]) -> list[Level]:
    if any(isinstance(level, dict) and not isinstance(level.get("label"), str) for level in levels):
        raise ValueError("a level that is a table needs a label, a text")
    labels = [json.dumps(label_of(level)) for level in levels]
    if len(set(labels)) < len(labels):
        raise ValueError("a level stands there twice")
    return levels


Levels = Annotated[list[Level], Field(min_length=1), AfterValidator(_check_levels)]


class Part(BaseModel):
    """A section of a description: unknown keys are refused, and values are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class TargetPart(Part):
    """The system under load."""

    kind: Literal["flyball", "domain", "rabbitmq", "auction", "foreign"] = "flyball"
    # Number of nodes, each with a store of its own, or one shared store in a domain; client i connects to node i mod
    # nodes unless its workload places it.
    nodes: Count = 1
    # Options of the clustered queue of a domain. It has members on all nodes; the provisioner `lab` starts more of
    # them.
    cluster: dict[str, Any] = {}
    store: Annotated[str, AfterValidator(_check_store)] = "embedded"
    # Settings of `flyball serve` by name; for RabbitMQ lines of its rabbitmq.conf; for the auction site those of
    # `SiteSettings`.
    settings: dict[str, Any] = {}
    # Hosts of the nodes, used in turn; empty is this machine.
    hosts: tuple[Host, ...] = ()
    # Addresses of a foreign server, which is not started.
    addresses: tuple[Annotated[str, AfterValidator(_check_address)], ...] = ()
    # Name in reports for a server that the lab did not start; empty is its address.
    label: str = ""
    user: str = "guest"
    password: str = "guest"

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if (self.kind == "foreign") != bool(self.addresses):
            raise ValueError("a foreign target, and no other, needs addresses = ['host:port']")
        if self.kind == "rabbitmq" and (self.nodes != 1 or self.hosts):
            raise ValueError("RabbitMQ runs as one node on this machine: give neither nodes nor hosts")
        if self.kind == "auction" and self.nodes != 1:
            raise ValueError("an auction site is one node: leave nodes out")
        if self.kind == "domain" and (self.hosts or self.store != "embedded"):
            raise ValueError("a domain runs on this machine with a store of its own: give neither hosts nor store")
        if self.cluster and self.kind != "domain":
            raise ValueError("only a domain has a clustered queue: leave cluster out")
        if self.nodes > 1 and "://" in self.store:
            raise ValueError("nodes do not share a store: several of them need embedded, memory or null")
        if self.kind == "foreign" and self.settings:
            raise ValueError("a foreign target is not started and so takes no settings")
        if self.kind in ("flyball", "domain"):
            _check_settings(self.settings)
        _check_cluster(self.cluster)
        if self.kind == "auction":
            _check_site(self.settings)
        return self


def _check_cluster(options: Values) -> None:
    try:
        ClusterOptions.from_dict(options)
    except ClusterError as error:
        raise ValueError(str(error)) from None


def _check_site(settings: Values) -> None:
    try:
        SiteSettings.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "settings"
        if first["type"] == "extra_forbidden":
            close = _suggestion(name, list(SiteSettings.model_fields))
            raise ValueError(f"settings.{name}: an auction site has no such setting{close}") from None
        raise ValueError(f"settings.{name}: {first['msg'].removeprefix('Value error, ')}") from None


def _check_settings(settings: Values) -> None:
    for name in settings:
        if name in OWN_SETTINGS:
            raise ValueError(f"settings.{name}: the lab chooses this itself")
        if name not in ServeSettings.model_fields:
            raise ValueError(f"settings.{name}: no such setting{_suggestion(name, list(ServeSettings.model_fields))}")
    try:
        load_settings(settings, {})
    except SettingsError as error:
        raise ValueError(f"settings: {error}") from None


class ClientsPart(Part):
    """Processes of clients, and their hosts."""

    # Number of client processes; 0 chooses it by the number of clients.
    workers: Annotated[int, Field(ge=0)] = 0
    hosts: tuple[Host, ...] = ()


class NoisePart(Part):
    """CPU load by other processes during a run."""

    processes: Annotated[int, Field(ge=0)] = 0


class RunPart(Part):
    """Repetitions and durations."""

    repetitions: Count = 3
    warm_up_s: Seconds = 5.0
    length_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    cool_down_s: Seconds = 1.0
    seed: int = 1


class View(Part):
    """A chart or table of a result."""

    kind: Literal[
        "curve",
        "bars",
        "over_time",
        "histogram",
        "breakdown",
        "table",
        "effects",
        "network",
        "loop",
        "open_loop",
        "goodput",
        "policies",
        "load_cdf",
        "response_over_time",
        "admission",
        "queue_over_time",
        "rate_over_waiting",
    ]
    metric: str = "throughput"
    request: str = "all"
    source: Literal["clients", "nodes"] = "clients"
    x: str | None = None
    series: str | None = None
    title: str = ""


class Reference(Part):
    """A published figure for comparison."""

    label: str
    factors: dict[str, bool | int | float | str] = {}
    metric: str = "throughput"
    request: str = "all"
    source: Literal["clients", "nodes"] = "clients"
    mean: float
    # The lower end of the 90 % interval, as an offset from the mean.
    low: float | None = None
    high: float | None = None


class Experiment(Part):
    """A whole description. `name` and `path` follow from its file."""

    name: str
    path: Path
    title: str
    about: str = ""
    source: str = ""
    # Why its results differ from the published ones.
    differs: str = ""
    # The name of the experiment whose results this one builds on.
    needs: Annotated[str, AfterValidator(_check_name)] = ""
    target: TargetPart = TargetPart()
    workload: dict[str, Any]
    clients: ClientsPart = ClientsPart()
    noise: NoisePart = NoisePart()
    run: RunPart = RunPart()
    sweep: dict[str, Levels] = {}
    quick: dict[str, Any] = {}
    views: tuple[View, ...] = Field((), alias="view")
    references: tuple[Reference, ...] = Field((), alias="reference")

    @property
    def slug(self) -> str:
        """The name in the form for file names and run ids."""
        return slug_of(self.name)

    def changed(self, values: Values) -> Self:
        """Return the experiment with other values, by dotted names. Raises LabError that names an invalid one."""
        document = self.model_dump(by_alias=True)
        for key, value in values.items():
            _put(document, key, value, self.path)
        return self._checked(document)

    def swept(self, sweep: Mapping[str, Sequence[Level]]) -> Self:
        """Return the experiment with another sweep."""
        return self._checked({**self.model_dump(by_alias=True), "sweep": sweep})

    def _checked(self, document: dict[str, Any]) -> Self:
        try:
            return type(self).model_validate(document)
        except ValidationError as error:
            raise _explained(self.path, error) from None

    def cells(self) -> Iterator[dict[str, Level]]:
        """Yield all combinations of levels; one empty combination if nothing is swept."""
        for levels in itertools.product(*self.sweep.values()):
            yield dict(zip(self.sweep, levels, strict=True))

    def at(self, cell: Mapping[str, Level]) -> Self:
        """Return the experiment with the values of a cell. Raises LabError if they conflict."""
        values: dict[str, object] = {}
        for factor, level in cell.items():
            values.update(values_of(factor, level))
        found = self.changed(values)
        if found.target.store == "null" and "keeps_messages" not in found.workload:
            found = found.changed({"workload.keeps_messages": False})
        _check_workload(found)
        return found


def _check_workload(experiment: Experiment) -> None:
    path, kind = experiment.path, experiment.workload.get("kind")
    try:
        found = find_workload(kind)
    except LabError as error:
        raise LabError(f"{path}: workload.kind: {error}{_suggestion(str(kind), list(WORKLOADS))}") from error
    try:
        workload = found.model_validate(experiment.workload)
    except ValidationError as error:
        raise _explained(path, error, "workload", found) from None
    if experiment.target.kind == "rabbitmq" and experiment.clients.hosts:
        raise LabError(f"{path}: clients.hosts: RabbitMQ listens for clients of this machine only")
    if experiment.target.kind == "rabbitmq" and workload.protocol != "amqp":
        raise LabError(f"{path}: workload.protocol: RabbitMQ speaks amqp, not {workload.protocol}")
    if experiment.target.kind != "foreign" and (experiment.target.kind == "auction") != (workload.protocol == "http"):
        raise LabError(f"{path}: workload.protocol: an auction site speaks http, and brokers do not")


def values_of(factor: str, level: Level) -> dict[str, object]:
    """Return the values that a level sets, by dotted names."""
    if isinstance(level, dict):
        return {key: value for key, value in _flattened(level) if key != "label"}
    return {factor: level}


def label_of(level: Level) -> bool | int | float | str:
    """Return the name of a level in results."""
    if isinstance(level, dict):
        return str(level["label"])
    if isinstance(level, str) and level.startswith(("postgresql://", "postgres://")):
        return StoreChoice.parse(level).redacted
    return level


def slug_of(text: object) -> str:
    """Return the text reduced to the characters of run ids."""
    if isinstance(text, bool):
        text = "on" if text else "off"
    return re.sub(r"[^a-z0-9._]+", "-", str(text).lower()).strip("-.") or "x"


def load(path: Path, name: str | None = None) -> Experiment:
    """Read a description. Raises LabError, which names the file and the key to correct."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise LabError(f"{path}: not a TOML file: {error}") from error
    for key in ("name", "path", "views", "references"):
        if key in document:
            raise LabError(f"{path}: {key}: no such key{_suggestion(key, _keys_of(Experiment))}")
    document |= {"name": name or path.stem, "path": path}
    _root_curve(document, path)
    try:
        document["sweep"] = _factors_in(document.get("sweep", {}), "sweep", path)
        experiment = Experiment.model_validate(document)
    except ValidationError as error:
        raise _explained(path, error) from None
    _check(experiment)
    return experiment


def _root_curve(document: dict[str, Any], path: Path) -> None:
    """Resolve the path of a recorded rate relative to the description, not to the working directory."""
    workload = document.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("rate_curve"), str):
        workload["rate_curve"] = str(path.parent / workload["rate_curve"])


def find(name: str) -> Experiment:
    """Return the shipped experiment with that name, or the one in that file. Raises LabError."""
    path = Path(name)
    if path.suffix == ".toml":
        return load(path)
    name = current_name(name)
    shipped = SHIPPED / f"{name}.toml"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and shipped.is_file():
        return load(shipped, name)
    close = _suggestion(name, list(paths_in(SHIPPED)))
    raise LabError(f"no experiment {name!r}{close}: see `flyball lab list`, or give a .toml file")


def shipped_experiments() -> list[Experiment]:
    """Return the experiments that are shipped with Flyball, by name. Raises LabError if one of them is invalid."""
    return [load(path, name) for name, path in paths_in(SHIPPED).items()]


def paths_in(folder: Path) -> dict[str, Path]:
    """Return the files of all experiments in a folder tree, by name: their relative path without suffix."""
    if not folder.is_dir():
        raise LabError(f"{folder} is not a folder; give one that holds TOML files")
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def experiments_in(folder: Path) -> tuple[list[Experiment], list[LabError]]:
    """Return all experiments in a folder tree, and the errors of invalid files."""
    experiments: list[Experiment] = []
    mistakes: list[LabError] = []
    for name, path in paths_in(folder).items():
        try:
            experiments.append(load(path, name))
        except LabError as error:
            mistakes.append(error)
    return experiments, mistakes


def _check(experiment: Experiment) -> None:
    """Check that the sections of a description are consistent. Raises LabError."""
    path = experiment.path
    quick = experiment.changed(quick_values(experiment)).swept(quick_sweep(experiment) or experiment.sweep)
    for described in (experiment, quick):
        for cell in described.cells():
            described.at(cell)
    for number, view in enumerate(experiment.views, 1):
        for axis in (view.x, view.series):
            if axis is not None and axis not in experiment.sweep:
                raise LabError(f"{path}: view {number}: {_no_factor(axis, experiment)}")
        if view.kind == "effects" and (not experiment.sweep or any(len(of) != 2 for of in experiment.sweep.values())):
            raise LabError(f"{path}: view {number}: effects need factors of two levels each")
    for reference in experiment.references:
        for factor, level in reference.factors.items():
            if factor not in experiment.sweep:
                raise LabError(f"{path}: reference {reference.label!r}: {_no_factor(factor, experiment)}")
            if level not in map(label_of, experiment.sweep[factor]):
                raise LabError(f"{path}: reference {reference.label!r}: {level!r} is not a level of {factor}")


def quick_values(experiment: Experiment) -> dict[str, object]:
    """Return the values that the description changes in a quick run, without the sweep."""
    values = {key: value for key, value in experiment.quick.items() if key != "sweep"}
    return dict(_flattened(values))


def quick_sweep(experiment: Experiment) -> dict[str, list[Level]] | None:
    """Return the description's sweep for a quick run, None if it does not define one."""
    if "sweep" not in experiment.quick:
        return None
    if experiment.quick["sweep"] == ALL:
        return experiment.sweep
    return _factors_in(experiment.quick["sweep"], "quick.sweep", experiment.path)


def insisted(experiment: Experiment, values: Values, levels: Mapping[str, list[Level]]) -> Experiment:
    """Return the experiment with these values and levels, which override its quick values as well."""
    quick: dict[str, Any] = quick_values(experiment)
    quick |= {key: value for key, value in values.items() if key in quick}
    if "sweep" in experiment.quick:
        chosen = experiment.quick["sweep"]
        quick["sweep"] = chosen if chosen == ALL else {**(quick_sweep(experiment) or {}), **levels}
    changed = experiment.changed(values).swept({**experiment.sweep, **levels})
    return changed.model_copy(update={"quick": quick})


def _factors_in(sweep: object, key: str, path: Path) -> dict[str, list[Level]]:
    if not isinstance(sweep, dict):
        raise LabError(f"{path}: {key}: give a table of factors and their levels, not {sweep!r}")
    return dict(_flattened(sweep))


def _no_factor(factor: str, experiment: Experiment) -> str:
    return f"{factor!r} is not swept{_suggestion(factor, list(experiment.sweep))}"


def _flattened(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by dotted names, whether the file has tables or quoted dotted names."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _put(document: dict[str, Any], key: str, value: object, path: Path) -> None:
    section, *inner = key.split(".")
    if section not in SECTIONS or not inner:
        close = _suggestion(key, [f"{name}." for name in SECTIONS])
        raise LabError(f"{path}: {key}: no such value{close}; values are named like workload.clients")
    place = document[section]
    for name in inner[:-1]:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise LabError(f"{path}: {key}: {section}.{name} holds no further values")
    place[inner[-1]] = value


def _explained(path: Path, error: ValidationError, prefix: str = "", part: type[BaseModel] | None = None) -> LabError:
    """Return the first error in one line; `part` is the validated section, if not the whole description."""
    # A misspelt key also causes a missing one: report the former.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    # Positions are counted from 1; a union's members are not part of the place in the file.
    places = [str(place + 1 if isinstance(place, int) else place) for place in first["loc"]]
    key = ".".join(place for place in [prefix, *places] if place and not place.startswith(("function-", "dict[")))
    if first["type"] == "extra_forbidden":
        *parents, wrong = places
        known = _keys_of(part or _part_at(parents))
        return LabError(f"{path}: {key}: no such key{_suggestion(wrong, known)}")
    if first["type"] == "missing":
        return LabError(f"{path}: {key} is missing")
    cause = first.get("ctx", {}).get("error")
    problem = str(cause) if isinstance(cause, ValueError) else f"{first['msg']}, not {first['input']!r}"
    return LabError(f"{path}: {key}: {problem}" if key else f"{path}: {problem}")


_PARTS: dict[str, type[Part]] = {
    "target": TargetPart,
    "clients": ClientsPart,
    "noise": NoisePart,
    "run": RunPart,
    "view": View,
    "reference": Reference,
}


def _part_at(parents: list[str]) -> type[Part]:
    return _PARTS.get(parents[0], Experiment) if parents else Experiment


def _keys_of(part: type[BaseModel]) -> list[str]:
    keys = [info.alias or name for name, info in part.model_fields.items()]
    return [key for key in keys if part is not Experiment or key not in ("name", "path")]


def _suggestion(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, 1)
    return f"; did you mean {close[0]}?" if close else ""
