"""Requests are put into classes by what their key has cost, and stay there as long as only the load changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.admission.classes import LEAST_COST, RequestClasses
from flyball.admission.classifier import FEW_REQUESTS, LOOK_PERIODS, MOST_KEYS, Classifier, OneClass, upper_bound
from flyball.admission.profile import Profile, profile_of

COSTS = {"home": 0.0, "view": 3.0, "category": 5.0, "region": 60.0, "about": 80.0}
SHARES = {"home": 4, "view": 8, "category": 8, "region": 1, "about": 1}


class Site:
    """Reports to a classifier what its requests cost, 20 in each period; costs scatter log-normally."""

    def __init__(self, classifier: RequestClasses, costs: Mapping[str, float] = COSTS) -> None:
        self.classifier = classifier
        self.costs = dict(costs)
        self.slowness = 1.0
        self._random = Random(1)

    def go_on(self, periods: int) -> int:
        """Serve for some periods; return in how many of them something has changed."""
        changes = 0
        keys = list(self.costs)
        shares = [SHARES.get(key, 1) for key in keys]
        for _ in range(periods):
            for key in self._random.choices(keys, shares, k=20):
                scatter = self._random.lognormvariate(-0.08, 0.4)
                self.classifier.learn(key, self.costs[key] * self.slowness * scatter)
            changes += self.classifier.end_period()
        return changes

    @property
    def classes(self) -> dict[str, int]:
        return {key: self.classifier.classify(key)[0] for key in self.costs}


SMALL_AND_LARGE = {"home": 0, "view": 0, "category": 0, "region": 1, "about": 1}


def profile() -> Profile:
    random = Random(2)
    rows = [(key, COSTS[key] * random.lognormvariate(-0.08, 0.4)) for key in SHARES for _ in range(20 * SHARES[key])]
    return profile_of(rows, "ms")


def test_without_a_profile_there_is_one_class_at_first() -> None:
    classifier = Classifier(first_cost=7.0)
    assert classifier.classify("view") == (0, 7.0)
    assert [found.mean for found in classifier.classes] == [7.0]


def test_classes_are_found_after_some_requests() -> None:
    site = Site(Classifier())
    assert site.go_on(10) > 0
    assert site.classes == SMALL_AND_LARGE


def test_a_request_costs_the_running_mean_of_its_key() -> None:
    site = Site(Classifier())
    site.go_on(400)
    for key, cost in COSTS.items():
        assert site.classifier.classify(key)[1] == pytest.approx(cost, rel=0.3)


def test_classes_cost_the_mean_of_those_of_their_requests_that_cost_anything() -> None:
    site = Site(Classifier())
    site.go_on(10 * LOOK_PERIODS)
    small, large = site.classifier.classes
    assert small.mean == pytest.approx((8 * 3 + 8 * 5) / 16, rel=0.1)
    assert large.mean == pytest.approx(70, rel=0.2)
    assert small.below is not None
    assert small.mean < small.below < large.mean
    assert large.below is None


def test_a_profile_is_believed_from_the_first_request() -> None:
    site = Site(Classifier(profile()))
    assert site.classes == SMALL_AND_LARGE
    assert site.classifier.unit == "ms"
    assert site.classifier.classify("about") == (1, profile().keys["about"].mean)
    assert site.classifier.keys["about"].base == profile().keys["about"].mean


def test_a_right_profile_is_never_changed() -> None:
    site = Site(Classifier(profile()))
    assert site.go_on(20 * LOOK_PERIODS) == 0


def test_a_wrong_profile_is_corrected() -> None:
    site = Site(Classifier(profile()), COSTS | {"view": 90.0, "about": 2.0})
    site.go_on(5 * LOOK_PERIODS)
    assert site.classes == SMALL_AND_LARGE | {"view": 1, "about": 0}


@pytest.mark.parametrize("slowness", [0.25, 4.0])
def test_what_slows_all_requests_alike_changes_no_class(slowness: float) -> None:
    site = Site(Classifier(profile()))
    site.go_on(2 * LOOK_PERIODS)
    site.slowness = slowness
    for _ in range(10):
        site.go_on(LOOK_PERIODS)
        assert site.classes == SMALL_AND_LARGE
    assert site.classifier.classify("about")[1] == pytest.approx(80 * slowness, rel=0.3)


def test_base_costs_do_not_grow_with_the_load() -> None:
    site = Site(Classifier(profile()))
    site.go_on(4 * LOOK_PERIODS)
    before = [site.classifier.keys[key].base for key in COSTS]
    site.slowness = 4.0
    site.go_on(10 * LOOK_PERIODS)
    assert [site.classifier.keys[key].base for key in COSTS] == pytest.approx(before, rel=0.1)
    assert before == pytest.approx(list(COSTS.values()), rel=0.3)


def test_a_key_that_has_become_dear_changes_its_class_once_and_its_base_cost() -> None:
    site = Site(Classifier(profile()))
    site.go_on(2 * LOOK_PERIODS)
    site.costs["category"] = 75.0
    changes = site.go_on(LOOK_PERIODS)
    assert site.classes == SMALL_AND_LARGE | {"category": 1}
    assert changes == 1
    assert site.go_on(4 * LOOK_PERIODS) == 0
    assert site.classifier.keys["category"].base == pytest.approx(75, rel=0.3)


def test_a_key_near_the_bound_does_not_go_to_and_fro() -> None:
    costs = {"view": 2.0, "edge": 12.0, "search": 72.0}
    site = Site(Classifier(), costs)
    site.go_on(2 * LOOK_PERIODS)
    random = Random(4)
    numbers: set[tuple[int, ...]] = set()
    for _ in range(40):
        site.slowness = random.uniform(0.7, 1.4)
        site.go_on(LOOK_PERIODS)
        numbers.add(tuple(site.classes.values()))
    assert len(numbers) == 1


def test_an_unknown_key_is_of_the_dearest_class_at_the_cost_of_the_dearest_keys() -> None:
    classifier = Classifier(profile())
    number, cost = classifier.classify("new")
    assert number == 1
    assert cost == max(classifier.keys[key].mean for key in COSTS)


def test_a_key_is_known_after_a_few_requests() -> None:
    classifier = Classifier(profile())
    for _ in range(FEW_REQUESTS - 1):
        classifier.learn("new", 2.0)
    assert not classifier.end_period()
    assert classifier.classify("new")[0] == 1
    classifier.learn("new", 2.0)
    assert classifier.end_period()
    assert classifier.classify("new") == (0, 2.0)


def test_as_many_classes_are_made_as_there_are_up_to_four() -> None:
    costs = {f"key {number}": 12.0**number for number in range(6)}
    site = Site(Classifier(), {key: costs[key] for key in list(costs)[:3]})
    site.go_on(LOOK_PERIODS)
    assert [found.number for found in site.classifier.classes] == [0, 1, 2]
    site = Site(Classifier(), costs)
    site.go_on(LOOK_PERIODS)
    assert 2 <= len(site.classifier.classes) <= 4


def test_a_profile_of_more_classes_than_wanted_is_divided_anew() -> None:
    rows = [(f"key {number}", 20.0**number) for number in range(4) for _ in range(20)]
    found = profile_of(rows, "ms")
    assert len(found.classes) == 4
    assert len(Classifier(found, most_classes=2).classes) == 2


def test_costs_without_a_gap_are_one_class() -> None:
    site = Site(Classifier(), {"a": 4.0, "b": 5.0, "c": 6.0})
    assert site.go_on(5 * LOOK_PERIODS) == 0
    assert len(site.classifier.classes) == 1


def test_a_new_key_of_a_new_kind_makes_a_class() -> None:
    site = Site(Classifier(), {"a": 4.0, "b": 5.0})
    site.go_on(2 * LOOK_PERIODS)
    site.costs["search"] = 500.0
    site.go_on(LOOK_PERIODS)
    assert site.classes == {"a": 0, "b": 0, "search": 1}


def test_a_site_without_any_cost_is_one_class_with_a_cost_above_0() -> None:
    site = Site(Classifier(), {"home": 0.0, "about": 0.0})
    site.go_on(2 * LOOK_PERIODS)
    assert site.classifier.classify("home") == (0, 0.0)
    assert [found.mean for found in site.classifier.classes] == [LEAST_COST]
    assert site.classifier.keys["home"].base == 0.0


def test_there_is_room_for_so_many_keys_and_the_others_are_one() -> None:
    classifier = Classifier()
    for number in range(2 * MOST_KEYS):
        classifier.learn(f"/{number}", 1.0 if number < 100 else 50.0)
    classifier.end_period()
    assert len(classifier.keys) == MOST_KEYS
    assert classifier.keys["other"].requests == MOST_KEYS + 1
    assert classifier.classify("/never seen") == (classifier.keys["other"].class_number, 50.0)


def test_keys_that_were_made_up_once_do_not_keep_real_ones_out_for_ever() -> None:
    classifier = Classifier()
    for number in range(2 * MOST_KEYS):
        classifier.learn(f"/made up/{number}", 1.0)
    for _ in range(15 * LOOK_PERIODS):
        classifier.learn("real", 5.0)
        classifier.end_period()
    assert classifier.keys["real"].mean == 5.0
    assert len(classifier.keys) < 10


def test_people_see_what_is_known_of_each_key() -> None:
    classifier = Classifier(profile())
    classifier.learn("about", 80.0)
    known = classifier.keys["about"]
    assert (known.class_number, known.requests) == (1, 1)
    assert known.base == pytest.approx(profile().keys["about"].mean, rel=0.02)
    assert classifier.keys["view"].requests == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 1e9)), max_size=300))
def test_whatever_requests_cost_classes_are_sound(costs: list[tuple[str, float]]) -> None:
    classifier = Classifier()
    for number, (key, cost) in enumerate(costs):
        classifier.learn(key, cost)
        if number % 7 == 0:
            for _ in range(LOOK_PERIODS):
                classifier.end_period()
        classes = classifier.classes
        means = [found.mean for found in classes]
        assert [found.number for found in classes] == list(range(len(classes)))
        assert means == sorted(means)
        assert all(math.isfinite(mean) and mean >= LEAST_COST for mean in means)
        which, expected = classifier.classify(key)
        assert 0 <= which < len(classes)
        assert 0 <= expected < math.inf
        known = classifier.keys[key]
        assert 0 <= known.base <= known.mean


def test_one_class_charges_the_mean_of_all() -> None:
    one = OneClass(first_cost=4.0)
    assert one.classify("a") == (0, 4.0)
    for cost in (1.0, 9.0):
        one.learn(str(cost), cost)
    assert one.classify("a") == (0, 5.0)
    assert not one.end_period()
    assert [found.mean for found in one.classes] == [5.0]
    assert dict(one.keys) == {}


def test_one_class_keeps_the_least_mean_as_its_base() -> None:
    one = OneClass()
    for cost in [2.0] * 100 + [8.0] * 500:
        _, base_cost = one.learn("a", cost)
    assert one.classify("a")[1] == pytest.approx(8.0, rel=0.01)
    assert base_cost == pytest.approx(2.0)


def test_the_next_key_is_seldom_dearer_than_the_bound() -> None:
    random = Random(3)
    trials = 4000
    exceeded = 0
    for _ in range(trials):
        *others, unseen = (random.lognormvariate(0, 2) for _ in range(20))
        exceeded += unseen > upper_bound(others)
    assert exceeded / trials <= 0.115


def test_of_few_keys_the_dearest_is_the_bound() -> None:
    assert upper_bound([3.0, 1.0, 2.0]) == 3.0
    assert upper_bound([float(number) for number in range(1, 100)]) == 90.0
