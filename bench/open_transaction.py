"""Send and Pop while another session keeps a transaction open, so that nothing can be vacuumed: the ratio to normal.

python -m bench.open_transaction                  # four minutes held
python -m bench.open_transaction --held 30
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import asyncpg

from bench.load import Plan, Telesto, generate_elsewhere
from bench.nodes import node
from flyball.broker.store.postgres.embedded import EmbeddedPostgres

CLIENTS = 50
WARM_UP_S = 2.0


async def measure(address: tuple[str, int], seconds: float) -> float:
    """Return the requests per second over that time."""
    plan = Plan(Telesto(5, keeps_messages=True), address, CLIENTS, None, WARM_UP_S, seconds)
    outcome = await asyncio.to_thread(generate_elsewhere, plan)
    return len(outcome.latencies_us) / outcome.seconds


async def compare(address: tuple[str, int], dsn: str, held_s: float, seconds: float) -> None:
    normal = await measure(address, seconds)
    print(f"normal: {normal:,.0f} requests/s")
    other = await asyncpg.connect(dsn)
    try:
        await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        # The first statement takes the snapshot that keeps dead rows alive.
        await other.fetchval("SELECT count(*) FROM flyball.messages")
        await measure(address, held_s)
        held = await measure(address, seconds)
        size = await other.fetchval("SELECT pg_total_relation_size('flyball.messages')")
    finally:
        await other.close()
    print(f"after a transaction was open for {held_s:.0f} s: {held:,.0f} requests/s, {held / normal:.2f} of normal")
    print(f"the table has grown to {size / 2**20:,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", type=float, default=240.0, metavar="SECONDS", help="how long it is open before")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each measurement takes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder:
        data = Path(folder) / "data"
        with node("embedded", data, ["--trace", "off"]) as (_, addresses):
            asyncio.run(compare(addresses["telesto"], EmbeddedPostgres(data).dsn, options.held, options.seconds))


if __name__ == "__main__":
    main()
