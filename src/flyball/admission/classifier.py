"""Which class a request belongs to, and what it will cost: by its key, from a profile and from what others have cost.

Learns while it works. Classes change seldom: whatever slows all requests alike leaves the order of keys, and so the
classes, as they are. Knows neither clock nor database.
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
# What a request costs as long as nothing is known: 10 ms of a connection.
FIRST_COST = 10.0
# How many of the last requests of a key its mean is of, about.
MEMORY_REQUESTS = 50
# For so many requests of a key its profile counts at most.
TRUST_IN_PROFILE_REQUESTS = 30
# A key of which fewer have ended is unknown.
FEW_REQUESTS = 3
# Of fewer no classes are made.
FEWEST_REQUESTS = 100
# An unknown key costs more than is assumed for it in so many cases, if it is like the known ones.
UNSEEN_RATIO = 0.1
# So often it is seen whether the classes are still right.
LOOK_PERIODS = 40
# From one look to the next, of how often each key is asked for.
FORGOTTEN_RATIO = 0.2
# By so much the ratio of two classes' costs must have changed for the classes to count as changed.
NEWS_RATIO = 1.25
# So far beyond the bound, on the way from one class to the next, a key must be to change its class.
MARGIN_RATIO = 0.15
# For how many requests a profile counts in how often each key is asked for.
PROFILE_REQUESTS = 1000
# A key that nobody asks for any more counts as little as this.
LEAST_WEIGHT = 1e-6
# A key that was asked for so rarely gives its place up when there is no other.
RARE_WEIGHT = 0.1
# Costs that differ by less than 4 % are one point for k-means, which bounds its time.
POINTS_PER_E = 25

# A key's requests scatter, so it is as many points for k-means: fewer would look like classes of their own.
SCATTER_POINTS = 15

_QUANTILES = np.array([NormalDist().inv_cdf((number + 0.5) / SCATTER_POINTS) for number in range(SCATTER_POINTS)])
_SCATTER = _QUANTILES / _QUANTILES.std()


@dataclass(slots=True, eq=False)
class _Key:
    """What is known about one key."""

    # None as long as too few of its requests have ended.
    class_number: int | None = None
    mean: float = 0.0
    base: float = math.inf
    # The mean of squared costs.
    square: float = 0.0
    # For how many requests the mean stands, MEMORY_REQUESTS at most.
    trust: int = 0
    seen: int = 0
    # How often it is asked for; requests long ago count less.
    weight: float = 0.0

    @classmethod
    def of_profile(cls, class_number: int, mean: float, sd: float, requests: int, weight: float) -> _Key:
        trust = min(requests, TRUST_IN_PROFILE_REQUESTS)
        return cls(class_number, mean, base=mean, square=mean * mean + sd * sd, trust=trust, weight=weight)

    def learn(self, cost: float) -> None:
        # For each request that ends, so without calls: they would take most of the time.
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
        """ln of what it costs on average, whatever its class."""
        return math.log(max(self.mean, LEAST_COST))

    @property
    def deviation(self) -> float:
        """How far ln cost of single requests is from its mean, if costs are log-normal."""
        if self.mean <= 0:
            return 0.0
        return math.sqrt(math.log1p(max(self.square / self.mean**2 - 1.0, 0.0)))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """The centres of the classes, as ln cost, ascending, and what lies between."""

    centres: tuple[float, ...] = (0.0,)

    @property
    def bounds(self) -> list[float]:
        return [(low + high) / 2 for low, high in pairwise(self.centres)]

    def class_of(self, place: float) -> int:
        return bisect_left(self.bounds, place)

    def has_left(self, place: float, number: int) -> bool:
        """Whether a key of class `number` has left it by a clear margin."""
        to = self.class_of(place)
        if to == number:
            return False
        low = number - 1 if to < number else number
        margin = MARGIN_RATIO * (self.centres[low + 1] - self.centres[low])
        return abs(place - self.bounds[low]) > margin


class Classifier:
    """Classes by running means of keys, from cheap to dear.

    With a profile it begins with the profile's classes and costs. Without, it begins with one class and makes more as
    soon as it has seen enough. An unknown key is in the dearest class until some of its requests have ended. Not for
    use by several threads at once.
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
        # Whether a key waits to be put into a class.
        self._has_new_key = False
        # Whether the classes must be made anew, since keys have come or the order of classes has changed.
        self._is_due = True
        # Whether classes have never been made.
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
        """Return the class of a request that has come and the cost to spend for it: the running mean of its key.

        An unknown key is of the dearest class, and costs as much as all but the dearest of the known keys.
        """
        known = self._keys.get(key, self._other)
        if known is None or known.class_number is None:
            return len(self._classes) - 1, self._unknown_cost
        return known.class_number, known.mean

    def learn(self, key: str, cost: float) -> tuple[int, float]:
        """Note what a request has cost, 0 or more, after it has ended. Return its class, and its base cost."""
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
        """Note that a control period has ended; say whether classes, or the class of a key, have changed."""
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
        """Put keys into classes of which enough is known now; say whether that is another than it was."""
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
        """See whether the classes are still right, and make others if not; say whether they have changed."""
        for key in self._keys.values():
            key.weight = max(key.weight * (1.0 - FORGOTTEN_RATIO), LEAST_WEIGHT)
        if len(self._keys) >= MOST_KEYS - 1:
            # Paths that somebody has made up must not keep those out that are real.
            self._keys = {name: key for name, key in self._keys.items() if key.weight > RARE_WEIGHT or name == OTHER}
        self._measure()
        before = {name: key.class_number for name, key in self._keys.items()}
        left = [(key, number) for key, number in self._settled() if self._ladder.has_left(key.place, number)]
        may_be_better = self._is_due or len(self._classes) == 1
        if self._seen >= FEWEST_REQUESTS and (left or may_be_better):
            self._divide()
            self._is_due = self._is_first = False
            for key, number in left:
                # Its own cost has changed, not only the load: what it was before says nothing any more.
                key.base = key.mean if key.class_number != number else key.base
            self._measure()
        if before == {name: key.class_number for name, key in self._keys.items()} and not self._is_news():
            return False
        self._announced = self._classes
        return True

    def _is_news(self) -> bool:
        """Whether the classes cost clearly more or less, one against another, than when they were last announced."""
        old, new = self._announced, self._classes
        if len(old) != len(new):
            return True
        ratios = [(then.mean / old[0].mean) / (now.mean / new[0].mean) for then, now in zip(old, new, strict=True)]
        return any(not 1 / NEWS_RATIO < ratio < NEWS_RATIO for ratio in ratios)

    def _settled(self) -> list[tuple[_Key, int]]:
        return [(key, key.class_number) for key in self._keys.values() if key.class_number is not None]

    def _divide(self) -> None:
        """Make classes anew of what is known about the keys."""
        known = {name: key for name, key in self._keys.items() if key.class_number is not None}
        paid = [key for key in known.values() if key.mean > LEAST_COST]
        if not paid:
            return
        bounds = _division(paid, self._most_classes, len(self._classes)).bounds
        self._number({name: bisect_left(bounds, key.place) for name, key in known.items()})

    def _number(self, groups: Mapping[str, int]) -> None:
        """Make classes of groups of keys, from cheap to dear; numbers that no key has are left out."""
        members = {
            number: [self._keys[name] for name in groups if groups[name] == number] for number in {*groups.values()}
        }
        order = sorted(members, key=lambda number: _centre(members[number]))
        for name, number in groups.items():
            self._keys[name].class_number = order.index(number)
        self._measure()

    def _measure(self) -> None:
        """Find what classes and unknown keys cost now."""
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
    """All requests in one class, each at the running mean of all: the paper's controller before it had classes."""

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
        """Note what a request has cost, 0 or more, after it has ended. Return class 0, and the base cost of all."""
        self._all.learn(cost)
        return 0, min(self._all.base, self._mean)

    def end_period(self) -> bool:
        """Say that nothing has changed."""
        return False

    @property
    def _mean(self) -> float:
        return max(self._all.mean, LEAST_COST) if self._all.seen else self._first_cost


def upper_bound(means: Sequence[float], unseen_ratio: float = UNSEEN_RATIO) -> float:
    """Return a cost that the next key exceeds with a probability of `unseen_ratio` at most, given those of others.

    That is so whatever their distribution, if keys come in no particular order (split conformal prediction); of too
    few others the dearest must do.
    """
    rank = math.ceil((len(means) + 1) * (1.0 - unseen_ratio))
    return sorted(means)[min(rank, len(means)) - 1]


def _division(keys: Sequence[_Key], most: int, present: int) -> Division:
    """Divide keys, whose requests scatter about their means, into classes."""
    places = np.array([[key.place] for key in keys]) + np.outer([key.deviation for key in keys], _SCATTER)
    weights = np.repeat([key.weight / SCATTER_POINTS for key in keys], SCATTER_POINTS)
    buckets, which = np.unique(np.floor(places.ravel() * POINTS_PER_E), return_inverse=True)
    middles = (buckets + 0.5) / POINTS_PER_E
    weight: Numbers = np.bincount(which, weights).astype(np.float64)
    return divide(middles, weight, weight * np.exp(middles), most, present)


def _centre(keys: Sequence[_Key]) -> float:
    """Return the middle of a class, as ln cost; a request counts half for itself and half for its cost."""
    weight = sum(key.weight for key in keys)
    cost = sum(key.weight * key.mean for key in keys)
    shares = [key.weight / weight + (key.weight * key.mean / cost if cost > 0 else 0.0) for key in keys]
    return sum(share * key.place for share, key in zip(shares, keys, strict=True)) / sum(shares)


def _mean(keys: Sequence[_Key]) -> float:
    """Return what a request of a class costs on average, of those that cost anything: the others never wait."""
    paid = [key for key in keys if key.mean > LEAST_COST]
    weight = sum(key.weight for key in paid)
    return sum(key.weight * key.mean for key in paid) / weight if paid else LEAST_COST


def _ascending(values: Sequence[float]) -> list[float]:
    """Return the values with those raised that are not above the one before."""
    raised: list[float] = []
    for value in values:
        raised.append(value if not raised else max(value, math.nextafter(raised[-1], math.inf)))
    return raised
