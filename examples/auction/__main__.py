"""Runs an auction site for the lab: `python -m flyball.lab.auction`, with its settings as a line of JSON on stdin.

Prints its address, as a node does; stops gracefully on SIGTERM. Users run `flyball lab auction` instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvloop

from flyball.errors import FlyballError
from flyball.lab.auction.serve import serve
from flyball.lab.auction.settings import SiteSettings


def main() -> int:
    """Serve until a signal to stop; return the exit code."""
    assignment = json.loads(sys.stdin.readline())
    settings = SiteSettings.model_validate(assignment["settings"])
    try:
        uvloop.run(
            serve(
                Path(assignment["folder"]),
                assignment["name"],
                settings,
                assignment["listens_on"],
                0,
                _say_ready,
                lambda what, ratio: None,
            )
        )
    except FlyballError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _say_ready(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(f"http on {shown}:{port}\nready", flush=True)


if __name__ == "__main__":
    sys.exit(main())
