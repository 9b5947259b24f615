"""Predicts class and cost of a request by its key, from a profile and earlier costs.

Learns online. Classes change rarely: a slowdown of all requests keeps the order of keys, and so the classes. No
clock, no database.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from flyball.admission.classes import LEAST_COST, CostClass, KeyCost
from flyball.admission.kmeans import Division, Numbers, divide
from flyball.admission.profile import Profile

# Stands for all keys beyond the first MOST_KEYS.
OTHER = "other"
MOST_KEYS = 1000
MOST_CLASSES = 4
# Assumed cost of a request while nothing is known: 10 ms of a connection.
FIRST_COST = 10.0
# Approximate number of requests in the running mean of a key.
MEMORY_REQUESTS = 50
# Maximum weight of the profile, in requests of a key.
TRUST_IN_PROFILE_REQUESTS = 30
# A key with fewer requests is unknown.
FEW_REQUESTS = 3
# Classes need at least this many requests.
FEWEST_REQUESTS = 100
# Probability that an unknown key costs more than predicted, if it is like the known ones.
UNSEEN_RATIO = 0.1
# Interval between checks of the classes.
LOOK_PERIODS = 40
# Share of the request frequencies that is forgotten from one check to the next.
FORGOTTEN_RATIO = 0.2
# Factor by which the cost ratio of two classes must change to count as a change.
NEWS_RATIO = 1.25
# Hysteresis: how far beyond the bound a key must be to change its class.
MARGIN_RATIO = 0.15
# Weight of a profile in the request frequencies.
PROFILE_REQUESTS = 1000
# Minimum weight of a key without requests.
LEAST_WEIGHT = 1e-6
# A key with a lower weight is evicted when there is no room.
RARE_WEIGHT = 0.1
# Costs that differ by less than 4 % are one point for k-means, which bounds its run time.
POINTS_PER_E = 25

# The requests of a key scatter, so it becomes this many points for k-means: fewer would look like separate classes.
SCATTER_POINTS = 15

_QUANTILES = np.array([NormalDist().inv_cdf((number + 0.5) / SCATTER_POINTS) for number in range(SCATTER_POINTS)])
_SCATTER = _QUANTILES / _QUANTILES.std()


@dataclass(slots=True, eq=False)
class _Key:
    """Statistics of one key."""

    # None until enough of its requests have ended.
    class_number: int | None = None
    mean: float = 0.0
    base: float = math.inf
    # Mean of squared costs.
    square: float = 0.0
    # Number of requests in the mean, at most MEMORY_REQUESTS.
    trust: int = 0
    seen: int = 0
    # Request frequency with exponential forgetting.
    weight: float = 0.0

    @classmethod
    def of_profile(cls, class_number: int, mean: float, sd: float, requests: int, weight: float) -> _Key:
        trust = min(requests, TRUST_IN_PROFILE_REQUESTS)
        return cls(class_number, mean, base=mean, square=mean * mean + sd * sd, trust=trust, weight=weight)

    def learn(self, cost: float) -> None:
        # Called for each request, so without function calls, which would take most of the time.
        self.seen += 1
        self.weight += 1.0
        trust = self.trust
        if trust < MEMORY_REQUESTS:
            trust += 1
            self.trust = trust
        mean = self.mean + (cost - self.mean) / trust
        self.mean = mean
        self.square += (cost * cost - self.square) / trust
        is_mean_sure = trust >= TRUST_IN_PROFILE_REQUESTS
        if mean < self.base and (is_mean_sure or (self.base == math.inf and trust >= FEW_REQUESTS)):
            self.base = mean

    @property
    def place(self) -> float:
        """ln of its mean cost, regardless of its class."""
        return math.log(max(self.mean, LEAST_COST))

    @property
    def deviation(self) -> float:
        """Standard deviation of ln cost of single requests, assuming a log-normal distribution."""
        if self.mean <= 0:
            return 0.0
        return math.sqrt(math.log1p(max(self.square / self.mean**2 - 1.0, 0.0)))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """Class centres as ln cost, ascending, and the bounds between them."""

    centres: tuple[float, ...] = (0.0,)

    @property
    def bounds(self) -> list[float]:
        return [(low + high) / 2 for low, high in pairwise(self.centres)]

    def class_of(self, place: float) -> int:
        return bisect_left(self.bounds, place)

    def has_left(self, place: float, number: int) -> bool:
        """Return whether a key of class `number` is outside it by the hysteresis."""
        to = self.class_of(place)
        if to == number:
            return False
        low = number - 1 if to < number else number
        margin = MARGIN_RATIO * (self.centres[low + 1] - self.centres[low])
        return abs(place - self.bounds[low]) > margin


class Classifier:
    """Classes by running means of keys, from cheap to expensive.

    With a profile it starts with the profile's classes and costs. Without, it starts with one class and splits it
    once it has enough data. An unknown key is in the most expensive class until some of its requests have ended. Not
    thread-safe.
    """

    def __init__(
        self, profile: Profile | None = None, most_classes: int = MOST_CLASSES, first_cost: float = FIRST_COST
    ) -> None:
        self._most_classes = most_classes
        self._first_cost = first_cost
        self._unit = profile.unit if profile is not None else None
        self._keys: dict[str, _Key] = {}
        self._other: _Key | None = None
        self._unknown_cost = first_cost
        self._ladder = _Ladder()
        self._classes: tuple[CostClass, ...] = (CostClass(0, first_cost),)
        self._announced: tuple[CostClass, ...] = self._classes
        self._seen = 0
        # Whether a key waits for its class.
        self._has_new_key = False
        # Whether the classes must be computed again, since keys were added or their order has changed.
        self._is_due = True
        # Whether classes were never computed.
        self._is_first = profile is None
        self._periods = 0
        if profile is not None:
            self._begin_with(profile)

    @property
    def unit(self) -> str | None:
        return self._unit

    @property
    def classes(self) -> tuple[CostClass, ...]:
        return self._classes

    @property
    def keys(self) -> Mapping[str, KeyCost]:
        return {
            name: KeyCost(
                len(self._classes) - 1 if key.class_number is None else key.class_number,
                key.mean,
                min(key.base, key.mean),
                key.seen,
            )
            for name, key in self._keys.items()
        }

    def classify(self, key: str) -> tuple[int, float]:
        """Return class and predicted cost of an arriving request: the running mean of its key.

        An unknown key is in the most expensive class, and is predicted to cost as much as an upper quantile of the
        known keys.
        """
        known = self._keys.get(key, self._other)
        if known is None or known.class_number is None:
            return len(self._classes) - 1, self._unknown_cost
        return known.class_number, known.mean

    def learn(self, key: str, cost: float) -> tuple[int, float]:
        """Learn the cost (0 or more) of a request that has ended. Return its class and base cost."""
        known = self._keys.get(key) or self._add(key)
        known.learn(cost)
        self._seen += 1
        base = known.base if known.base < known.mean else known.mean
        if known.class_number is not None:
            return known.class_number, base
        if known.seen >= FEW_REQUESTS:
            self._has_new_key = True
        return len(self._classes) - 1, base

    def end_period(self) -> bool:
        """End a control period; return whether classes, or the class of a key, have changed."""
        self._periods += 1
        has_changed = self._has_new_key and self._settle()
        if self._periods % LOOK_PERIODS == 0 or (self._is_first and self._seen >= FEWEST_REQUESTS):
            has_changed |= self._look()
        return has_changed

    def _begin_with(self, profile: Profile) -> None:
        most_asked_for = sorted(profile.keys.items(), key=lambda item: -item[1].requests)[: MOST_KEYS - 1]
        total = sum(facts.requests for _, facts in most_asked_for) or 1
        for name, facts in most_asked_for:
            weight = max(PROFILE_REQUESTS * facts.requests / total, LEAST_WEIGHT)
            self._keys[name] = _Key.of_profile(facts.class_number, facts.mean, facts.sd, facts.requests, weight)
        if len(profile.classes) > self._most_classes:
            self._divide()
        else:
            self._number({name: facts.class_number for name, facts in most_asked_for})
        self._is_due = False
        self._announced = self._classes

    def _add(self, name: str) -> _Key:
        if len(self._keys) < MOST_KEYS - 1:
            return self._keys.setdefault(name, _Key())
        self._other = self._keys.setdefault(OTHER, _Key())
        return self._other

    def _settle(self) -> bool:
        """Assign keys with enough data to classes; return whether any class has changed."""
        dearest = len(self._classes) - 1
        has_changed = False
        for key in self._keys.values():
            if key.class_number is None and key.seen >= FEW_REQUESTS:
                key.class_number = self._ladder.class_of(key.place)
                has_changed |= key.class_number != dearest
        self._has_new_key = False
        self._is_due = True
        self._measure()
        return has_changed

    def _look(self) -> bool:
        """Check the classes, and compute them again if necessary; return whether they have changed."""
        for key in self._keys.values():
            key.weight = max(key.weight * (1.0 - FORGOTTEN_RATIO), LEAST_WEIGHT)
        if len(self._keys) >= MOST_KEYS - 1:
            # Paths invented by clients must not exclude real ones.
            self._keys = {name: key for name, key in self._keys.items() if key.weight > RARE_WEIGHT or name == OTHER}
        self._measure()
        before = {name: key.class_number for name, key in self._keys.items()}
        left = [(key, number) for key, number in self._settled() if self._ladder.has_left(key.place, number)]
        may_be_better = self._is_due or len(self._classes) == 1
        if self._seen >= FEWEST_REQUESTS and (left or may_be_better):
            self._divide()
            self._is_due = self._is_first = False
            for key, number in left:
                # Its own cost has changed, not only the load: forget the old base.
                key.base = key.mean if key.class_number != number else key.base
            self._measure()
        if before == {name: key.class_number for name, key in self._keys.items()} and not self._is_news():
            return False
        self._announced = self._classes
        return True

    def _is_news(self) -> bool:
        """Return whether cost ratios have changed clearly since the classes were last announced."""
        old, new = self._announced, self._classes
        if len(old) != len(new):
            return True
        ratios = [(then.mean / old[0].mean) / (now.mean / new[0].mean) for then, now in zip(old, new, strict=True)]
        return any(not 1 / NEWS_RATIO < ratio < NEWS_RATIO for ratio in ratios)

    def _settled(self) -> list[tuple[_Key, int]]:
        return [(key, key.class_number) for key in self._keys.values() if key.class_number is not None]

    def _divide(self) -> None:
        """Compute the classes from the statistics of the keys."""
        known = {name: key for name, key in self._keys.items() if key.class_number is not None}
        paid = [key for key in known.values() if key.mean > LEAST_COST]
        if not paid:
            return
        bounds = _division(paid, self._most_classes, len(self._classes)).bounds
        self._number({name: bisect_left(bounds, key.place) for name, key in known.items()})

    def _number(self, groups: Mapping[str, int]) -> None:
        """Number the groups of keys from cheap to expensive; skip empty ones."""
        members = {
            number: [self._keys[name] for name in groups if groups[name] == number] for number in {*groups.values()}
        }
        order = sorted(members, key=lambda number: _centre(members[number]))
        for name, number in groups.items():
            self._keys[name].class_number = order.index(number)
        self._measure()

    def _measure(self) -> None:
        """Update the costs of classes and unknown keys."""
        settled = self._settled()
        if not settled:
            return
        count = 1 + max(number for _, number in settled)
        members = [[key for key, number in settled if number == which] for which in range(count)]
        centres = [_centre(keys) for keys in members]
        self._is_due |= centres != sorted(centres)
        self._ladder = _Ladder(tuple(_ascending(centres)))
        means = _ascending([_mean(keys) for keys in members])
        below = [*(math.exp(bound) for bound in self._ladder.bounds), None]
        self._classes = tuple(CostClass(number, means[number], below[number]) for number in range(count))
        self._unknown_cost = max(means[-1], upper_bound([key.mean for key, _ in settled]))


class OneClass:
    """One class for all requests, at their running mean: the admission paper's controller without classes."""

    def __init__(self, first_cost: float = FIRST_COST) -> None:
        self._first_cost = first_cost
        self._all = _Key()

    @property
    def unit(self) -> str | None:
        return None

    @property
    def classes(self) -> tuple[CostClass, ...]:
        return (CostClass(0, self._mean),)

    @property
    def keys(self) -> Mapping[str, KeyCost]:
        return {}

    def classify(self, key: str) -> tuple[int, float]:
        """Return class 0 and the running mean of all requests."""
        return 0, self._mean

    def learn(self, key: str, cost: float) -> tuple[int, float]:
        """Learn the cost (0 or more) of a request that has ended. Return class 0 and the base cost."""
        self._all.learn(cost)
        return 0, min(self._all.base, self._mean)

    def end_period(self) -> bool:
        """Return False: nothing changes."""
        return False

    @property
    def _mean(self) -> float:
        return max(self._all.mean, LEAST_COST) if self._all.seen else self._first_cost


def upper_bound(means: Sequence[float], unseen_ratio: float = UNSEEN_RATIO) -> float:
    """Return a cost that the next key exceeds with probability at most `unseen_ratio`.

    Holds for any distribution if keys are exchangeable (split conformal prediction); with too few means it is the
    largest.
    """
    rank = math.ceil((len(means) + 1) * (1.0 - unseen_ratio))
    return sorted(means)[min(rank, len(means)) - 1]


def _division(keys: Sequence[_Key], most: int, present: int) -> Division:
    """Divide keys, whose requests scatter around their means, into classes."""
    places = np.array([[key.place] for key in keys]) + np.outer([key.deviation for key in keys], _SCATTER)
    weights = np.repeat([key.weight / SCATTER_POINTS for key in keys], SCATTER_POINTS)
    buckets, which = np.unique(np.floor(places.ravel() * POINTS_PER_E), return_inverse=True)
    middles = (buckets + 0.5) / POINTS_PER_E
    weight: Numbers = np.bincount(which, weights).astype(np.float64)
    return divide(middles, weight, weight * np.exp(middles), most, present)


def _centre(keys: Sequence[_Key]) -> float:
    """Return the centre of a class, as ln cost; requests are weighted half by number and half by cost."""
    weight = sum(key.weight for key in keys)
    cost = sum(key.weight * key.mean for key in keys)
    shares = [key.weight / weight + (key.weight * key.mean / cost if cost > 0 else 0.0) for key in keys]
    return sum(share * key.place for share, key in zip(shares, keys, strict=True)) / sum(shares)


def _mean(keys: Sequence[_Key]) -> float:
    """Return the mean cost of a class over requests with a cost: free ones never wait."""
    paid = [key for key in keys if key.mean > LEAST_COST]
    weight = sum(key.weight for key in paid)
    return sum(key.weight * key.mean for key in paid) / weight if paid else LEAST_COST


def _ascending(values: Sequence[float]) -> list[float]:
    """Return the values, raised where necessary to be strictly ascending."""
    raised: list[float] = []
    for value in values:
        raised.append(value if not raised else max(value, math.nextafter(raised[-1], math.inf)))
    return raised
