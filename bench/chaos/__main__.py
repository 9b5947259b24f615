"""Let a site of several nodes live through kills, pauses, restarts of PostgreSQL and cut connections, under load.

    python -m bench.chaos --minutes 5 --seed 7
    python -m bench.chaos --faults 500 --at-once 2      half an hour
    python -m bench.chaos --scenario all                what once lost messages or ended a node
    python -m bench.chaos --rounds 1 --only "kill -9" --only "cut a node off from PostgreSQL"
    python -m bench.chaos --minutes 1 --nodes 1 --json result.json --keep folder

Ends with exit code 1 if a confirmed message was lost, an acknowledged one came again, or something was not served
again within 10 s (`--served-limit-s`). The same seed makes the same faults in the same order.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.chaos.faults import KINDS
from bench.chaos.run import SERVED_LIMIT_S, Chaos, Result, Settings
from bench.chaos.scenarios import SCENARIOS, play


def main() -> int:
    options = parse()
    if options.scenario:
        return play_all(options.scenario, options.keep)
    console = Console(stderr=True)
    with ExitStack() as exits:
        folder = options.keep
        if folder is None:
            folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="flyball-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        history = exits.enter_context((folder / "history.jsonl").open("w")) if options.keep else None
        columns = [TextColumn("{task.description:40}"), BarColumn(), TimeElapsedColumn()]
        progress = exits.enter_context(Progress(*columns, console=console))
        task = progress.add_task("starting", total=1.0)
        chaos = Chaos(
            Settings(
                folder,
                options.seed,
                options.minutes * 60,
                options.nodes,
                options.lease_s,
                tuple(kind for kind in KINDS if options.only is None or kind.name in options.only),
                options.rounds,
                options.served_limit_s,
                history=history,
                faults=options.faults,
                at_once=options.at_once,
            ),
            lambda text, share: progress.update(task, description=text, completed=share),
        )
        result = uvloop.run(chaos.run())
    show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result.as_dict(), indent=2) + "\n")
    return 0 if result.is_good else 1


def play_all(names: list[str], keep: Path | None) -> int:
    """Play scenarios, each on nodes of its own, and print their results."""
    is_good = True
    for name in list(SCENARIOS) if "all" in names else names:
        with tempfile.TemporaryDirectory(prefix="flyball-chaos-") as temporary:
            folder = Path(temporary) if keep is None else keep / name
            folder.mkdir(parents=True, exist_ok=True)
            result = uvloop.run(play(name, folder))
        print(result, flush=True)
        is_good = is_good and result.is_good
    return 0 if is_good else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, help="repetitions of every fault, instead of a duration")
    parser.add_argument("--faults", type=int, help="that many faults, instead of some minutes")
    parser.add_argument("--at-once", type=int, default=1, help="faults that happen at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--lease-s", type=float, default=4.0)
    parser.add_argument("--served-limit-s", type=float, default=SERVED_LIMIT_S, help="how soon all is served again")
    parser.add_argument("--only", action="append", choices=[kind.name for kind in KINDS], help="these faults only")
    parser.add_argument(
        "--scenario", action="append", choices=[*SCENARIOS, "all"], help="instead: something that once went wrong"
    )
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--keep", type=Path, help="a folder for data, logs and the history, which are kept")
    return parser.parse_args()


def show(result: Result) -> None:
    print(result.verdict)
    for kind, times in result.served_s().items():
        print(f"served again after {kind}: " + ", ".join(f"{name} {value:g}" for name, value in times.items()))
    for fault in result.slow:
        took = "never" if fault.served_s is None else f"after {fault.served_s} s only"
        print(f"SLOW: {fault.kind} ({fault.node}) at {fault.at_s} s: served again {took}")
    for queue in result.undrained:
        print(f"NOT DRAINED: {queue}")
    for complaint in result.complaints:
        print(f"COMPLAINT: {complaint}")


if __name__ == "__main__":
    sys.exit(main())
