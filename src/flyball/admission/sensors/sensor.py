"""Base of sensors: a meter, and the interception of an existing pool's methods. Independent of drivers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from flyball.admission.meter import Meter
from flyball.errors import AdmissionError


class Sensor:
    """Measures the pools it watches; sensors may share a meter."""

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter if meter is not None else Meter()

    def is_watching(self, pool: object) -> bool:
        """Return whether the pool is measured by this sensor."""
        return any(vars(kind).get("_flyball_sensor") is self for kind in type(pool).__mro__)

    def _interpose(self, pool: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Override public methods of one pool.

        The pool's class becomes a generated subclass, as users could write it themselves: the rest of the pool is
        unchanged, other pools and its class are not touched, and a copy made through its class is watched as well.
        """
        if shadowed := sorted(methods.keys() & getattr(pool, "__dict__", {}).keys()):
            raise AdmissionError(
                f"this {type(pool).__name__} already overrides {', '.join(shadowed)}:"
                f" call {type(self).__name__}.watch first"
            )
        plain = type(pool)
        described = {"__slots__": (), "__module__": plain.__module__, "__doc__": plain.__doc__}
        pool.__class__ = type(plain.__name__, (plain,), {**described, **methods, "_flyball_sensor": self})

    def _require(self, package: str, *calls: tuple[Callable[..., Any] | None, str]) -> None:
        """Raise AdmissionError unless each function calls the method of that name.

        Otherwise an overridden method could be bypassed silently, and nothing would be measured.
        """
        for function, name in calls:
            code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
            if code is None or name not in code.co_names:
                raise AdmissionError(
                    f"{type(self).__name__} does not support {package} {version(package)}"
                    f" (it bypasses {name}): install a version that Flyball is tested with"
                )
