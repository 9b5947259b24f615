"""docs/guides/domain.md: its files can be read, and it documents every option."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from flyball.broker.cluster.domain_file import read_domain_file
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.cluster.plan import plan_of
from flyball.broker.cluster.provisioners import Surroundings, load_provisioners
from tests.broker.cluster.models import ModelAdministration

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "domain.md").read_text(encoding="utf-8")
PROVISIONERS, DOMAIN = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_provisioners_of_the_page_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "provisioners.toml"
    file.write_text(PROVISIONERS)
    found = load_provisioners(file, Surroundings("postgresql://db/x", tmp_path))
    assert set(found) == {"local", "ssh", "systemd", "kubernetes", "nomad"}


def test_the_file_of_the_page_gives_the_plan_of_the_page() -> None:
    domain = ModelAdministration()
    domain.node("n1")
    domain.execute("domain.cluster.create", {"name": "orders", "members": ["n1"]})
    domain.execute("domain.cluster.create", {"name": "old"})
    domain.member("/", "old", "n1").ready = 17
    plan = plan_of(read_domain_file(DOMAIN), domain.facts())
    told = [str(step) for step in plan.steps] + [f"  not in the file, kept without --prune: {w}" for w in plan.kept]
    (shown,) = re.findall(r"^```text\n(\+ .*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert shown.splitlines() == told


@pytest.mark.parametrize("option", dataclasses.fields(ClusterOptions), ids=lambda option: option.name)
def test_the_page_tells_every_option_and_its_default(option: dataclasses.Field[object]) -> None:
    (told,) = re.findall(rf"^\| `{option.name}` \| `?([^|`]*)`? \|", PAGE, flags=re.MULTILINE)
    assert told.strip() == (f"{option.default:g}" if isinstance(option.default, float) else str(option.default))
