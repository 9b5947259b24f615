"""How an auction site may be set up, also as the target of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.errors import LabError
from flyball.lab.auction.settings import SiteSettings
from flyball.lab.auction.sizes import RUBIS, SMALL
from flyball.lab.experiment import SHIPPED, load
from flyball.lab.plan import plan
from tests.lab.descriptions import described

SITE = """
title = "Site"
[target]
kind = "auction"
[workload]
kind = "auction"
"""


def test_a_size_has_its_numbers_unless_others_are_given() -> None:
    assert SiteSettings().sizes == SMALL
    assert SiteSettings(size="rubis").sizes == RUBIS
    changed = SiteSettings(users=500, items=40).sizes
    assert (changed.users, changed.items, changed.old_items) == (500, 40, SMALL.old_items)


def test_a_site_can_be_put_under_load(tmp_path: Path) -> None:
    experiment = described(tmp_path, SITE + '[sweep]\n"target.settings.policy" = ["none", "dps"]\n')
    laid_out = plan(experiment)
    assert {run.experiment.target.settings["policy"] for run in laid_out.runs} == {"none", "dps"}
    assert all(run.expected_s > experiment.run.length_s for run in laid_out.runs)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (SITE.replace('"auction"\n[work', '"auction"\nnodes = 2\n[work'), "one node"),
        (SITE + '[sweep]\n"target.settings.polcy" = ["dps"]', "settings.polcy: .* did you mean policy"),
        (SITE + '[sweep]\n"target.settings.policy" = ["dsp"]', "settings.policy: Input should be 'none'"),
        (SITE + '[sweep]\n"target.settings.users" = [3]', "needs 20 at least"),
        (SITE.replace('kind = "auction"\n[work', 'kind = "flyball"\n[work'), "speaks http, and brokers do not"),
        (SITE.replace('[workload]\nkind = "auction"', '[workload]\nkind = "stream"'), "speaks http, and brokers"),
    ],
)
def test_what_does_not_fit_a_site_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=complaint):
        described(tmp_path, text)


def test_quick_experiments_of_the_admission_paper_take_under_thirteen_minutes() -> None:
    quick = [
        plan(load(path, f"admission/{path.stem}"), is_quick=True) for path in (SHIPPED / "admission").glob("*.toml")
    ]
    assert len(quick) == 5
    assert sum(laid_out.expected_s for laid_out in quick) < 780
