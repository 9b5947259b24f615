"""Kill the broker, its PostgreSQL, or both, again and again under load, and check every answer that was given.

    python -m bench.crashes --rounds 100
    python -m bench.crashes --rounds 20 --victims postgres --seed 7

The rounds are those of tests/broker/node/test_recovery.py. The exit code is 1 at the first answer that was not true.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.broker.chaos import VICTIMS, Chaos


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victims", default=",".join(VICTIMS), help="processes to kill in turn")
    options = parser.parse_args()
    victims = options.victims.split(",")
    with tempfile.TemporaryDirectory(prefix="flyball-chaos-") as folder:
        chaos = Chaos(Path(folder) / "data", options.seed, victims)
        try:
            tally = chaos.run(options.rounds, report=print)
        except AssertionError as error:
            print(f"after {chaos.tally}: {error}", file=sys.stderr)
            return 1
    print(f"every answer was true: {tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
