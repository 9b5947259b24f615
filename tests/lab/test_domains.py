"""A domain as a target: its nodes share a clustered queue, its clients are placed, and more nodes may come."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from flyball.errors import LabError
from flyball.lab.plan import plan
from flyball.lab.runner import make_run
from tests.lab.descriptions import described

DOMAIN = """
title = "Domain"
[target]
kind = "domain"
nodes = {nodes}
cluster = {cluster}
settings = {settings}
[workload]
kind = "clustered"
producers = 2
consumers = 4
messages = {messages}
receive = "consume"
placement = "{placement}"
join_every_s = {join_every_s}
[run]
repetitions = 1
warm_up_s = 0
length_s = 600
cool_down_s = 0
"""


def made(folder: Path, **values: Any) -> dict[str, Any]:
    usual = {"nodes": 2, "cluster": "{}", "settings": "{}", "messages": 40, "placement": "optimised"}
    for part in ("traces", "logs"):
        (folder / "run" / part).mkdir(parents=True)
    experiment = described(folder, DOMAIN.format(**{**usual, "join_every_s": 0, **values}))
    return uvloop.run(make_run(plan(experiment).runs[0], folder / "run", lambda live: None))


def test_clients_of_a_domain_share_one_queue_wherever_they_are_placed(tmp_path: Path) -> None:
    manifest = made(tmp_path)
    assert manifest["checks"]["lost"] == manifest["checks"]["doubled"] == 0
    assert manifest["checks"]["calls"] == 160
    assert manifest["domain"]["nodes"] == 2


def test_nodes_that_the_domain_has_started_end_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    cluster = '{ capacity = 3, provisioner = "lab", max_members = 2, most_moves = 0 }'
    # Slow enough for the second node to be there before all messages are handled, also where it takes long to start.
    slow = "{ pace_per_s = 400 }"
    manifest = made(tmp_path, nodes=1, cluster=cluster, settings=slow, messages=1000, join_every_s=0.3)
    assert manifest["domain"]["nodes"] == 2
    assert [process for process in psutil.process_iter(["cmdline"]) if str(scratch) in str(process.info)] == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ('kind = "domain"\nstore = "memory"', "a store of its own"),
        ("cluster = { capacity = 5 }", "only a domain"),
        ('kind = "domain"\ncluster = { capacty = 5 }', "capacty"),
    ],
)
def test_a_domain_that_cannot_be_is_refused(target: str, complaint: str, tmp_path: Path) -> None:
    text = f'title = "Wrong"\n[target]\n{target}\n[workload]\nkind = "clustered"\n'
    with pytest.raises(LabError, match=complaint):
        described(tmp_path, text)
