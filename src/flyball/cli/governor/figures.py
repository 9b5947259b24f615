"""The figures of a closed loop, as they are printed."""

from __future__ import annotations

from flyball.control.assessment import LoopFigures

HEADINGS = ("mean", "std", "settled after", "overshoot")


def figures_row(figures: LoopFigures) -> tuple[str, str, str, str]:
    """Return mean, standard deviation, settling and overshoot."""
    settled = "never" if figures.settling_samples is None else f"{figures.settling_samples} samples"
    return f"{figures.mean:.4g}", f"{figures.std:.3g}", settled, f"{figures.overshoot:.0%}"
