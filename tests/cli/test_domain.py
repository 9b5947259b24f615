"""`flyball domain`: the commands against a real node, whose domain is a model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster.models import ModelAdministration, queue_facts
from tests.nodes import RunningNode, with_api
from typer.testing import CliRunner, Result

from flyball.broker.cluster.commands import carry_out, install
from flyball.broker.cluster.facts import DomainFacts, MoveFacts
from flyball.cli.domain import actions
from flyball.cli.main import app

Flyball = Callable[..., Result]
BIN = Path(sys.executable).parent
QUIET = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}

FILE = """
[[nodes]]
name = "n1"

[[nodes]]
name = "n2"

[[clusters]]
name = "orders"
members = ["n1", "n2"]
"""


class SlowDomain(ModelAdministration):
    """Nodes come and go while one looks at the domain for the third time."""

    looks = 0
    is_stuck = False

    async def read(self) -> DomainFacts:
        self.looks += 1
        if self.looks % 3 == 0 and not self.is_stuck:
            await self.settle()
        return await super().read()


@pytest.fixture
def domain() -> SlowDomain:
    domain = SlowDomain()
    domain.arrives_later = True
    domain.node("n1")
    domain.node("n2", "local")
    return domain


@pytest.fixture
def node(domain: SlowDomain, tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "data", **with_api(store="memory", thorbang="off", amqp="off")) as node:
        node.call(lambda running: install(running.hub, partial(carry_out, domain)))
        yield node


@pytest.fixture
def address(node: RunningNode) -> str:
    return node.url


@pytest.fixture
def flyball(address: str, monkeypatch: pytest.MonkeyPatch) -> Flyball:
    monkeypatch.setattr(actions, "POLL_S", 0.0)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin, env={"FLYBALL_URL": address, **QUIET})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def documents(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def error(result: Result) -> str:
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("flyball: ")
    return result.stderr.removeprefix("flyball: ").rstrip("\n")


# Showing


def test_show_says_what_it_does_not_know(flyball: Flyball, domain: SlowDomain) -> None:
    unknown = queue_facts("mail", ready=None, unacked=None, producers=None, consumers=None)
    domain.nodes["n2"]["queues"].append(unknown)
    shown = [line for line in lines(flyball("domain", "show")) if "mail" in line]
    assert [line.strip("│├└─ ") for line in shown] == ["queue mail: ? ready, ? unacknowledged, ? consumers"]


def test_show_is_a_tree_of_everything(flyball: Flyball, domain: SlowDomain) -> None:
    flyball("domain", "cluster", "create", "orders", "--member", "n1", "--capacity", "10")
    flyball("domain", "cluster", "add", "orders", "n2")
    first, second = domain.clusters["/", "orders"].members.values()
    first.producers, first.consumers, first.ready = 3, 2, 17
    second.producers, second.is_marked = 1, True
    domain.nodes["n2"]["queues"].append(queue_facts("mail", "shop", ready=5, consumers=1))
    domain.topic("news", subscriptions=("paper",))
    domain.topic("news.sport", "news")
    assert lines(flyball("domain", "show")) == [
        "domain of 2 nodes, led by n1",
        "├── nodes",
        "│   ├── n1: up, epoch 1, lease 4.5 s, started by hand, leader",
        "│   │   ├── amqp 127.0.0.1:5601",
        "│   │   └── telesto 127.0.0.1:5601",
        "│   └── n2: up, epoch 1, lease 4.5 s, started by local",
        "│       ├── amqp 127.0.0.1:5602",
        "│       ├── telesto 127.0.0.1:5602",
        "│       └── queue mail in shop: 5 ready, 0 unacknowledged, 1 consumer",
        "├── clustered queues",
        "│   └── orders: 2 members, 4 producers, 2 consumers, load 0.60",
        "│       ├── n1: 3 producers (x 0.75), 2 consumers (y 1.00), load 0.50 of capacity 10, 17 ready, "
        "0 unacknowledged, fixed",
        "│       └── n2: 1 producer (x 0.25), 0 consumers (y 0.00), load 0.10 of capacity 10, 0 ready, "
        "0 unacknowledged, fixed, draining",
        "├── topics",
        "│   └── news, 1 subscription: paper",
        "│       └── news.sport, 0 subscriptions",
        "└── connection factories",
        "    ├── n1: to n1",
        "    ├── n2: to n2",
        "    └── domain: clustered, to n1, n2",
    ]


def test_show_gives_machines_the_same_facts(flyball: Flyball) -> None:
    (facts,) = documents(flyball("domain", "show", "--json"))
    assert facts["leader"] == "n1"
    assert [(node["name"], node["provisioner"]) for node in facts["nodes"]] == [("n1", None), ("n2", "local")]


def test_topics_are_created_below_their_parents_listed_moved_and_deleted(flyball: Flyball) -> None:
    flyball("domain", "topic", "create", "a")
    flyball("domain", "topic", "create", "b", "--parent", "a")
    assert documents(flyball("domain", "topic", "list", "--json")) == [
        {"name": "a", "vhost": "/", "parent": None},
        {"name": "b", "vhost": "/", "parent": "a"},
    ]
    assert lines(flyball("domain", "topic", "list")) == ["name  vhost  parent", "a     /", "b     /      a"]
    assert lines(flyball("domain", "topic", "move", "b")) == ["topic b is at the top"]
    assert lines(flyball("domain", "topic", "list")) == ["name  vhost  parent", "a     /", "b     /"]
    assert documents(flyball("domain", "topic", "move", "b", "--parent", "a", "--json")) == [
        {"name": "b", "vhost": "/", "parent": "a"}
    ]
    assert lines(flyball("domain", "topic", "delete", "b")) == ["deleted topic b"]


def test_a_clustered_queue_is_shown_with_its_options_and_why_it_is_so(flyball: Flyball, domain: SlowDomain) -> None:
    flyball("domain", "cluster", "create", "orders", "--member", "n1")
    domain.clusters["/", "orders"].decisions = [
        {"at": "2026-05-04T10:20:30+00:00", "what": "add a member on n2", "reason": "load would be 1.20"}
    ]
    shown = lines(flyball("domain", "cluster", "show", "orders"))
    assert shown[0] == "orders: 1 member, 0 producers, 0 consumers, load 0.00"
    assert shown[2].split() == [
        "node",
        "producers",
        "x",
        "consumers",
        "y",
        "load",
        "capacity",
        "ready",
        "unacked",
        "given",
    ]
    assert shown[3].split() == ["n1", "0", "0.00", "0", "0.00", "0.00", "100", "0", "0", "0", "fixed"]
    assert any(line.split() == ["max_members", "16"] for line in shown)
    assert shown[-1].endswith("add a member on n2  load would be 1.20")
    (facts,) = documents(flyball("domain", "cluster", "show", "orders", "--json"))
    assert facts["decisions"][0]["reason"] == "load would be 1.20"


# Changing


def test_a_node_is_added_and_removed_and_waited_for(flyball: Flyball, domain: SlowDomain) -> None:
    assert lines(flyball("domain", "node", "add", "n3", "--provisioner", "cloud")) == ["node n3 is up"]
    assert domain.nodes["n3"]["provisioner"] == "cloud"
    assert lines(flyball("domain", "node", "remove", "n3")) == ["node n3 is gone"]


@pytest.fixture
def removal_stops_it(
    domain: SlowDomain, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> Iterator[threading.Thread]:
    """Whichever node is removed, the one that is asked stops; so it does not say that anything is done."""
    domain.is_stuck = True
    for limit in ("ANSWER_S", "LAST_ANSWER_S"):
        monkeypatch.setattr(actions, limit, 0.5)
    stopping = threading.Thread(target=node.stop)

    async def remove_node(name: str, *, force: bool) -> None:
        stopping.start()

    monkeypatch.setattr(domain, "remove_node", remove_node)
    yield stopping
    stopping.join()


@pytest.mark.usefixtures("removal_stops_it")
def test_the_node_that_is_asked_can_be_removed_itself(flyball: Flyball, domain: SlowDomain) -> None:
    domain.asked = "n1"
    assert lines(flyball("domain", "node", "remove", "n1")) == ["node n1 is gone"]


@pytest.mark.usefixtures("removal_stops_it")
def test_nodes_with_equal_ports_are_told_apart(flyball: Flyball, domain: SlowDomain, address: str) -> None:
    domain.asked = "n1"
    domain.nodes["n2"]["addresses"] = {"telesto": f"elsewhere:{address.rpartition(':')[2]}"}
    assert "n2" not in error(flyball("domain", "node", "remove", "n2"))


@pytest.mark.usefixtures("removal_stops_it")
def test_apply_may_remove_the_node_that_is_asked(flyball: Flyball, domain: SlowDomain) -> None:
    domain.asked = "n1"
    step = "- node n1, after draining"
    said = lines(flyball("domain", "apply", "-", "--yes", "--prune", stdin='[[nodes]]\nname = "n2"\n'))
    assert said == [step, f"[1/1] {step}"]


def test_nobody_has_to_wait(flyball: Flyball, domain: SlowDomain) -> None:
    domain.is_stuck = True
    assert documents(flyball("domain", "node", "add", "n3", "--wait", "0", "--json")) == [
        {"name": "n3", "state": "joining"}
    ]


def test_what_takes_too_long_goes_on_and_is_told(flyball: Flyball, domain: SlowDomain) -> None:
    domain.is_stuck = True
    told = error(flyball("domain", "node", "add", "n3", "--wait", "0.01"))
    assert told == "timed out after 0.01 s: node n3 joins. It continues; see `flyball domain show`."


def test_a_dead_node_needs_force(flyball: Flyball, domain: SlowDomain) -> None:
    domain.node("n3", "local", state="dead")
    assert "is dead and cannot be drained: remove it with --force" in error(flyball("domain", "node", "remove", "n3"))
    assert lines(flyball("domain", "node", "remove", "n3", "--force")) == ["node n3 is gone"]


def test_options_override_capacity_and_weights_of_a_model(flyball: Flyball, tmp_path: Path) -> None:
    file = tmp_path / "capacity.json"
    fitted = {"experiment": "amqp", "nodes": 1, "producer_weight": 0.1, "consumer_weight": 0.05}
    file.write_text(json.dumps({"version": 1, "kind": "capacity", "reason": None, "targets": [fitted]}))
    create = ("domain", "cluster", "create", "orders", "--capacity-model")
    flyball(*create, f"{file}#amqp", "--option", "consumer_weight=0.2")
    (facts,) = documents(flyball("domain", "cluster", "show", "orders", "--json"))
    found = [facts["options"][name] for name in ("capacity", "producer_weight", "consumer_weight")]
    assert found == [1.0, 0.1, 0.2]
    assert "cannot read" in error(flyball(*create, str(tmp_path / "none.json")))


def test_a_clustered_queue_is_created_changed_and_deleted(flyball: Flyball) -> None:
    created = flyball(
        *("domain", "cluster", "create", "orders", "--vhost", "shop", "--min-members", "2", "--max-members", "4"),
        *("--capacity", "50", "--provisioner", "cloud", "--option", "policy=plain", "--option", "dwell_s=60"),
    )
    assert lines(created) == ["created clustered queue orders in shop"]
    (facts,) = documents(flyball("domain", "cluster", "show", "orders", "--vhost", "shop", "--json"))
    wanted = {
        "min_members": 2,
        "max_members": 4,
        "capacity": 50.0,
        "provisioner": "cloud",
        "policy": "plain",
        "dwell_s": 60.0,
    }
    assert wanted.items() <= facts["options"].items()
    changed = flyball("domain", "cluster", "change", "orders", "max_members=8", "provisioner=", "--vhost", "shop")
    assert lines(changed) == ["clustered queue orders in shop has max_members 8, provisioner none"]
    (facts,) = documents(flyball("domain", "cluster", "show", "orders", "--vhost", "shop", "--json"))
    assert (facts["options"]["max_members"], facts["options"]["capacity"]) == (8, 50.0)
    deleted = flyball("domain", "cluster", "delete", "orders", "--vhost", "shop", "--json")
    assert documents(deleted) == [{"name": "orders", "vhost": "shop", "deleted": True}]


def test_members_come_and_go(flyball: Flyball) -> None:
    flyball("domain", "cluster", "create", "orders", "--member", "n1")
    assert lines(flyball("domain", "cluster", "add", "orders", "n2")) == ["clustered queue orders has a member on n2"]
    assert lines(flyball("domain", "cluster", "remove", "orders", "n1")) == ["orders has no member on n1"]
    assert "is the last of 'orders'" in error(flyball("domain", "cluster", "remove", "orders", "n2"))


def test_deleting_messages_needs_a_yes(flyball: Flyball, domain: SlowDomain) -> None:
    flyball("domain", "cluster", "create", "orders", "--member", "n1")
    domain.member("/", "orders", "n1").ready = 7
    told = error(flyball("domain", "cluster", "delete", "orders"))
    assert told == "orders holds 7 messages. Use --yes to delete them with it."
    assert lines(flyball("domain", "cluster", "delete", "orders", "--yes")) == ["deleted clustered queue orders"]


def test_rebalance_shows_what_moves(flyball: Flyball, domain: SlowDomain) -> None:
    domain.moves = [
        {
            "what": "queue",
            "vhost": "/",
            "name": "mail",
            "source": "n1",
            "destination": "n2",
            "reason": "n2 bears less",
        }
    ]
    headings, row = lines(flyball("domain", "rebalance", "--dry-run"))
    assert headings.split() == ["what", "name", "from", "to", "reason"]
    assert row.split() == ["queue", "mail", "n1", "n2", "n2", "bears", "less"]
    (move,) = documents(flyball("domain", "rebalance", "--json"))
    assert move["destination"] == "n2"
    assert lines(flyball("domain", "rebalance")) == ["nothing to move: the nodes are balanced"]


def test_rebalance_waits_until_the_queues_have_moved(flyball: Flyball, domain: SlowDomain) -> None:
    here, there = (domain.nodes[name]["queues"] for name in ("n1", "n2"))
    here.append(queue_facts("mail"))

    async def settle() -> None:
        there.append(here.pop())

    domain.settle = settle  # type: ignore[method-assign]
    move: MoveFacts = {
        "what": "queue",
        "vhost": "/",
        "name": "mail",
        "source": "n1",
        "destination": "n2",
        "reason": "n2 bears less",
    }
    domain.moves = [move]
    assert documents(flyball("domain", "rebalance", "--json")) == [move]
    assert (domain.looks, len(there)) == (3, 1)
    here.append(there.pop())
    domain.is_stuck, domain.moves = True, [move]
    assert "timed out after 0.01 s: 1 queue moves." in error(flyball("domain", "rebalance", "--wait", "0.01"))


def test_place_prints_an_address(flyball: Flyball, domain: SlowDomain) -> None:
    flyball("domain", "cluster", "create", "orders", "--member", "n1", "--member", "n2")
    domain.member("/", "orders", "n1").producers = 1
    assert lines(flyball("domain", "place", "orders", "--role", "producer")) == ["127.0.0.1:5602"]
    assert documents(
        flyball("domain", "place", "orders", "--role", "consumer", "--protocol", "telesto", "--json")
    ) == [{"node": "n1", "protocol": "telesto", "address": "127.0.0.1:5601"}]
    assert error(flyball("domain", "place", "orders", "--protocol", "http")) == (
        "node n1 does not listen for http, only for amqp, telesto. Use --protocol."
    )


# The file


def test_apply_shows_the_plan_and_does_it_once(flyball: Flyball, tmp_path: Path) -> None:
    file = tmp_path / "domain.toml"
    file.write_text(FILE + '[[nodes]]\nname = "n3"\n')
    plan = ["+ node n3, started by local", "+ clustered queue orders on n1, n2"]
    assert lines(flyball("domain", "apply", str(file), "--dry-run")) == plan
    assert lines(flyball("domain", "apply", str(file), "--yes")) == [*plan, f"[1/2] {plan[0]}", f"[2/2] {plan[1]}"]
    assert lines(flyball("domain", "apply", str(file))) == ["nothing to do: the domain matches the file"]


def test_apply_removes_only_with_prune(flyball: Flyball) -> None:
    flyball("domain", "cluster", "create", "old")
    kept = "  not in the file, kept without --prune: clustered queue old with 0 messages"
    assert kept in lines(flyball("domain", "apply", "-", "--yes", stdin=FILE))
    plan, *done = documents(flyball("domain", "apply", "-", "--yes", "--prune", "--json", stdin=FILE))
    assert plan == {
        "steps": [
            {
                "sign": "-",
                "words": "clustered queue old with 0 messages",
                "command": "domain.cluster.delete",
                "arguments": {"name": "old", "vhost": "/"},
            }
        ],
        "kept": [],
    }
    assert done == [{"done": "- clustered queue old with 0 messages", "number": 1, "of": 1}]


@pytest.mark.parametrize(("answer", "is_done"), [(b"y\n", True), (b"n\n", False)])
def test_apply_asks_at_a_terminal(
    address: str, domain: SlowDomain, tmp_path: Path, answer: bytes, is_done: bool
) -> None:
    file = tmp_path / "domain.toml"
    file.write_text(FILE)
    main, side = os.openpty()
    with subprocess.Popen(
        [BIN / "flyball", "domain", "apply", str(file), "--url", address],
        stdin=side,
        stderr=side,
        stdout=side,
    ) as process:
        os.close(side)
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            asked += os.read(main, 1000)
        assert b"Apply 1 step?" in asked
        os.write(main, answer)
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error.
            while os.read(main, 1000):
                pass
    os.close(main)
    assert process.returncode == (0 if is_done else 1)
    assert (("/", "orders") in domain.clusters) == is_done


# Errors


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["node", "add", "n1"], "node 'n1' already exists: choose another name"),
        (["node", "add", "../x"], "invalid node name '../x'"),
        (["node", "add", "n3", "--provisioner", "no"], "unknown provisioner 'no'; available: cloud, local (see"),
        (["node", "remove", "no"], "unknown node 'no'"),
        (["cluster", "create", "q", "--member", "no"], "unknown node 'no'"),
        (["cluster", "create", "q", "--max-members", "0"], "invalid max_members 0: use an integer of at least 1"),
        (["cluster", "create", "q", "--provisioner", "no"], "unknown provisioner 'no'; available: cloud, local"),
        (["cluster", "create", "q", "--member", "n1", "--member", "n2", "--max-members", "1"], "2 members exceed"),
        (["cluster", "create", "known"], "clustered queue 'known' already exists"),
        (["cluster", "change", "known", "max_member=3"], "unknown option 'max_member', did you mean 'max_mem"),
        (["cluster", "change", "no", "max_members=3"], "no clustered queue 'no'"),
        (["cluster", "show", "no"], "no clustered queue 'no'. See `flyball domain show`, or create it with"),
        (["cluster", "delete", "no"], "no clustered queue 'no'"),
        (["cluster", "add", "no", "n1"], "no clustered queue 'no'"),
        (["cluster", "add", "known", "no"], "unknown node 'no'"),
        (["cluster", "add", "known", "dead"], "node 'dead' is dead: a member needs a node that is up"),
        (["cluster", "remove", "known", "n2"], "node 'n2' has no member of clustered queue 'known'"),
        (["place", "no"], "no clustered queue 'no'"),
        (["apply", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["show", "--url", "http://127.0.0.1:1"], "Start a node with `flyball serve`"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    flyball: Flyball, domain: SlowDomain, arguments: list[str], problem: str
) -> None:
    domain.node("dead", state="dead")
    flyball("domain", "cluster", "create", "known", "--member", "n1")
    assert problem in error(flyball("domain", *arguments))


def test_the_only_node_cannot_be_removed(flyball: Flyball) -> None:
    flyball("domain", "node", "remove", "n2")
    assert "node 'n1' is the only node" in error(flyball("domain", "node", "remove", "n1"))


def test_an_error_in_the_file_names_its_line(flyball: Flyball, tmp_path: Path) -> None:
    file = tmp_path / "domain.toml"
    file.write_text(FILE.replace("members", "memebrs"))
    told = error(flyball("domain", "apply", str(file)))
    assert told.startswith(f"{file}, line 8: [[clusters]] orders: unknown option 'memebrs'")


def test_without_a_terminal_nothing_is_done_unasked(flyball: Flyball, domain: SlowDomain, tmp_path: Path) -> None:
    file = tmp_path / "domain.toml"
    file.write_text(FILE)
    result = flyball("domain", "apply", str(file))
    assert result.stdout == "+ clustered queue orders on n1, n2\n"
    assert "Use --yes to apply the plan" in error(result)
    assert domain.clusters == {}


def test_an_option_without_a_value_is_wrong_use(flyball: Flyball) -> None:
    result = flyball("domain", "cluster", "change", "orders", "max_members")
    assert (result.exit_code, result.stderr) == (2, "flyball: invalid option 'max_members': use KEY=VALUE.\n")
