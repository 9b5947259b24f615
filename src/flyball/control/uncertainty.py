"""All plants that the data allow: the confidence set, other delays, and a steeper part of the curve."""

from __future__ import annotations

import dataclasses

from flyball.control.plant import Plant

BOUNDARY_PLANTS = 24
# Tested plants are at these parts of the way from the estimate to the boundary of its confidence set.
RINGS = (1 / 3, 2 / 3, 1.0)
# The same for plants of a higher order, in the plane of each two axes of the ellipsoid.
PLANE_PLANTS = 8
PLANE_RINGS = (0.5, 1.0)


def confidence_set(plant: Plant) -> list[Plant]:
    """Return the estimated plant, first, and plants throughout its confidence set.

    The same for its alternatives, which have other delays, and then all of them again with the gain that the steepest
    part of the curve may have.
    """
    found = [one for each in (plant, *plant.alternatives) for one in _own_set(each)]
    if plant.steepest_ratio > 1:
        found += [_steeper(one, plant.steepest_ratio) for one in found]
    return found


def _own_set(plant: Plant) -> list[Plant]:
    # An ellipsoid has many planes; each needs fewer points.
    count, rings = (BOUNDARY_PLANTS, RINGS) if plant.order == 1 else (PLANE_PLANTS, PLANE_RINGS)
    estimate, *boundary = plant.variants(count)
    return [estimate, *(_between(estimate, far, share) for share in rings for far in boundary)]


def _between(near: Plant, far: Plant, share: float) -> Plant:
    a, b = (
        tuple(x + share * (y - x) for x, y in zip(*pair, strict=True))
        for pair in ((near.all_a, far.all_a), (near.all_b, far.all_b))
    )
    return dataclasses.replace(far, a=a[0], ar=a[1:], b=b[0], bs=b[1:])


def _steeper(plant: Plant, ratio: float) -> Plant:
    return dataclasses.replace(plant, b=ratio * plant.b, bs=tuple(ratio * b for b in plant.bs))
