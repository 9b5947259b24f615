"""How the options of a clustered queue are read and checked."""

from __future__ import annotations

import json

import pytest

from flyball.broker.cluster.options import ClusterOptions
from flyball.errors import ClusterError


def test_options_are_the_same_after_they_were_written_and_read() -> None:
    options = ClusterOptions(policy="plain", capacity=7.5, min_members=2, provisioner="local", loads="measured")
    assert ClusterOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_only_what_differs_from_the_usual_is_written_if_so_wished() -> None:
    assert ClusterOptions(capacity=5.0).to_dict(only_changed=True) == {"capacity": 5.0}


def test_what_another_version_has_stored_is_read_as_far_as_this_one_knows_it() -> None:
    newer = {"max_members": 8, "dwell_s": 60, "mood": "good", "policy": "newest", "capacity": {"of": 1}}
    options, strange = ClusterOptions.stored(newer)
    assert options == ClusterOptions(max_members=8, dwell_s=60.0)
    assert sorted(strange) == ["capacity", "mood", "policy"]
    assert ClusterOptions.stored({"min_members": 20}) == (ClusterOptions(), ["min_members"])


def test_a_whole_number_is_a_number() -> None:
    assert ClusterOptions.from_dict({"capacity": 10}).capacity == 10.0


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"capacitiy": 5}, "orders: unknown option 'capacitiy', did you mean 'capacity'?"),
        ({"policy": "random"}, "orders: invalid policy 'random': use potential or plain"),
        ({"loads": 3}, "orders: invalid loads 3: use weights or measured"),
        ({"capacity": 0}, "orders: invalid capacity 0.0: use a number above 0"),
        ({"capacity": "10"}, "orders: invalid capacity '10': use a number above 0"),
        ({"capacity": True}, "orders: invalid capacity True"),
        ({"epsilon": float("nan")}, "orders: invalid epsilon nan: use a number of at least 0"),
        ({"min_members": 0}, "orders: invalid min_members 0: use an integer of at least 1"),
        ({"max_members": 2.5}, "orders: invalid max_members 2.5: use an integer"),
        ({"min_members": 5, "max_members": 4}, "orders: min_members 5 exceeds max_members 4"),
        ({"theta_down": 1}, "orders: theta_down must be below theta_up"),
        ({"theta_hold": 0.9}, "orders: theta_hold must be at least theta_up"),
        ({"provisioner": 3}, "orders: invalid provisioner 3: use the name of a provisioner"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_line_that_says_why(
    values: dict[str, object], problem: str
) -> None:
    with pytest.raises(ClusterError) as refused:
        ClusterOptions.from_dict(values, "orders")
    assert str(refused.value).startswith(problem)
