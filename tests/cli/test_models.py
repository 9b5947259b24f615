"""`flyball model` against a real node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.models import documents
from tests.nodes import RunningNode, with_api
from typer.testing import CliRunner, Result

from flyball.broker.models.history import State as RegistryState
from flyball.broker.models.kinds import READERS
from flyball.cli.main import app
from flyball.cli.models import Kind, State

ORDERS = ("capacity", "queue:orders")
Flyball = Callable[..., Result]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "data", **with_api(store="memory", thorbang="off")) as node:
        yield node


@pytest.fixture
def flyball(node: RunningNode) -> Flyball:
    """Run a command in this process."""
    environment = {"FLYBALL_URL": node.url, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}

    def run(*arguments: str, stdin: str | None = None, code: int = 0) -> Result:
        result = CliRunner().invoke(app, ["model", *arguments], input=stdin, env=environment)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def new_file(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    def new(document: dict[str, Any]) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(document))
        return str(path)

    return new


NewFile = Callable[[dict[str, Any]], str]


def test_choices_are_those_of_the_registry() -> None:
    assert [*Kind] == [*READERS]
    assert [*State] == [*RegistryState]


def test_file_is_imported_shown_and_exported(flyball: Flyball, new_file: NewFile, tmp_path: Path) -> None:
    file, evidence = new_file(documents.capacity()), new_file(documents.evidence())
    done = flyball("import", *ORDERS, file, "--evidence", evidence, "--reason", "first fit")
    assert done.stdout == "published version 1 of capacity queue:orders: in force\n"
    again = flyball("import", *ORDERS, file, "--evidence", evidence)
    assert again.stdout.startswith("version 1 of capacity queue:orders has this document already: it is in force")
    shown = flyball("show", *ORDERS).stdout
    for text in ("file:///traces/a", "5000", "1 of 1 passed", "first fit", "producer weight 0.01"):
        assert text in shown
    assert json.loads(flyball("export", *ORDERS).stdout) == documents.capacity()
    out = tmp_path / "out.json"
    flyball("export", *ORDERS, "--version", "1", "--out", str(out))
    assert json.loads(out.read_text()) == documents.capacity()
    assert json.loads(flyball("show", *ORDERS, "--version", "1", "--json").stdout)["document"] == documents.capacity()


def test_list_shows_what_is_in_use(flyball: Flyball, new_file: NewFile) -> None:
    assert flyball("list").stdout == ""
    for producer in (0.1, 0.2):
        flyball("import", *ORDERS, new_file(documents.capacity(producer)))
    flyball("import", *ORDERS, new_file(documents.capacity(0.3)), "--state", "shadow")
    flyball("import", "design", "loop:orders", new_file(documents.design()), "--state", "candidate")
    rows = [json.loads(line) for line in flyball("list", "--json").stdout.splitlines()]
    assert [(row["kind"], row["version"], row["state"]) for row in rows] == [
        ("capacity", 3, "shadow"),
        ("capacity", 2, "in_force"),
        ("design", 1, "candidate"),
    ]
    lines = flyball("list", "--kind", "capacity", "--all").stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["version", "3", "2", "1"]
    assert len(flyball("list", "--state", "superseded", "--json").stdout.splitlines()) == 1


def test_diff_shows_parameters_with_their_change(flyball: Flyball, new_file: NewFile) -> None:
    for producer in (0.1, 0.15):
        flyball("import", *ORDERS, new_file(documents.capacity(producer)))
    lines = flyball("diff", *ORDERS).stdout.splitlines()
    assert lines[0] == "version 1 (superseded) → version 2 (in force)"
    assert lines[2].split() == ["targets[clients].producer_weight", "0.1", "0.15", "+50.0", "%"]
    assert flyball("diff", *ORDERS, "2", "2").stdout.splitlines()[1] == "the documents are the same"
    assert json.loads(flyball("diff", *ORDERS, "2", "1", "--json").stdout)["differences"][0]["before"] == 0.15


def test_version_is_pinned_rolled_back_and_rejected(flyball: Flyball, new_file: NewFile) -> None:
    for producer in (0.1, 0.2):
        flyball("import", *ORDERS, new_file(documents.capacity(producer)))
    assert flyball("pin", *ORDERS).stdout == "version 2 of capacity queue:orders is in force, pinned\n"
    refused = flyball("rollback", *ORDERS, code=1)
    assert "is pinned: unpin it first" in refused.stderr
    assert flyball("unpin", *ORDERS).stdout == "version 2 of capacity queue:orders is no longer pinned\n"
    done = flyball("rollback", *ORDERS, "--reason", "members are overloaded")
    assert done.stdout == "rolled back capacity queue:orders: version 1 is in force\n"
    refused = flyball("activate", *ORDERS, "2", code=1)
    assert "was quarantined: members are overloaded; use force to overrule that" in refused.stderr
    assert flyball("activate", *ORDERS, "2", "--force").stdout == "version 2 of capacity queue:orders is in force\n"
    assert flyball("reject", *ORDERS, "1").stdout == "version 1 of capacity queue:orders is rejected\n"
    done = flyball("rollback", *ORDERS)
    assert done.stdout.endswith("no version is in force: consumers use their defaults\n")
    assert "no version is in force" in flyball("show", *ORDERS).stdout
    assert "no version of capacity queue:orders is in force" in flyball("export", *ORDERS, code=1).stderr


def test_unsound_design_needs_force(flyball: Flyball, new_file: NewFile) -> None:
    place = ("design", "loop:orders")
    file = new_file(documents.design(is_sound=False))
    assert "is not sound: it is unstable" in flyball("import", *place, file, code=1).stderr
    flyball("import", *place, file, "--force")
    assert "no, forced" in flyball("list").stdout


def test_model_is_deleted_only_when_confirmed(flyball: Flyball, new_file: NewFile) -> None:
    flyball("import", *ORDERS, "-", stdin=json.dumps(documents.capacity()))
    assert "Use --yes to confirm" in flyball("delete", *ORDERS, code=2).stderr
    assert flyball("delete", *ORDERS, "--yes").stdout == "deleted capacity queue:orders\n"
    error = flyball("show", *ORDERS, code=1).stderr
    assert error == "flyball: no capacity model for scope 'queue:%2F/orders'. See `flyball model list --all`.\n"


def test_what_is_not_a_model_is_refused_with_advice(flyball: Flyball, tmp_path: Path) -> None:
    assert "cannot read" in flyball("import", *ORDERS, str(tmp_path / "none.json"), code=1).stderr
    assert "is not valid JSON" in flyball("import", *ORDERS, "-", stdin="{", code=1).stderr
    assert "invalid capacity model: " in flyball("import", *ORDERS, "-", stdin="{}", code=1).stderr
    assert "invalid scope 'orders'" in flyball("show", "capacity", "orders", code=1).stderr
