"""The archive of Java's classes is a cache: one for each Java and Spark, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyball.pipeline import warm_start
from flyball.pipeline.class_archive import KEPT, archive_of, keep
from flyball.pipeline.java import Java, find_java
from tests.pipeline.elsewhere import run_count
from tests.pipeline.traces import write_steady_run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "flyball"
    folder.mkdir(parents=True)
    return folder


def test_each_build_of_java_has_an_archive_of_its_own(cache: Path) -> None:
    program = Path("/usr/bin/java")
    archives = {archive_of(Java(program, said)) for said in ("17.0.1", "17.0.2")}
    assert len(archives) == 2
    assert {archive.parent for archive in archives} == {cache}


def test_a_new_archive_takes_the_place_of_the_oldest(cache: Path) -> None:
    for age in range(KEPT + 1):
        old = cache / f"spark-{age}.jsa"
        old.touch()
        os.utime(old, (1000 - age, 1000 - age))
    unfinished = cache / ".unfinished"
    unfinished.touch()
    assert keep(unfinished, cache / "spark-new.jsa")
    assert sorted(path.name for path in cache.iterdir()) == ["spark-0.jsa", "spark-1.jsa", "spark-new.jsa"]


def test_a_java_that_makes_no_archive_is_no_error(cache: Path) -> None:
    assert not keep(cache / ".unfinished", cache / "spark-new.jsa")


def test_an_archive_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    archive = archive_of(find_java(tmp_path / "java"))
    archive.touch()
    assert warm_start.make_archive() == archive


def test_where_no_cache_can_be_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert warm_start.make_archive() is None


def test_spark_starts_and_is_silent_with_an_archive_that_is_damaged(tmp_path: Path) -> None:
    archive_of(find_java(tmp_path / "java")).write_bytes(b"damaged" * 1000)
    write_steady_run(tmp_path / "source", "one")
    assert run_count("local[1]", tmp_path) == {"put": 500, "take": 500}
