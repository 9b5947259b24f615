"""Simulate domains of several nodes under faults, one for each seed, and see whether anything breaks.

    python -m bench.simulation --seeds 2000
    python -m bench.simulation --seed 17 --verbose

Time, network, database and chance are simulated: the same seed does the same again. A seed that fails is shown with
its faults and what they broke, and ends the run with exit code 1 when all are done.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.cluster.simulation.world import Outcome, simulate

TOLD = 100
"""Where nobody watches, progress is told whenever so many seeds are done."""


def main() -> int:
    options = parse()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts are walked through in the order of their hashes.
        sys.stdout.flush()
        os.execve(
            sys.executable,
            [sys.executable, "-m", "bench.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    if options.seed is not None:
        return show(options.seed, options.verbose)
    return run(range(options.first, options.first + options.seeds), options.jobs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many run at once")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--verbose", action="store_true", help="with --seed: all that happened, and the nodes' log")
    return parser.parse_args()


def show(seed: int, verbose: bool) -> int:
    """Simulate one seed and tell about it."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="         %(name)s: %(message)s")
    outcome = simulate(seed)
    if verbose:
        concerned = {(one.producer, one.number) for broken in outcome.verdict.violations for one in broken.operations}
        print("events:", *outcome.events, sep="\n")
        print("messages that are concerned:")
        for operation in outcome.operations:
            if (operation.producer, operation.number) in concerned:
                print(operation)
    print(outcome)
    print(f"digest {outcome.digest:08x}")
    return 0 if outcome.is_good else 1


def run(seeds: range, jobs: int) -> int:
    """Simulate many seeds and tell about those that fail."""
    console = Console(stderr=True)
    began_s = time.monotonic()
    failed: list[int] = []
    simulated_s = 0.0
    columns = [TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(jobs) as pool:
        task = progress.add_task("", total=len(seeds))
        for seed, elapsed_s, problem in pool.map(simulated, seeds):
            simulated_s += elapsed_s
            if problem:
                failed.append(seed)
                print(problem, flush=True)
            progress.update(task, advance=1)
            if not console.is_terminal and (seed + 1 - seeds.start) % TOLD == 0:
                print(f"{seed + 1 - seeds.start} of {len(seeds)}, {len(failed)} failed", file=sys.stderr, flush=True)
    print(f"{len(seeds)} seeds, {simulated_s / 3600:.1f} simulated hours in {time.monotonic() - began_s:.0f} s")
    if failed:
        print(f"{len(failed)} failed: {failed}")
        print(f"look closer with: python -m bench.simulation --seed {failed[0]} --verbose")
    return 1 if failed else 0


def simulated(seed: int) -> tuple[int, float, str]:
    """Simulate a seed; return it, how long that lasted for the nodes, and what it broke."""
    logging.disable(logging.CRITICAL)
    outcome: Outcome = simulate(seed)
    return seed, outcome.elapsed_s, "" if outcome.is_good else str(outcome)


if __name__ == "__main__":
    sys.exit(main())
