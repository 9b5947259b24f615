"""The provisioners of a node by name: from a TOML file, built-in ones and those of users."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import logging
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from flyball.broker.cluster.provisioners.command import CommandTemplate
from flyball.broker.cluster.provisioners.interface import Provisioner, Surroundings, check_node_name
from flyball.broker.cluster.provisioners.local import LocalProcesses
from flyball.errors import ClusterError

log = logging.getLogger(__name__)

T = TypeVar("T")

# The built-in provisioner. A table of that name in the file changes its options.
LOCAL = "local"

ENTRY_POINTS = "flyball.provisioners"

Factory = Callable[..., Provisioner]

# Called with the surroundings and the options of its table as keyword arguments.
KINDS: dict[str, Factory] = {"local": LocalProcesses, "command": CommandTemplate}

METHODS = ("start", "stop", "alive")


def load_provisioners(file: Path | None, surroundings: Surroundings) -> dict[str, Provisioner]:
    """Return the provisioners declared in a file, and `local`. Raises ClusterError that names the place."""
    found: dict[str, Provisioner] = {LOCAL: Guarded(LOCAL, LocalProcesses(surroundings))}
    for name, table in ({} if file is None else _read(file)).items():
        try:
            found[name] = _make(name, table, surroundings)
        except ClusterError as error:
            raise ClusterError(f"{file}: [{name}] {error}") from error
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"cannot read {file}: {error.strerror}: check --provisioners") from error
    except ValueError as error:
        raise ClusterError(f"{file} is not valid TOML: {error}") from error


def _make(name: str, table: object, surroundings: Surroundings) -> Provisioner:
    if not isinstance(table, Mapping):
        raise ClusterError('not a table: write [NAME], then kind = "command" and its options')
    options = dict(table)
    kind = options.pop("kind", LOCAL if name == LOCAL else None)
    if not isinstance(kind, str):
        raise ClusterError(f"missing kind: use one of {', '.join(KINDS)} or package.module:Class")
    factory = _factory(kind)
    try:
        inspect.signature(factory).bind(surroundings, **options)
    except TypeError as error:
        raise ClusterError(f"{error}: a provisioner of kind {kind} has {_described(factory)}") from None
    try:
        made = factory(surroundings, **options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ClusterError(f"{first['loc'][0]}: {first['msg']}, not {first['input']!r}") from None
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"{kind} failed: {error!r}") from error
    for method in METHODS:
        if not inspect.iscoroutinefunction(getattr(made, method, None)):
            raise ClusterError(f"{kind} is not a provisioner: it needs `async def {method}`")
    return Guarded(kind, made)


class Guarded:
    """Wraps a provisioner: any exception becomes a ClusterError, so that it never ends the node."""

    def __init__(self, kind: str, provisioner: Provisioner) -> None:
        self.kind = kind
        self.provisioner = provisioner

    async def start(self, name: str) -> str:
        check_node_name(name)
        handle = await self._guarded(self.provisioner.start(name))
        if not isinstance(handle, str):
            raise ClusterError(f"provisioner {self.kind} returned {handle!r} for node {name}, which is not a string")
        return handle

    async def stop(self, handle: str) -> None:
        await self._guarded(self.provisioner.stop(handle))

    async def alive(self, handle: str) -> bool:
        return bool(await self._guarded(self.provisioner.alive(handle)))

    async def _guarded(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except ClusterError:
            raise
        except Exception as error:
            log.exception("provisioner %s failed", self.kind)
            raise ClusterError(f"provisioner {self.kind} failed: {error!r}: see the node's log") from error


def _factory(kind: str) -> Factory:
    if kind in KINDS:
        return KINDS[kind]
    if ":" in kind:
        return _imported(kind)
    others = {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if kind not in others:
        known = [*KINDS, *others]
        close = difflib.get_close_matches(kind, known)
        advice = f"did you mean {close[0]}?" if close else f"use {', '.join(known)} or package.module:Class"
        raise ClusterError(f"unknown kind {kind!r}: {advice}")
    return _imported(others[kind].value)


def _imported(path: str) -> Factory:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ClusterError(f"cannot import {path}: {error}: install it where the node runs") from error
    if not callable(found):
        raise ClusterError(f"{path} is not callable: name a class")
    factory: Factory = found
    return factory


def _described(factory: Factory) -> str:
    """List the options of a provisioner; its first parameter is the surroundings."""
    names = list(inspect.signature(factory).parameters)[1:]
    return ", ".join(names) or "no options"
