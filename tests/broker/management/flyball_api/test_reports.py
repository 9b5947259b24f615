"""The console shows experiments and reports, and no other files next to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball.broker.management.flyball_api.reports import file_of, found_below

PAGE = "<!doctype html><title>Number of clients &amp; threads</title><p>hello"


def report(folder: Path, text: str = PAGE, at: float = 1000.0) -> None:
    (folder / "tables").mkdir(parents=True)
    (folder / "report.html").write_text(text)
    (folder / "tables" / "latency.csv").write_text("a,b\n1,2\n")
    (folder / "secret.key").write_text("secret")
    os.utime(folder / "report.html", (at, at))


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    roots = [tmp_path / "data" / "reports", tmp_path / "others"]
    report(roots[0] / "clients", at=1000.0)
    report(roots[1] / "thorbangmq" / "quick", "<p>no title", at=2000.0)
    return roots


def test_reports_below_the_folders_are_found_newest_first(roots: list[Path]) -> None:
    newer, older = found_below(roots)
    assert (older["name"], older["title"], older["created"]) == ("clients", "Number of clients & threads", 1000.0)
    assert [file["name"] for file in older["files"]] == ["report.html", "tables/latency.csv"]
    assert older["url"] == "/api/flyball/reports/clients/report.html"
    assert (newer["name"], newer["title"]) == ("thorbangmq/quick", "thorbangmq/quick")
    assert newer["url"] == "/api/flyball/reports/thorbangmq%2Fquick/report.html"


def test_a_folder_that_is_a_report_itself_has_its_own_name(tmp_path: Path) -> None:
    report(tmp_path / "mine")
    [found] = found_below([tmp_path / "mine"])
    assert found["name"] == "mine"
    assert file_of([tmp_path / "mine"], "mine", "report.html") == tmp_path / "mine" / "report.html"


def test_folders_that_are_not_there_have_no_reports(tmp_path: Path) -> None:
    assert found_below([tmp_path / "nowhere"]) == []


def test_a_report_that_is_removed_while_they_are_listed_is_left_out(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open

    def open_or_miss(path: Path, *arguments: Any) -> Any:
        if path.parent.name == "clients":
            path.unlink()
        return open_file(path, *arguments)

    monkeypatch.setattr(Path, "open", open_or_miss)
    assert [found["name"] for found in found_below(roots)] == ["thorbangmq/quick"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("clients", "secret.key"),
        ("clients", "../../../others/thorbangmq/quick/report.html"),
        ("clients", "/etc/passwd"),
        ("clients", "tables"),
        ("clients", "tables/../secret.key"),
        ("clients", "a\0b"),
        ("clients", "link.html"),
        ("../reports/clients", "report.html"),
        ("..", "report.html"),
        ("nobody", "report.html"),
        ("n" * 300, "report.html"),
        ("clients", "f" * 300),
    ],
)
def test_no_name_leads_out_of_a_report(roots: list[Path], tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / "outside.html").write_text("outside")
    (roots[0] / "clients" / "link.html").symlink_to(tmp_path / "outside.html")
    assert file_of(roots, name, file) is None


def test_a_report_is_served_without_any_power(api: httpx.Client, tmp_path: Path) -> None:
    report(tmp_path / "data" / "reports" / "clients")
    [found] = api.get("/reports").json()
    page = api.get(str(api.base_url.copy_with(path=found["url"])))
    assert (page.status_code, page.text) == (200, PAGE)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    table = api.get("/reports/clients/tables%2Flatency.csv")
    assert (table.text, table.headers["content-type"]) == ("a,b\n1,2\n", "text/csv; charset=utf-8")
    assert api.get("/reports/clients/secret.key").status_code == 404
    assert api.get("/reports/clients/..%2F..%2F..%2Foutside.html").status_code == 404


def test_the_experiments_that_come_with_flyball_are_listed(api: httpx.Client) -> None:
    found = {experiment["name"]: experiment for experiment in api.get("/experiments").json()}
    clients = found["thorbangmq/clients"]
    assert clients["title"] == "Number of clients"
    assert clients["figures"] == ["Throughput", "Response time"]
    assert clients["factors"] == ["workload.clients"]


def test_who_has_no_tag_sees_neither(api: httpx.Client, users: dict[str, tuple[str, str]]) -> None:
    for path in ("/experiments", "/reports"):
        assert [api.get(path, auth=user).status_code for user in users.values()] == [401, 200, 200]
    assert api.get("/reports/a/report.html", auth=users["nothing"]).status_code == 401
