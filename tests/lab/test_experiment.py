"""Descriptions of experiments: what they accept, and how mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.errors import LabError
from flyball.lab.experiment import experiments_in, find, label_of, load, shipped_experiments
from tests.lab.descriptions import TINY, described

SWEPT = (
    TINY
    + """
[sweep]
"workload.clients" = [1, 2]
target.store = ["memory", "null"]
[[view]]
kind = "curve"
x = "workload.clients"
series = "target.store"
[[reference]]
label = "table 8"
factors = { "workload.clients" = 2 }
mean = 693.0
low = -88.4
high = 68.1
"""
)


def test_cells_are_all_combinations_of_levels_with_their_values(tmp_path: Path) -> None:
    experiment = described(tmp_path, SWEPT)
    cells = list(experiment.cells())
    assert [(cell["workload.clients"], cell["target.store"]) for cell in cells] == [
        (1, "memory"),
        (1, "null"),
        (2, "memory"),
        (2, "null"),
    ]
    last = experiment.at(cells[-1])
    assert (last.workload["clients"], last.target.store) == (2, "null")


def test_without_a_sweep_there_is_one_cell(tmp_path: Path) -> None:
    assert list(described(tmp_path, TINY).cells()) == [{}]


def test_a_level_may_set_several_values_under_a_label(tmp_path: Path) -> None:
    level = '{ label = "2 big", "workload.clients" = 2, workload.body_bytes = 1000 }'
    experiment = described(tmp_path, TINY + f"[sweep]\nmix = [{level}]")
    (cell,) = experiment.cells()
    assert label_of(cell["mix"]) == "2 big"
    workload = experiment.at(cell).workload
    assert (workload["clients"], workload["body_bytes"]) == (2, 1000)


def test_a_store_that_keeps_nothing_is_not_asked_for_its_messages(tmp_path: Path) -> None:
    experiment = described(tmp_path, SWEPT)
    kept = [experiment.at(cell).workload.get("keeps_messages", True) for cell in experiment.cells()]
    assert kept == [True, False, True, False]


def test_a_password_in_a_level_is_not_shown() -> None:
    assert "secret" not in str(label_of("postgresql://me:secret@host/database"))


def test_a_recorded_rate_lies_beside_the_description(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("0,10\n1,20\n")
    experiment = described(tmp_path, TINY.replace("clients = 2", 'rate_curve = "curve.csv"'))
    assert experiment.workload["rate_curve"] == str(tmp_path / "curve.csv")


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("store =", "stor =", "target.stor: no such key; did you mean store?"),
        ('title = "Tiny"', 'title = "Tiny"\nneeds = "a b"', "needs: 'a b' is not a name of an experiment"),
        ("title", "titel", "titel: no such key; did you mean title?"),
        ('title = "Tiny"', "", "title is missing"),
        ("[run]", "[runs]", "runs: no such key; did you mean run?"),
        ('"memory"\n', '"mysql"\n', "target.store: not a valid store: use embedded, memory, null or postgresql://"),
        ("clients = 2", "client = 2", "workload.client: no such key; did you mean clients?"),
        ("clients = 2", "body_bytes = -1", "workload.body_bytes: Input should be greater than or equal to 0, not -1"),
        ('"send_and_pop"', '"send_an_pop"', "workload.kind: there is no workload 'send_an_pop'"),
        ("clients = 2", 'protocol = "http"', "workload.protocol: "),
        ("length_s = 0.4", "length_s = 0", "run.length_s: Input should be greater than 0, not 0"),
        ("[1, 2]", "3", "sweep.workload.clients: Input should be a valid list, not 3"),
        ("[1, 2]", "[1, 2, 2]", "sweep.workload.clients: a level stands there twice"),
        ("[1, 2]", "[{ workload.clients = 2 }]", "sweep.workload.clients: a level that is a table needs a label"),
        ("[run]", "[quick]\nsweep = 3\n[run]", "quick.sweep: give a table of factors and their levels, not 3"),
        (
            "[run]",
            "[quick]\nsweep = { mix = [{ x = 1 }] }\n[run]",
            "sweep.mix: a level that is a table needs a label",
        ),
        (
            "[run]",
            "[quick.sweep]\nworkload.clients = [0]\n[run]",
            "workload.clients: Input should be greater than or",
        ),
        ("[1, 2]", "[2, 0]", "workload.clients: Input should be greater than or equal to 1, not 0"),
        ('"workload.clients" =', '"wordload.clients" =', "wordload.clients: no such value"),
        ('kind = "curve"', 'kind = "curves"', "view.1.kind: Input should be 'curve', "),
        ('x = "workload.clients"', 'x = "workload.client"', "view 1: 'workload.client' is not swept; did you mean"),
        ('kind = "curve"', 'kind = "effects"\nmetric', "not a TOML file"),
        (
            '{ "workload.clients" = 2 }',
            '{ "workload.clients" = 3 }',
            "reference 'table 8': 3 is not a level of workload",
        ),
        ('{ "workload.clients" = 2 }', "{ workload = 2 }", "reference 'table 8': 'workload' is not swept"),
        ('store = "memory"', 'kind = "rabbitmq"', "workload.protocol: RabbitMQ speaks amqp, not thorbang"),
        ('store = "memory"', 'kind = "foreign"', "target: a foreign target, and no other, needs addresses"),
        ('store = "memory"', 'hosts = ["east"]', "target.hosts.1: 'east' is not a host: give ssh://user@host:port"),
        ('store = "memory"', 'store = "postgresql://h/d"\nnodes = 2', "target: nodes do not share a store"),
        (
            'store = "memory"',
            "settings = { trace_mots_per_s = 1 }",
            "target: settings.trace_mots_per_s: no such setting; did you mean trace_most_per_s?",
        ),
        ('store = "memory"', 'settings = { data = "x" }', "target: settings.data: the lab chooses this itself"),
        ('store = "memory"', "settings = { max_connections = -1 }", "target: settings: --max-connections: "),
    ],
)
def test_a_mistake_is_reported_with_file_and_key(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    assert right in SWEPT
    with pytest.raises(LabError) as error:
        described(tmp_path, SWEPT.replace(right, wrong, 1))
    assert f"{tmp_path / 'tiny.toml'}: {told}" in str(error.value)
    assert "\n" not in str(error.value).split("not a TOML file")[0]


def test_a_sweep_without_factors_is_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"tiny\.toml: sweep: give a table of factors and their levels, not 3$"):
        described(tmp_path, "sweep = 3\n" + TINY)


def test_a_quick_run_can_only_set_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"run\.lenght_s: no such key; did you mean length_s\?"):
        described(tmp_path, TINY + '[quick]\n"run.lenght_s" = 1')


def test_experiments_of_a_folder_are_named_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    described(tmp_path, TINY, "b")
    described(tmp_path / "sub", TINY, "a")
    experiments, mistakes = experiments_in(tmp_path)
    assert ([experiment.name for experiment in experiments], mistakes) == (["b", "sub/a"], [])
    with pytest.raises(LabError, match="is not a folder"):
        experiments_in(tmp_path / "no")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"cannot read .*no\.toml: No such file"):
        load(tmp_path / "no.toml")


def test_an_unknown_name_is_answered_with_what_to_do() -> None:
    with pytest.raises(LabError, match=r"no experiment 'thorbangmq/no-such'.*flyball lab list"):
        find("thorbangmq/no-such")


def test_every_shipped_experiment_is_sound_and_found_by_its_name() -> None:
    for experiment in shipped_experiments():
        assert find(experiment.name) == experiment
        assert not experiment.needs or find(experiment.needs)
