"""How a clustered queue is governed: its options, what they mean, and which values can work.

They know neither the domain nor where they come from: files, commands and stored definitions all read them here.
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
    """What a session does with a clustered queue."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Policy(enum.StrEnum):
    """How the member for a new client is elected."""

    # The one whose weighted potential grows least, among those that have room.
    POTENTIAL = "potential"
    # The rule of Selfware: the one with the smallest share of clients of that role, whatever else it bears.
    PLAIN = "plain"


class Loads(enum.StrEnum):
    """What a session counts."""

    # As much as every other one of its role.
    WEIGHTS = "weights"
    # What it has been doing lately.
    MEASURED = "measured"


@dataclass(slots=True, frozen=True)
class ClusterOptions:
    """How a clustered queue is governed. Raises ClusterError for values that cannot work.

    Loads, weights and capacities have one unit: clients, messages/s, or whatever a capacity model was fitted in.
    """

    policy: str = Policy.POTENTIAL
    # What a producer costs a member, w_p.
    producer_weight: float = 1.0
    # What a consumer costs a member, w_c.
    consumer_weight: float = 1.0
    # Of a member on a node of ordinary size: w_p producers + w_c consumers should stay below.
    capacity: float = 100.0
    loads: str = Loads.WEIGHTS
    # Capacity that one message/s of a session takes, where loads are measured.
    message_cost: float = 1.0
    # Over what time a measured load is averaged.
    load_window_s: float = 5.0
    # More is added when the load would exceed this share of the usable capacity.
    theta_up: float = 1.0
    # A member is marked for removal only if the others then bear at most this share of their capacity.
    theta_down: float = 0.75
    # Up to this share an addition waits until the last removal is a dwell time ago.
    theta_hold: float = 1.25
    # How long the load must have been low before anything is removed: at least what starting a node costs, divided by
    # what running one costs per second, and ten periods of the rebalancer.
    dwell_s: float = 30.0
    min_members: int = 1
    max_members: int = 16
    # Who starts nodes for it. Nobody: it grows on the nodes that are there.
    provisioner: str = ""
    # A node that was asked for and is not there after this time will not come.
    start_s: float = 60.0
    # Between two rounds of the rebalancer.
    period_s: float = 2.0
    # Sessions that move in a period.
    most_moves: int = 10
    # Between two moves of one session.
    cool_down_s: float = 30.0
    # What a move must gain beyond its cost, in units of w²/C: one client that goes from a member to an equal one
    # which has two fewer gains 2.
    epsilon: float = 0.5
    # What a move costs, in the same unit.
    move_cost: float = 1.0
    # How long a client that finds no room waits for a node that is being started. Otherwise it is placed at once, and
    # moved later.
    wait_s: float = 0.0
    # Ready messages that a member keeps before it hands some to others.
    surplus: int = 1000

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            _check_option(option.name, getattr(self, option.name))
        if self.theta_down >= self.theta_up:
            raise ClusterError(
                "theta_down must be below theta_up: otherwise one client could add and remove for ever"
            )
        if self.theta_hold < self.theta_up:
            raise ClusterError("theta_hold must not be below theta_up: give at least theta_up")
        if self.min_members > self.max_members:
            raise ClusterError(f"min_members {self.min_members} exceeds max_members {self.max_members}")

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str = "cluster") -> ClusterOptions:
        """Return the options that are given, the others as usual. Raises ClusterError that begins with `where`."""
        names = [option.name for option in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ClusterError(f"{where}: there is no option {name!r}{suggestion(name, names)}")
        try:
            return cls(**{name: _number_as_declared(name, value) for name, value in values.items()})  # type: ignore[arg-type]
        except ClusterError as error:
            raise ClusterError(f"{where}: {error}") from None

    @classmethod
    def stored(cls, values: Mapping[str, object]) -> tuple[ClusterOptions, list[str]]:
        """Return options that any version has stored, but for what means nothing to this one, and its names."""
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
            # Each means something, but not all together.
            return cls(), list(values)

    def to_dict(self, *, only_changed: bool = False) -> dict[str, object]:
        """Return what `from_dict` takes; without those that are as usual if so wished."""
        values = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        return {
            name: str(value) if isinstance(value, enum.Enum) else value
            for name, value in values.items()
            if not only_changed or value != getattr(_USUAL, name)
        }

    def weight(self, role: Role) -> float:
        """Return what a session of the role counts that nothing is known of."""
        return self.producer_weight if role is Role.PRODUCER else self.consumer_weight

    @property
    def potential_unit(self) -> float:
        """The unit of `epsilon` and `move_cost`, as a difference of the potential."""
        weight = max(self.producer_weight, self.consumer_weight)
        return weight * weight / self.capacity


_CHOICES = {"policy": [str(policy) for policy in Policy], "loads": [str(loads) for loads in Loads]}
_COUNTS = {"min_members": 1, "max_members": 1, "most_moves": 0, "surplus": 0}
_MAY_BE_ZERO = {"dwell_s", "cool_down_s", "epsilon", "move_cost", "wait_s"}


def _check_option(name: str, value: object) -> None:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ClusterError(f"{name} is {value!r}: choose {' or '.join(_CHOICES[name])}")
    elif name == "provisioner":
        if not isinstance(value, str):
            raise ClusterError(f"{name} is {value!r}: give the name of a provisioner, or '' for none")
    elif name in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or value < _COUNTS[name]:
            raise ClusterError(f"{name} is {value!r}: give a whole number of at least {_COUNTS[name]}")
    elif (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not math.isfinite(value)
        or value < 0
        or (value == 0 and name not in _MAY_BE_ZERO)
    ):
        least = "not below 0" if name in _MAY_BE_ZERO else "above 0"
        raise ClusterError(f"{name} is {value!r}: give a number {least}")


def _number_as_declared(name: str, value: object) -> object:
    """Files say 10 where they mean 10.0."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(getattr(_USUAL, name), float) else value  # type: ignore[arg-type]


_USUAL = ClusterOptions()
