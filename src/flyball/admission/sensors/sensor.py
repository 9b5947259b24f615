"""What all sensors share: a meter, and how a pool that exists already is made to tell it what happens.

Knows no driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from flyball.admission.meter import Meter
from flyball.errors import AdmissionError


class Sensor:
    """Measures what is taken of the pools it watches; several may share a meter."""

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter if meter is not None else Meter()

    def is_watching(self, pool: object) -> bool:
        """Return whether what is taken of the pool is measured here."""
        return any(vars(kind).get("_flyball_sensor") is self for kind in type(pool).__mro__)

    def _interpose(self, pool: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Override public methods of one pool.

        The pool becomes an instance of a subclass made for it, which is what its users could have written
        themselves: nothing else of it changes, other pools and its class are not touched, and what makes a
        pool anew from its own class makes a watched one.
        """
        if shadowed := sorted(methods.keys() & getattr(pool, "__dict__", {}).keys()):
            raise AdmissionError(
                f"{', '.join(shadowed)} of this {type(pool).__name__} has been replaced by something else:"
                f" call {type(self).__name__}.watch before that"
            )
        plain = type(pool)
        described = {"__slots__": (), "__module__": plain.__module__, "__doc__": plain.__doc__}
        pool.__class__ = type(plain.__name__, (plain,), {**described, **methods, "_flyball_sensor": self})

    def _require(self, package: str, *calls: tuple[Callable[..., Any] | None, str]) -> None:
        """Raise AdmissionError unless each function calls the method of that name.

        What a sensor overrides would otherwise be passed by in silence, and nothing be measured.
        """
        for function, name in calls:
            code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
            if code is None or name not in code.co_names:
                raise AdmissionError(
                    f"{type(self).__name__} does not know how {package} {version(package)} gives out connections"
                    f" (it passes by {name}): install a version that Flyball was tested with"
                )
