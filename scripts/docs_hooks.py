"""Additions to mkdocs.yml: scripts that Material would load from a CDN, and files outside docs/.

Pages link to files of the repository (`../../examples/hello.py`), as they do where they are read without the site.
Those files become part of the site, and the links lead there.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "docs-assets"

# Name in the site: the npm package that has the script, its version, and the file in the package.
SCRIPTS = {
    "assets/mermaid.js": ("mermaid", "11.17.2", "dist/mermaid.min.js"),
    "assets/iframe-worker.js": ("iframe-worker", "1.0.4", "shim/index.js"),
}

# Paths in the repository and their places in the site.
OUTSIDE = {
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "how-it-works/contributing.md",
    **{f"examples/{path.name}": f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.py"))},
}

FAVICON = "src/flyball/broker/management/console/web/favicon.svg"

_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
# The words after the language are for the tests of the page, which run the block; the highlighter does not know it.
_FENCE = re.compile(r"^(```\w+) \w+$", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the scripts and the files outside docs/."""
    for place, (package, version, member) in SCRIPTS.items():
        files.append(File.generated(config, place, abs_src_path=str(npm_file(package, version, member))))
    for path, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "assets/favicon.svg", abs_src_path=str(ROOT / FAVICON)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: Any, files: Files) -> str:
    """Lead links to files outside docs/ to their places in the site."""
    here = page.file.src_uri
    written_in = {place: path for path, place in OUTSIDE.items()}.get(here, f"docs/{here}")

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(written_in), link[2]))
        place = OUTSIDE.get(path, path.removeprefix("docs/"))
        return f"{link[1]}{posixpath.relpath(place, posixpath.dirname(here) or '.')}{link[3]}"

    return _FENCE.sub(r"\1", _LINK.sub(lead, markdown))


def on_post_page(output: str, *, page: Page, config: Any) -> str:
    """Load Mermaid where a page has a diagram: Material fetches it from a CDN if it is not there."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath("assets/mermaid.js", posixpath.dirname(page.url) or ".")
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def npm_file(package: str, version: str, member: str) -> Path:
    """Return a file of an npm package, which is fetched once."""
    path = CACHE / f"{package}-{version}.js"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", f"{package}@{version}", "--pack-destination", str(CACHE), "--loglevel=error"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=CACHE)
        archive = CACHE / f"{package}-{version}.tgz"
        with tarfile.open(archive) as packed:
            found = packed.extractfile(f"package/{member}")
            assert found is not None
            content = found.read()
        archive.unlink()
        # Another build may read it at the same time.
        fresh = path.with_suffix(".fresh")
        fresh.write_bytes(content)
        fresh.rename(path)
    return path
