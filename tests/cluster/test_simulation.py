"""Several nodes, their database, network and clients in a simulation: whatever the seed breaks, promises are kept.

Thousands of seeds: `python -m bench.simulation`.
"""

from __future__ import annotations

import pytest

from tests.cluster.simulation.world import simulate

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_reordered_whatever_breaks(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.is_good, f"{outcome}\nlook closer with: python -m bench.simulation --seed {seed} --verbose"


def test_the_same_seed_does_the_same_again_to_the_byte() -> None:
    first, second = simulate(7), simulate(7)
    assert first.operations == second.operations
    assert (first.digest, first.events) == (second.digest, second.events)
    assert simulate(8).digest != first.digest
