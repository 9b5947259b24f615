"""Lists the built-in experiments with their descriptions and figures."""

from __future__ import annotations

import asyncio
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api.answers import answer
from flyball.broker.management.api.context import Call, Right, Routes

routes = Routes()


@routes.get("/flyball/experiments", Right.MANAGEMENT)
async def list_experiments(call: Call) -> Response:
    """List the built-in experiments; `flyball lab run NAME` runs one."""
    return answer(await asyncio.to_thread(shipped))


@cache
def shipped() -> list[dict[str, Any]]:
    """Return all experiments, sorted by name."""
    found: list[dict[str, Any]] = []
    with resources.as_file(resources.files("flyball") / "lab" / "experiments") as folder:
        for path in sorted(folder.glob("*/*.toml")):
            name = f"{path.parent.name}/{path.stem}"
            found.append(_document(name, tomllib.loads(path.read_text(encoding="utf-8"))))
    return found


def _document(name: str, described: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "title": described.get("title", name),
        "about": " ".join(described.get("about", "").split()),
        "source": described.get("source", ""),
        "workload": described.get("workload", {}).get("kind"),
        "target": described.get("target", {}).get("kind", "flyball"),
        "factors": list(described.get("sweep", {})),
        "figures": [view.get("title") or view.get("metric", "") for view in described.get("view", [])],
        "command": f"flyball lab run {name} --quick",
    }
