"""The documentation as a site: its links and anchors lead somewhere, and a browser opens it without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
LOOK_MS = 30_000

# Attributes with which a page makes the browser fetch something.
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset")}

# Where prose and code name a page.
_PAGE = re.compile(r"(?<![\w/.-])docs/[\w./-]*\w\.(?:md|svg|png|json)\b")

# Made by a script on request, and not part of the repository.
MADE = {"docs/report-example.html"}


class References(HTMLParser):
    """Links of a page, and addresses that it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            is_icon_or_style = tag == "link" and name == "href" and dict(attrs).get("rel") != "canonical"
            if (tag, name) in FETCHED or is_icon_or_style:
                self.fetched.append(value)
            elif name == "href":
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: a broken link, a missing anchor or a page outside the navigation fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=LOOK_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


def pages(site: Path) -> dict[Path, References]:
    return {path: References(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_pages_fetch_from_no_other_host(site: Path) -> None:
    fetched = {(str(path.relative_to(site)), url) for path, found in pages(site).items() for url in found.fetched}
    assert fetched
    assert {(path, url) for path, url in fetched if urlsplit(url).netloc or urlsplit(url).scheme} == set()


def test_all_that_pages_refer_to_is_in_the_site(site: Path) -> None:
    missing = []
    for path, found in pages(site).items():
        # Its links are made for the root of a server.
        if path.name == "404.html":
            continue
        for url in found.fetched + found.links:
            parts = urlsplit(url)
            if not parts.scheme and parts.path and not (path.parent / unquote(parts.path)).exists():
                missing.append((str(path.relative_to(site)), url))
    assert missing == []


def test_a_browser_searches_and_draws_diagrams_offline(site: Path, browser: Browser) -> None:
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto((site / "index.html").as_uri())
        search(page, "prefetch")
        page.goto((site / "how-it-works" / "design.html").as_uri())
        diagram = page.locator("div.mermaid").first
        expect(diagram).to_be_visible()
        # Material draws in a closed shadow root; a diagram that could not be drawn stays a block of code.
        expect(page.locator("pre.mermaid")).to_have_count(0)
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []


def search(page: Page, text: str) -> None:
    """Wait until a search finds pages."""
    page.locator("input[name=query]").fill(text)
    expect(page.locator(".md-search-result__item").first).to_be_attached()


@pytest.mark.parametrize("folder", ["src", "tests", "scripts", "bench", "examples", "docs"])
def test_pages_that_files_name_exist(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".js", ".toml", ".txt", ""}]
    assert missing_pages(path for path in files if path.is_file() and "node_modules" not in path.parts) == []


def test_pages_that_the_readme_and_the_like_name_exist() -> None:
    assert (
        missing_pages(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml"))
        == []
    )


def missing_pages(files: Iterator[Path]) -> list[tuple[str, str]]:
    """Return the pages that these files name and that do not exist, each with the file."""
    named = [
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name in _PAGE.findall(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    return [(path, name) for path, name in named if name not in MADE and not (ROOT / name).exists()]


def test_links_of_readme_and_contributing_lead_to_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#:\s]+)", text) + re.findall(r"(?:src|srcset)=\"([^\"#:]+)\"", text)
        assert [target for target in targets if not (ROOT / target).exists()] == []


def test_glossary_of_the_console_is_that_of_the_site(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "generate-glossary", tmp_path / "made.html"], check=True)
    web = ROOT / "src" / "flyball" / "broker" / "management" / "console" / "web"
    made = (tmp_path / "made.html").read_text(encoding="utf-8")
    assert (web / "glossary.html").read_text(encoding="utf-8") == made, "run scripts/generate-glossary"
    for term in ("Governor", "Plant", "Certificate", "Shadow", "Domain", "Clustered queue"):
        assert f"<dt><b>{term}</b></dt>" in made
    assert "/web/glossary.html" in (web / "app.js").read_text(encoding="utf-8")
