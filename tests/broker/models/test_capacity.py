from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flyball.broker.cluster.domain_file import read_domain_file
from flyball.broker.models.capacity import options_of_model, split_reference
from flyball.errors import ClusterError

WEIGHED = {"experiment": "amqp", "nodes": 1, "producer_weight": 0.1, "consumer_weight": 0.05, "clients_at_knee": 10.0}
KNEE = {"experiment": "mixed", "nodes": 2, "producer_weight": None, "consumer_weight": None, "clients_at_knee": 30.0}


def model(*targets: Any, **others: Any) -> str:
    return json.dumps({"version": 1, "kind": "capacity", "reason": None, "targets": targets, **others})


def test_weights_are_shares_of_a_node() -> None:
    found = options_of_model(model(WEIGHED), "capacity.json")
    assert found == {"capacity": 1.0, "producer_weight": 0.1, "consumer_weight": 0.05}


def test_without_weights_a_node_bears_the_clients_at_the_knee() -> None:
    found = options_of_model(model(KNEE), "capacity.json")
    assert found == {"capacity": 15.0, "producer_weight": 1.0, "consumer_weight": 1.0}


def test_one_of_several_experiments_is_chosen_by_its_name() -> None:
    text = model(WEIGHED, KNEE)
    assert options_of_model(text, "capacity.json", "mixed")["capacity"] == 15.0
    with pytest.raises(ClusterError, match=r"FILE#EXPERIMENT; available: amqp, mixed"):
        options_of_model(text, "capacity.json")
    assert split_reference("a/capacity.json#mixed") == ("a/capacity.json", "mixed")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a capacity model"),
        (model(WEIGHED, version=2), "unsupported version 2"),
        (model(reason="no runs"), "no runs"),
        (model({"reason": "the knee was not passed"}), "the knee was not passed"),
        (model({"clients_at_knee": 1e308, "nodes": 1e-308}), "neither a knee nor weights"),
        (model({"producer_weight": 10**400, "consumer_weight": 1.0}), "neither a knee nor weights"),
        (model({"producer_weight": math.inf, "consumer_weight": 1.0}), "neither a knee nor weights"),
    ],
)
def test_a_file_that_is_of_no_use_says_why_and_what_to_do(text: str, says: str) -> None:
    with pytest.raises(ClusterError, match=rf"^capacity\.json: .*{says}"):
        options_of_model(text, "capacity.json")


def test_a_domain_file_takes_what_it_does_not_say_from_the_model_that_it_names() -> None:
    text = '[[clusters]]\nname = "orders"\ncapacity_model = "models/capacity.json"\nconsumer_weight = 0.2\n'
    asked: list[str] = []

    def read(name: str) -> str:
        asked.append(name)
        return model(WEIGHED)

    [cluster] = read_domain_file(text, read=read).clusters or ()
    assert asked == ["models/capacity.json"]
    assert (cluster.options.capacity, cluster.options.producer_weight, cluster.options.consumer_weight) == (
        1,
        0.1,
        0.2,
    )


def test_a_domain_file_names_the_entry_whose_model_is_of_no_use() -> None:
    text = '[[clusters]]\nname = "orders"\ncapacity_model = "capacity.json"\n'
    with pytest.raises(ClusterError, match=r"line 1: .* orders: capacity_model: capacity.json: not valid JSON"):
        read_domain_file(text, read=lambda name: "{")
