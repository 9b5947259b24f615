"""Simulate domains of several nodes under faults, one for each seed, and see whether anything breaks.

    python -m bench.simulation --seeds 2000
    python -m bench.simulation --faults 100000          several faults a second; 15 minutes of two cores
    python -m bench.simulation --seed 17 --verbose      with --dense: as --faults has it

Time, network, database and chance are simulated: the same seed does the same again. A seed that fails is shown with
its faults and what they broke, and ends the run with exit code 1 when all are done.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.broker.cluster.simulation.world import DENSE, Course, Outcome, simulate

# Without a terminal, progress is logged after this number of seeds.
TOLD = 100


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
        return show(options.seed, options.verbose, DENSE if options.dense else None)
    is_dense = options.dense or options.faults is not None
    return run(options.first, None if options.faults else options.seeds, options.faults, options.jobs, is_dense)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--faults", type=int, help="as many dense seeds as it takes for this many faults")
    parser.add_argument("--dense", action="store_true", help="few clients and several faults a second")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many run at once")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--verbose", action="store_true", help="with --seed: all that happened, and the nodes' log")
    return parser.parse_args()


def show(seed: int, verbose: bool, course: Course | None) -> int:
    """Simulate one seed and print its result."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="         %(name)s: %(message)s")
    outcome = simulate(seed, course)
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


@dataclass(slots=True)
class Total:
    """Results of all seeds so far."""

    seeds: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    failed: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        hours = self.simulated_s / 3600
        return f"{self.seeds} seeds, {self.faults} faults, {hours:.1f} simulated hours, {len(self.failed)} failed"


def run(first: int, seeds: int | None, faults: int | None, jobs: int, is_dense: bool) -> int:
    """Simulate many seeds, or as many as it takes for that many faults, and print those that fail."""
    console = Console(stderr=True)
    began_s = time.monotonic()
    total = Total()
    columns = [TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(jobs) as pool:
        task = progress.add_task("", total=seeds if faults is None else faults)
        numbers = count(first) if seeds is None else iter(range(first, first + seeds))
        running = {pool.submit(simulated, seed, is_dense) for seed in islice(numbers, 2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                _add(total, *each.result())
                if not console.is_terminal and total.seeds % TOLD == 0:
                    print(total, file=sys.stderr, flush=True)
            progress.update(task, completed=total.seeds if faults is None else total.faults)
            if faults is None or total.faults < faults:
                running |= {pool.submit(simulated, seed, is_dense) for seed in islice(numbers, len(done))}
    took_s = time.monotonic() - began_s
    print(f"{total}, in {took_s:.0f} s ({total.faults / took_s:.1f} faults/s)")
    if total.failed:
        print(f"failed: {sorted(total.failed)}")
        dense = " --dense" if is_dense else ""
        print(f"look closer with: python -m bench.simulation --seed {min(total.failed)}{dense} --verbose")
    return 1 if total.failed else 0


def _add(total: Total, seed: int, inflicted: int, elapsed_s: float, problem: str) -> None:
    total.seeds += 1
    total.faults += inflicted
    total.simulated_s += elapsed_s
    if problem:
        total.failed.append(seed)
        print(problem, flush=True)


def simulated(seed: int, is_dense: bool) -> tuple[int, int, float, str]:
    """Simulate a seed; return it, how many faults there were, how long that lasted for the nodes, and what broke."""
    logging.disable(logging.CRITICAL)
    outcome: Outcome = simulate(seed, DENSE if is_dense else None)
    return seed, outcome.inflicted, outcome.elapsed_s, "" if outcome.is_good else str(outcome)


if __name__ == "__main__":
    sys.exit(main())
