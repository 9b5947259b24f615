"""Reports written by the pipeline: listed and served from their folders.

A report is HTML with scripts that may come from elsewhere: it is sandboxed, so that it cannot access this node's API.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.responses import FileResponse, Response

from flyball.broker.management.api.answers import answer, not_found
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.settings import ServeSettings

PAGE = "report.html"
# Below the node's data folder.
FOLDER = "reports"
# How deep reports are searched below such a folder.
DEPTH = 3
MAX_REPORTS = 500
HEAD_BYTES = 4096

# Served files of a report, by suffix.
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".parquet": "application/vnd.apache.parquet",
}

HEADERS = {
    "content-security-policy": (
        "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline';"
        " style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


routes = Routes()


@routes.get("/flyball/reports", Right.MANAGEMENT)
async def list_reports(call: Call) -> Response:
    """List the reports in the node's folders, newest first."""
    return answer(await asyncio.to_thread(found_below, roots_of(call.node.settings)))


@routes.get("/flyball/reports/{name}/{file}", Right.MANAGEMENT)
async def show_file(call: Call) -> Response:
    """Return a file of a report: its page, a table or a model."""
    path = await asyncio.to_thread(file_of, roots_of(call.node.settings), call.part("name"), call.part("file"))
    if path is None:
        raise not_found(f"report {call.part('name')!r} has no file {call.part('file')!r}")
    return FileResponse(path, media_type=KINDS[path.suffix], headers=HEADERS)


def roots_of(settings: ServeSettings) -> list[Path]:
    """Return the folders that contain reports."""
    return [settings.data / FOLDER, *([] if settings.reports is None else [settings.reports])]


def found_below(roots: list[Path]) -> list[dict[str, Any]]:
    """Return the reports, newest first. Of equal names the first folder wins."""
    reports: dict[str, dict[str, Any]] = {}
    for root in roots:
        for folder in _folders(root, DEPTH):
            name = _name_of(root, folder)
            if name not in reports and len(reports) < MAX_REPORTS:
                # It may be removed concurrently.
                with contextlib.suppress(OSError):
                    reports[name] = _document(name, folder)
    return sorted(reports.values(), key=lambda report: (-report["created"], report["name"]))


def file_of(roots: list[Path], name: str, file: str) -> Path | None:
    """Return the path of a report's file; None if it does not exist or is outside the folder."""
    for root in roots:
        # Too long file names raise OSError.
        with contextlib.suppress(OSError):
            folder = root if name == _name_of(root, root) else _inside(root, name)
            if folder is None or not (folder / PAGE).is_file():
                continue
            path = _inside(folder, file)
            is_shown = path is not None and path.is_file() and path.suffix in KINDS
            return path if is_shown else None
    return None


def _name_of(root: Path, folder: Path) -> str:
    """Return the name of a report: its path below the root; for the root its own name."""
    return folder.relative_to(root).as_posix() if folder != root else root.resolve().name


def _inside(folder: Path, name: str) -> Path | None:
    """Resolve a relative name below a folder; None if it, or a symlink, leads outside."""
    if "\0" in name or any(part.startswith(".") and part != "." for part in Path(name).parts):
        return None
    path = (folder / name).resolve()
    return path if path.is_relative_to(folder.resolve()) else None


def _folders(root: Path, depth: int) -> Iterator[Path]:
    try:
        is_report = (root / PAGE).is_file()
        inside = root.iterdir() if depth > 0 and root.is_dir() else ()
        below = sorted(path for path in inside if not path.name.startswith(".") and path.is_dir())
    except OSError:
        return
    if is_report:
        yield root
    for path in below:
        if not path.is_symlink():
            yield from _folders(path, depth - 1)


def _document(name: str, folder: Path) -> dict[str, Any]:
    page = folder / PAGE
    with page.open("rb") as content:
        head = content.read(HEAD_BYTES).decode("utf-8", "replace")
    title = re.search(r"<title>(.*?)</title>", head, re.DOTALL)
    files = [path for pattern in ("*", "tables/*") for path in sorted(folder.glob(pattern)) if path.suffix in KINDS]
    place = f"/api/flyball/reports/{quote(name, safe='')}"
    return {
        "name": name,
        "title": html.unescape(title[1]).strip() if title else name,
        "created": page.stat().st_mtime,
        "files": [
            {
                "name": path.relative_to(folder).as_posix(),
                "bytes": path.stat().st_size,
                "url": f"{place}/{quote(path.relative_to(folder).as_posix(), safe='')}",
            }
            for path in files
        ],
        "url": f"{place}/{PAGE}",
    }
