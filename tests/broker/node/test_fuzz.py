"""A short run of `python -m bench.fuzz --minutes 60`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest
from bench.fuzz import decoders
from bench.fuzz.amqp import METHODS
from bench.fuzz.cases import PROTOCOLS, Case, Ending, load, save
from bench.fuzz.corpus import load_corpus
from bench.fuzz.node import signature_of, tracebacks_in
from bench.fuzz.run import Settings, Supply, main

PORTS = ("amqp", "http", "telesto", "thorbang", "link")
OPERATIONS = [("GET", "/api/queues/{vhost}/{name}"), ("PUT", "/api/queues/{vhost}/{name}")]


@pytest.mark.timeout(300)
def test_a_node_survives_hostile_bytes_on_its_ports(tmp_path: Path) -> None:
    settings = Settings(tmp_path, seconds=8.0, hang_s=60.0, with_decoders=False, narrow_s=0.0, only=PORTS)
    result = main(settings)
    assert result.is_good, "\n".join([str(result), *(f"{one}\n{one.text}" for one in result.findings.values())])
    assert set(result.inputs) == set(PORTS)
    assert result.sent > 2_000


def cases_of(seed: int, count: int, protocols: tuple[str, ...] = PROTOCOLS) -> list[Case]:
    return list(islice(iter(Supply(seed, OPERATIONS, protocols).next, None), count))


def test_a_seed_gives_the_same_cases_again() -> None:
    assert cases_of(7, 300) == cases_of(7, 300)
    assert cases_of(7, 300) != cases_of(8, 300)


def test_the_corpus_has_cases_of_every_protocol() -> None:
    assert {case.protocol for case in load_corpus()} == set(PROTOCOLS)


def test_methods_of_clients_are_read_from_the_description_of_the_protocol() -> None:
    fields = [(one.name, one.type) for one in METHODS["basic.consume"].fields]
    assert fields[:3] == [("", "short"), ("queue", "shortstr"), ("consumer-tag", "shortstr")]
    assert fields[-1] == ("arguments", "table")
    assert "basic.deliver" not in METHODS


def test_a_case_is_saved_and_loaded_as_it_was(tmp_path: Path) -> None:
    case = Case("link", (b"\0\xff", b""), Ending.RESET, is_trusted=True, frames_per_write=3)
    save(tmp_path / "finding.jsonl", [case, case], ["signature", "a traceback\nof two lines"])
    assert load(tmp_path / "finding.jsonl") == [case, case]


def test_decoders_read_the_same_whole_and_in_pieces() -> None:
    chance = Random(1)
    for case in cases_of(1, 600, tuple(decoders.READERS)):
        problem = decoders.problem_of(case, chance)
        assert not problem, f"{problem}\n{case.to_line()}"


LOG = """\
2026-01-01 ERROR flyball.server: first
Traceback (most recent call last):
  File "a.py", line 1, in one
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in two
  File "c.py", line 3, in three
struct.error: int too large to convert
2026-01-01 WARNING flyball.server: an ordinary line
Traceback (most recent call last):
  File "a.py", line 9, in one
ValueError
"""


def test_tracebacks_are_found_in_a_log_and_chained_ones_are_one() -> None:
    found, rest = tracebacks_in(LOG)
    assert [signature_of(one) for one in found] == ["struct.error < c.py:three < b.py:two < a.py:one"]
    # The last one may go on: it is whole when something else follows.
    found, rest = tracebacks_in(rest + "2026-01-01 INFO flyball.server: something else\n")
    assert [signature_of(one) for one in found] == ["ValueError < a.py:one"]
    assert rest == ""


def test_a_traceback_that_comes_in_pieces_is_found_once() -> None:
    found: list[str] = []
    rest = ""
    for at in range(0, len(LOG), 7):
        more, rest = tracebacks_in(rest + LOG[at : at + 7])
        found += more
    assert len(found) == 1
