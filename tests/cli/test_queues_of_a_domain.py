"""`flyball queue ...` at one node, about the queues of another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.domains import Pair, two_nodes
from tests.nodes import with_api
from typer.testing import CliRunner, Result

from flyball.broker.management import domain_nodes
from flyball.cli.main import app
from flyball.client.sync import Client

Flyball = Callable[..., Result]


@pytest.fixture
def pair(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Pair]:
    """Two nodes; the queue `orders` is the first's."""
    with two_nodes(tmp_path, new_database, **with_api(thorbang="off")) as nodes:
        with Client.connect(str(nodes[0].address("amqp"))) as client:
            client.create_queue("orders")
            client.put_many("orders", ["one", "two", "three"])
        yield nodes


@pytest.fixture
def flyball(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Flyball:
    """Run a command at the second node, which waits for the first however slow it is."""
    monkeypatch.setattr(domain_nodes, "LIMIT_S", 60.0)
    env = {"FLYBALL_URL": pair[1].url}
    env |= {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["queue", *arguments], env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def test_the_queues_of_all_nodes_are_listed_with_their_node(flyball: Flyball) -> None:
    flyball("create", "mine")
    assert [line.split() for line in flyball("list").stdout.splitlines()] == [
        ["id", "name", "node", "ready", "leased", "consumers"],
        ["1", "orders", "a", "3", "0", "0"],
        [_id_of(flyball, "mine"), "mine", "b", "0", "0", "0"],
    ]


def _id_of(flyball: Flyball, name: str) -> str:
    queues = [json.loads(line) for line in flyball("list", "--json").stdout.splitlines()]
    return next(str(queue["id"]) for queue in queues if queue["name"] == name)


def test_a_queue_of_another_node_is_looked_into_purged_and_deleted(flyball: Flyball) -> None:
    assert flyball("peek", "orders", "--count", "2").stdout == "one\ntwo\n"
    refused = flyball("delete", "orders")
    assert (refused.exit_code, "orders holds 3 messages" in refused.stderr) == (1, True)
    assert flyball("purge", "orders").stdout == "purged 3 messages from orders\n"
    assert flyball("delete", "orders").stdout == "deleted orders\n"
    assert flyball("delete", "orders").stderr.startswith("flyball: no queue 'orders'")
    assert flyball("list").stdout == ""


def test_what_the_queues_of_a_node_hold_that_is_gone_is_not_known(
    pair: Pair, flyball: Flyball, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain_nodes, "LIMIT_S", 0.2)
    pair[0].stop()
    assert flyball("list").stdout.splitlines()[1].split() == ["1", "orders", "a", "?", "?", "?"]
    refused = flyball("delete", "orders")
    assert refused.exit_code == 1
    assert refused.stderr == "flyball: node a, which serves orders, does not answer: retry\n"
