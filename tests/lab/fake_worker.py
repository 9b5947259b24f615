"""A worker without clients that behaves as badly as the environment says. Run as a script."""

from __future__ import annotations

import json
import os
import select
import signal
import sys


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def hear() -> dict[str, object]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)
    command: dict[str, object] = json.loads(line)
    return command


def counts(**changed: object) -> dict[str, object]:
    return {"calls": 10, "failed": 0, "sent": 5, "received": 5, "running": 1, "cpu_s": 0.1, **changed}


def hear_nothing_but_report() -> None:
    """Go on as if there had been no command, until no one reads its output."""
    readable, _, _ = select.select([sys.stdin], [], [], 0.1)
    if readable:
        hear()
    say(event="progress", **counts())


def main() -> None:
    fault = os.environ["FAULT"]
    hear()
    if fault == "dies while it connects":
        print("out of sockets", file=sys.stderr)
        sys.exit(3)
    if fault == "fails while it connects":
        say(event="failed", reason="client 0: refused")
        sys.exit(1)
    say(event="ready")
    hear()
    say(event="progress", **counts(cpu_s=0.0))
    if fault == "speaks nonsense":
        print("nonsense", flush=True)
    if fault == "has a failed call":
        say(event="progress", **counts(failed=1))
    if fault == "falls silent":
        signal.pause()
    if fault == "is done early":
        say(event="progress", **counts(running=0))
    hear()
    while fault == "does not stop":
        hear_nothing_but_report()
    say(event="stopped", **counts(sent=6 if fault == "loses" else 5))
    hear()
    received = {"loses": ["a"], "gets what was never sent": ["a", "b", "c"]}.get(fault, ["a", "b"])
    tally = {"sent": ["a", "b"], "received": received, "doubled": int(fault == "gets it twice")}
    busy_s = 100.0 if fault == "is too busy" else 0.1
    say(event="done", **counts(cpu_s=busy_s), wall_s=1.0, tally=tally)


if __name__ == "__main__":
    main()
