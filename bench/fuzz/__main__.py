"""Fuzz all five ports of a node, and the decoders behind them.

    python -m bench.fuzz --minutes 60                 an hour; some 10 million inputs on two cores
    python -m bench.fuzz --inputs 100000 --seed 7     until that many were sent
    python -m bench.fuzz --replay finding-1234.jsonl  what was saved with a finding, again

Every frame, packet or request sent counts as one input. Findings are: a traceback in the node's log, an exit, an
honest client whose round trip takes too long, RSS above --memory-bytes + --resident-bytes + a constant, a message of
the honest client that is lost or comes again after the final restart, a decoder that reads bytes in two ways. Each is
saved once, by its signature, with the cases sent before it, narrowed to one if one is enough. Exit code 1 if there
is any.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.fuzz.cases import PROTOCOLS
from bench.fuzz.run import NARROW_S, Result, Settings, main
from flyball.broker.core.memory import BASE_BYTES

REPORT_S = 10.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to fuzz")
    parser.add_argument("--inputs", type=int, help="stop after this many inputs")
    parser.add_argument("--seed", type=int, default=1, help="random seed; the same one gives the same cases")
    parser.add_argument("--store", choices=("embedded", "memory"), default="embedded")
    parser.add_argument("--hang-s", type=float, default=10.0, help="longest round trip of the honest client")
    parser.add_argument("--rss-constant-mib", type=int, default=BASE_BYTES >> 20)
    parser.add_argument(
        "--narrow-s", type=float, default=NARROW_S, help="time to narrow each finding; 0 is not at all"
    )
    parser.add_argument("--only", action="append", choices=PROTOCOLS, help="fuzz this protocol; may be repeated")
    parser.add_argument("--no-decoders", action="store_true", help="fuzz the node only")
    parser.add_argument("--replay", type=Path, help="play the cases of this file instead")
    parser.add_argument("--keep", type=Path, help="folder for data, logs and findings; a temporary one without it")
    return parser.parse_args()


def run() -> int:
    options = parse()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="flyball-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        folder,
        options.seed,
        options.minutes * 60,
        options.inputs,
        options.store,
        options.hang_s,
        options.rss_constant_mib << 20,
        not options.no_decoders,
        options.narrow_s,
        tuple(options.only or PROTOCOLS),
    )
    result = main(settings, Progress(), options.replay)
    print(result)
    for finding in result.findings.values():
        print(f"\nFINDING {finding}\n{finding.text}")
    if result.is_good and options.keep is None:
        shutil.rmtree(folder)
    return 0 if result.is_good else 1


class Progress:
    """Prints a line now and then: on a terminal over the last one."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._next_s = 0.0

    def __call__(self, result: Result) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        is_terminal = sys.stderr.isatty()
        self._next_s = now_s + (1.0 if is_terminal else REPORT_S)
        result.seconds = now_s - self._began_s
        print(f"\r{result}" if is_terminal else result, end="" if is_terminal else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run())
