"""Plans: the order of runs, their ids, and what becomes of a quick experiment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flyball.errors import LabError
from flyball.lab.experiment import Experiment, shipped_experiments
from flyball.lab.plan import QUICK_LIMIT_S, STORED_PER_S, definition_of, in_order, plan, quickened
from tests.lab.descriptions import TINY, described

LONG = """
title = "Long"
[workload]
kind = "send_and_pop"
stored_messages = 20000
clients = 4
[run]
repetitions = 5
warm_up_s = 30
length_s = 600
cool_down_s = 10
"""

CLIENTS = '"workload.clients" = [1, 2, 4, 8, 16, 32, 64]\n'
MANY = ("body_bytes", "think_time_s", "rate_per_s", "queues")
STORES = '"target.store" = ["embedded", "memory"]\n'


def test_each_repetition_holds_every_cell_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    runs = plan(described(tmp_path, LONG + "[sweep]\n" + CLIENTS)).runs
    orders = [[run.factors["workload.clients"] for run in runs if run.repetition == number] for number in range(1, 6)]
    assert [run.repetition for run in runs] == sorted(run.repetition for run in runs)
    assert all(sorted(order) == [1, 2, 4, 8, 16, 32, 64] for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_the_same_seed_gives_the_same_plan_and_another_seed_another(tmp_path: Path) -> None:
    experiment = described(tmp_path, LONG + "[sweep]\n" + CLIENTS)
    assert plan(experiment) == plan(experiment)
    other = plan(experiment.changed({"run.seed": 2}))
    assert [run.run_id for run in other.runs] != [run.run_id for run in plan(experiment).runs]
    assert len({run.seed for run in other.runs}) == len(other.runs)


def test_run_ids_are_unique_and_made_of_plain_characters(tmp_path: Path) -> None:
    levels = '"workload.think_time_s" = [0.5, 1]\n"target.store" = ["memory", "postgresql://me:secret@h/d?x=y z"]\n'
    runs = plan(described(tmp_path, TINY + "[sweep]\n" + levels)).runs
    ids = [run.run_id for run in runs]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9._-]+", run_id) for run_id in ids)
    assert "tiny.think_time_s-0.5.store-memory.r1" in ids
    assert not any("secret" in run_id for run_id in ids)


def test_cells_whose_names_would_be_equal_are_numbered(tmp_path: Path) -> None:
    levels = '{ label = "a b", workload.clients = 1 }, { label = "a-b", workload.clients = 2 }'
    runs = plan(described(tmp_path, TINY + f"[sweep]\nmix = [{levels}]\n")).runs
    assert sorted(run.run_id for run in runs) == ["tiny.cell-1.r1", "tiny.cell-2.r1"]


@pytest.mark.parametrize(
    "sweep",
    [
        "",
        "[sweep]\n" + CLIENTS,
        "[sweep]\n" + STORES + CLIENTS,
        "[sweep]\n" + STORES + CLIENTS + '"workload.body_bytes" = [1, 10, 100, 1000]\n',
        '[sweep]\n"workload.stored_messages" = [0, 20000, 100000, 500000]\n',
        '[sweep]\n"target.nodes" = [1, 2, 5, 10]\n',
        '[sweep]\n"target.nodes" = [1, 10]\n"workload.clients" = [10, 20]\n"workload.body_bytes" = [1, 9]\n',
        "[sweep]\n" + STORES + CLIENTS + "".join(f'"workload.{name}" = [1, 2, 3]\n' for name in MANY),
        '[noise]\nprocesses = 1\n[sweep]\n"run.seed" = [1, 2, 3, 4, 5, 6]\n"run.length_s" = [120, 600]\n',
    ],
)
def test_any_experiment_becomes_one_of_about_a_minute(tmp_path: Path, sweep: str) -> None:
    quick = plan(described(tmp_path, LONG + sweep), is_quick=True)
    assert quick.is_quick
    assert quick.expected_s <= QUICK_LIMIT_S
    assert all(run.repetition == 1 for run in quick.runs)
    assert all(run.experiment.run.length_s >= 1 for run in quick.runs)
    assert len(quick.runs) == len(list(quick.experiment.cells()))


def test_quick_keeps_the_first_and_the_last_level(tmp_path: Path) -> None:
    quick = quickened(described(tmp_path, LONG + "[sweep]\n" + CLIENTS))
    levels = quick.sweep["workload.clients"]
    assert (levels[0], levels[-1], len(levels)) == (1, 64, 4)


def test_quick_stores_fewer_messages_but_keeps_a_ratio_that_is_the_factor(tmp_path: Path) -> None:
    fixed = quickened(described(tmp_path, LONG))
    assert fixed.workload["stored_messages"] == 2000
    swept = quickened(described(tmp_path, LONG + '[sweep]\n"workload.stored_messages" = [0, 50000, 70000, 600000]\n'))
    assert swept.sweep["workload.stored_messages"] == [0, 833, 1166, 10000]


def test_quick_never_makes_a_short_experiment_longer(tmp_path: Path) -> None:
    tiny = described(tmp_path, TINY)
    assert quickened(tiny).run == tiny.run


def test_quick_repeats_a_factorial_design_for_its_errors(tmp_path: Path) -> None:
    text = '[sweep]\n"workload.clients" = [1, 9]\n"workload.body_bytes" = [1, 9]\n[[view]]\nkind = "effects"\n'
    quick = quickened(described(tmp_path, LONG + text))
    assert (quick.run.repetitions, len(list(quick.cells()))) == (2, 4)


def test_quick_keeps_the_first_factors_of_a_large_factorial_design(tmp_path: Path) -> None:
    factors = "".join(f'"workload.{name}" = [1, 2]\n' for name in ("clients", *MANY))
    quick = plan(described(tmp_path, LONG + "[sweep]\n" + factors + '[[view]]\nkind = "effects"\n'), is_quick=True)
    assert quick.expected_s <= QUICK_LIMIT_S
    levels = quick.experiment.sweep
    assert [len(of) for of in levels.values()] == [2, 2, 1, 1, 1]
    assert levels["workload.queues"] == [1]


def test_quick_prepares_fewer_messages(tmp_path: Path) -> None:
    text = '[workload]\nkind = "push_peek_pop"\nphases = ["pop"]\nclients = 4\nprepared_messages = 500000\n'
    experiment = described(tmp_path, LONG[: LONG.index("[workload]")] + text + LONG[LONG.index("[run]") :])
    assert quickened(experiment).workload["prepared_messages"] == 2000
    assert plan(experiment, is_quick=True).expected_s <= QUICK_LIMIT_S
    assert plan(experiment).runs[0].expected_s > 4 * 500_000 / STORED_PER_S


def test_what_the_description_wants_for_quick_comes_first(tmp_path: Path) -> None:
    wanted = (
        '[quick]\n"run.length_s" = 3\nrun.repetitions = 2\nworkload.clients = 1\n'
        'sweep = { "workload.body_bytes" = [1, 2, 3, 4, 5, 6] }\n'
    )
    quick: Experiment = quickened(described(tmp_path, LONG + "[sweep]\n" + CLIENTS + wanted))
    assert (quick.run.length_s, quick.run.repetitions, quick.workload["clients"]) == (3, 2, 1)
    assert quick.sweep == {"workload.body_bytes": [1, 2, 3, 4, 5, 6]}


def named(folder: Path, name: str, needs: str = "") -> Experiment:
    return described(folder, f'needs = "{needs}"\n' + TINY, name)


def test_experiment_follows_the_one_it_needs_and_others_stay_in_place(tmp_path: Path) -> None:
    first, second, third = (named(tmp_path, *names) for names in (("a", "c"), ("b", "elsewhere"), ("c", "")))
    assert in_order([first, second, third]) == [second, third, first]


def test_experiments_that_need_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="experiments need each other: a, b"):
        in_order([named(tmp_path, "a", "b"), named(tmp_path, "b", "a"), named(tmp_path, "c")])


def test_what_an_experiment_needs_is_part_of_its_definition(tmp_path: Path) -> None:
    assert definition_of(plan(named(tmp_path, "a", "b")))["needs"] == "b"
    assert "needs" not in definition_of(plan(named(tmp_path, "a")))


def test_quick_keeps_all_levels_if_the_description_wants_it(tmp_path: Path) -> None:
    quick = quickened(described(tmp_path, LONG + '[quick]\nsweep = "all"\n[sweep]\n' + CLIENTS))
    assert quick.sweep["workload.clients"] == [1, 2, 4, 8, 16, 32, 64]


def test_quick_experiments_of_the_prefetch_paper_take_under_ten_minutes() -> None:
    plans = [plan(one, is_quick=True) for one in shipped_experiments() if one.name.startswith("prefetch/")]
    assert sum(laid_out.expected_s for laid_out in plans) < 570
    kinds = {run.factors["controller"] for laid_out in plans for run in laid_out.runs if "controller" in run.factors}
    assert len(kinds) == 17
