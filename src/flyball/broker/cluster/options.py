"""Options of a clustered queue: defaults, meaning and valid values.

Options in files, commands and stored definitions are all parsed here.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from flyball.broker.cluster.names import suggestion
from flyball.errors import ClusterError


class Role(enum.StrEnum):
    """A session's role at a clustered queue."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Policy(enum.StrEnum):
    """How the member for a new client is chosen."""

    # The member with room whose weighted potential grows least.
    POTENTIAL = "potential"
    # The rule of JORAM (Selfware): the smallest share of clients of that role; ignores the rest of the load.
    PLAIN = "plain"


class Loads(enum.StrEnum):
    """The load that a session counts."""

    # The weight of its role.
    WEIGHTS = "weights"
    # Its recent message rate.
    MEASURED = "measured"


@dataclass(slots=True, frozen=True)
class ClusterOptions:
    """How a clustered queue is managed. Raises ClusterError for invalid values.

    Loads, weights and capacities share one unit: clients, messages/s, or the unit of a fitted capacity model.
    """

    policy: str = Policy.POTENTIAL
    # Load of a producer, w_p.
    producer_weight: float = 1.0
    # Load of a consumer, w_c.
    consumer_weight: float = 1.0
    # Capacity of a member on a node of ordinary size: w_p producers + w_c consumers should stay below.
    capacity: float = 100.0
    loads: str = Loads.WEIGHTS
    # Load of one message/s of a session, where loads are measured.
    message_cost: float = 1.0
    # Averaging time of measured loads.
    load_window_s: float = 5.0
    # Grow when the load would exceed this share of the usable capacity.
    theta_up: float = 1.0
    # Shrink only if the remaining members then bear at most this share of their capacity.
    theta_down: float = 0.75
    # Up to this share, growing waits until a dwell time has passed since the last removal.
    theta_hold: float = 1.25
    # How long the load must stay low before a member is removed: at least the cost of starting a node divided by its
    # cost per second, and ten periods of the rebalancer.
    dwell_s: float = 30.0
    min_members: int = 1
    max_members: int = 16
    # Starts nodes for the clustered queue. Empty: it grows on existing nodes only.
    provisioner: str = ""
    # How long a requested node has to join.
    start_s: float = 60.0
    # Interval between rounds of the rebalancer.
    period_s: float = 2.0
    # Maximum number of sessions that move per period.
    most_moves: int = 10
    # Interval between two moves of one session.
    cool_down_s: float = 30.0
    # Minimum gain of a move beyond its cost, in units of w²/C: moving one client to an equal member with two clients
    # fewer gains 2.
    epsilon: float = 0.5
    # Cost of a move, in the same unit.
    move_cost: float = 1.0
    # How long a client that finds no room waits for a node that is being started. 0: place it at once, and move it
    # later.
    wait_s: float = 0.0
    # Ready messages that a member keeps before it transfers some to others.
    surplus: int = 1000

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            _check_option(option.name, getattr(self, option.name))
        if self.theta_down >= self.theta_up:
            raise ClusterError(
                "theta_down must be below theta_up: otherwise one client could trigger endless growing and shrinking"
            )
        if self.theta_hold < self.theta_up:
            raise ClusterError("theta_hold must be at least theta_up")
        if self.min_members > self.max_members:
            raise ClusterError(f"min_members {self.min_members} exceeds max_members {self.max_members}")

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str = "cluster") -> ClusterOptions:
        """Read options; missing ones get their defaults. Raises ClusterError that starts with `where`."""
        names = [option.name for option in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ClusterError(f"{where}: unknown option {name!r}{suggestion(name, names)}")
        try:
            return cls(**{name: _number_as_declared(name, value) for name, value in values.items()})  # type: ignore[arg-type]
        except ClusterError as error:
            raise ClusterError(f"{where}: {error}") from None

    @classmethod
    def stored(cls, values: Mapping[str, object]) -> tuple[ClusterOptions, list[str]]:
        """Read options stored by any version: return those that this version understands, and the names of the
        others.
        """
        known = {option.name for option in dataclasses.fields(cls)}
        usable = {name: _number_as_declared(name, value) for name, value in values.items() if name in known}
        strange = [name for name in values if name not in known]
        for name, value in list(usable.items()):
            try:
                _check_option(name, value)
            except ClusterError:
                del usable[name]
                strange.append(name)
        try:
            return cls(**usable), strange  # type: ignore[arg-type]
        except ClusterError:
            # Each value is valid, but the combination is not.
            return cls(), list(values)

    def to_dict(self, *, only_changed: bool = False) -> dict[str, object]:
        """Return the options as `from_dict` accepts them; with `only_changed` without defaults."""
        values = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        return {
            name: str(value) if isinstance(value, enum.Enum) else value
            for name, value in values.items()
            if not only_changed or value != getattr(_USUAL, name)
        }

    def weight(self, role: Role) -> float:
        """Return the load of a session of the role that has not been measured."""
        return self.producer_weight if role is Role.PRODUCER else self.consumer_weight

    @property
    def potential_unit(self) -> float:
        """The unit of `epsilon` and `move_cost`, as a difference of potential."""
        weight = max(self.producer_weight, self.consumer_weight)
        return weight * weight / self.capacity


_CHOICES = {"policy": [str(policy) for policy in Policy], "loads": [str(loads) for loads in Loads]}
_COUNTS = {"min_members": 1, "max_members": 1, "most_moves": 0, "surplus": 0}
_MAY_BE_ZERO = {"dwell_s", "cool_down_s", "epsilon", "move_cost", "wait_s"}


def _check_option(name: str, value: object) -> None:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ClusterError(f"invalid {name} {value!r}: use {' or '.join(_CHOICES[name])}")
    elif name == "provisioner":
        if not isinstance(value, str):
            raise ClusterError(f"invalid {name} {value!r}: use the name of a provisioner, or '' for none")
    elif name in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or value < _COUNTS[name]:
            raise ClusterError(f"invalid {name} {value!r}: use an integer of at least {_COUNTS[name]}")
    elif (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not math.isfinite(value)
        or value < 0
        or (value == 0 and name not in _MAY_BE_ZERO)
    ):
        least = "of at least 0" if name in _MAY_BE_ZERO else "above 0"
        raise ClusterError(f"invalid {name} {value!r}: use a number {least}")


def _number_as_declared(name: str, value: object) -> object:
    """Convert integers to float where declared: files say 10 for 10.0."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(getattr(_USUAL, name), float) else value  # type: ignore[arg-type]


_USUAL = ClusterOptions()
