"""Pages of the documentation, and how their examples are run: as they stand there, at another address."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.nodes import RunningNode

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LIMIT_S = 60.0


class PageExamples:
    """The examples of one page."""

    def __init__(self, path: str) -> None:
        self.path = f"docs/{path}"
        self.text = (ROOT / "docs" / path).read_text(encoding="utf-8")

    def blocks(self, kind: str) -> list[str]:
        """Return the blocks of code whose fence has exactly this text."""
        return re.findall(rf"^```{kind}\n(.*?)^```", self.text, flags=re.MULTILINE | re.DOTALL)

    def run(self, block: str, names: dict[str, object]) -> None:
        exec(compile(block, self.path, "exec"), names)

    async def run_async(self, block: str, names: dict[str, object]) -> None:
        code = compile(block, self.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if result is not None:
            await result


def at(node: RunningNode, text: str) -> str:
    """Replace the default addresses of a node by those of this one."""
    found = {"5672": "amqp", "5671": "amqps", "15672": "http"}
    for port, protocol in found.items():
        if protocol in node.node.addresses:
            address = node.address(protocol)
            text = re.sub(rf"(127\.0\.0\.1|localhost):{port}\b", rf"\g<1>:{address.port}", text)
    return text


def shell(command: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command of a page and return what it prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "TERM": "dumb",
            "NO_COLOR": "1",
            **(environment or {}),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def dialogue(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block of `console`, each with the output that it shows."""
    parts = block.removeprefix("$ ").split("\n$ ")
    return [(part.partition("\n")[0], part.partition("\n")[2].rstrip("\n")) for part in parts]
