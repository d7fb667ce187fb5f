"""The policies of AutoAugment (Cubuk et al. 2019, appendix), as ``nvidia.dali.auto_aug`` has them.

A line is a sub-policy: operations one after the other, each with its probability and its magnitude's bin of
`BINS` where it has a magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

PolicyName = Literal["image_net", "reduced_image_net", "svhn", "reduced_cifar10"]

BINS = 11


@dataclass(frozen=True)
class Step:
    """One operation of a sub-policy.

    Attributes:
        name: The operation.
        probability: Of being applied.
        bin: Of its magnitude, 0 to ``BINS - 1``; 0 where it has none.
    """

    name: str
    probability: float
    bin: int = 0


SubPolicy = tuple[Step, ...]


def _read_step(text: str) -> Step:
    name, probability, *bins = text.split()
    return Step(name, float(probability), *map(int, bins))


def _read(table: str) -> tuple[SubPolicy, ...]:
    return tuple(tuple(map(_read_step, line.split(","))) for line in table.strip().splitlines())


POLICIES: dict[PolicyName, tuple[SubPolicy, ...]] = {
    "image_net": _read("""
        equalize 0.8, shear_y 0.8 4
        color 0.4 9, equalize 0.6
        color 0.4 1, rotate 0.6 8
        solarize 0.8 3, equalize 0.4
        solarize 0.4 2, solarize 0.6 2
        color 0.2 0, equalize 0.8
        equalize 0.4, solarize_add 0.8 3
        shear_x 0.2 9, rotate 0.6 8
        color 0.6 1, equalize 1.0
        invert 0.4, rotate 0.6 0
        equalize 1.0, shear_y 0.6 3
        color 0.4 7, equalize 0.6
        posterize 0.4 6, auto_contrast 0.4
        solarize 0.6 8, color 0.6 9
        solarize 0.2 4, rotate 0.8 9
        rotate 1.0 7, translate_y 0.8 9
        solarize 0.8 4
        shear_y 0.8 0, color 0.6 4
        color 1.0 0, rotate 0.6 2
        equalize 0.8
        equalize 1.0, auto_contrast 0.6
        shear_y 0.4 7, solarize_add 0.6 7
        posterize 0.8 2, solarize 0.6 10
        solarize 0.6 8, equalize 0.6
        color 0.8 6, rotate 0.4 5
    """),
    "reduced_image_net": _read("""
        posterize 0.4 8, rotate 0.6 9
        solarize 0.6 5, auto_contrast 0.6
        equalize 0.8, equalize 0.6
        posterize 0.6 7, posterize 0.6 6
        equalize 0.4, solarize 0.2 4
        equalize 0.4, rotate 0.8 8
        solarize 0.6 3, equalize 0.6
        posterize 0.8 5, equalize 1.0
        rotate 0.2 3, solarize 0.6 8
        equalize 0.6, posterize 0.4 6
        rotate 0.8 8, color 0.4 0
        rotate 0.4 9, equalize 0.6
        equalize 0.8
        invert 0.6, equalize 1.0
        color 0.6 4, contrast 1.0 8
        rotate 0.8 8, color 1.0 2
        color 0.8 8, solarize 0.8 7
        sharpness 0.4 7, invert 0.6
        shear_x 0.6 5, equalize 1.0
        color 0.4 0, equalize 0.6
        equalize 0.4, solarize 0.2 4
        solarize 0.6 5, auto_contrast 0.6
        invert 0.6, equalize 1.0
        color 0.6 4, contrast 1.0 8
        equalize 0.8, equalize 0.6
    """),
    "svhn": _read("""
        shear_x 0.9 4, invert 0.2
        shear_y 0.9 8, invert 0.7
        equalize 0.6, solarize 0.6 6
        invert 0.9, equalize 0.6
        equalize 0.6, rotate 0.9 3
        shear_x 0.9 4, auto_contrast 0.8
        shear_y 0.9 8, invert 0.4
        shear_y 0.9 5, solarize 0.2 6
        invert 0.9, auto_contrast 0.8
        equalize 0.6, rotate 0.9 3
        shear_x 0.9 4, solarize 0.3 3
        shear_y 0.8 8, invert 0.7
        equalize 0.9, translate_y 0.6 6
        invert 0.9, equalize 0.6
        contrast 0.3 3, rotate 0.8 4
        invert 0.8
        shear_y 0.7 6, solarize 0.4 8
        invert 0.6, rotate 0.8 4
        shear_y 0.3 7, translate_x 0.9 3
        shear_x 0.1 6, invert 0.6
        solarize 0.7 2, translate_y 0.6 7
        shear_y 0.8 4, invert 0.8
        shear_x 0.7 9, translate_y 0.8 3
        shear_y 0.8 5, auto_contrast 0.7
        shear_x 0.7 2, invert 0.1
    """),
    "reduced_cifar10": _read("""
        invert 0.1, contrast 0.2 6
        rotate 0.7 2, translate_x 0.3 9
        sharpness 0.8 1, sharpness 0.9 3
        shear_y 0.5 8, translate_y 0.7 9
        auto_contrast 0.5, equalize 0.9
        shear_y 0.2 7, posterize 0.3 7
        color 0.4 3, brightness 0.6 7
        sharpness 0.3 9, brightness 0.7 9
        equalize 0.6, equalize 0.5
        contrast 0.6 7, sharpness 0.6 5
        color 0.7 7, translate_x 0.5 8
        equalize 0.3, auto_contrast 0.4
        translate_y 0.4 3, sharpness 0.2 6
        brightness 0.9 6, color 0.2 8
        solarize 0.5 2
        equalize 0.2, auto_contrast 0.6
        equalize 0.2, equalize 0.6
        color 0.9 9, equalize 0.6
        auto_contrast 0.8, solarize 0.2 8
        brightness 0.1 3, color 0.7 0
        solarize 0.4 5, auto_contrast 0.9
        translate_y 0.9 9, translate_y 0.7 9
        auto_contrast 0.9, solarize 0.8 3
        equalize 0.8, invert 0.1
        translate_y 0.7 9, auto_contrast 0.9
    """),
}


@cache
def operations_by_place(name: PolicyName) -> tuple[tuple[str, ...], ...]:
    """Returns what a policy's sub-policies have at their first and second place, and nothing at all."""
    places: tuple[dict[str, None], ...] = ({}, {})
    for pair in POLICIES[name]:
        for place, step in zip(places, pair, strict=False):
            place[step.name] = None
    first, second = places
    return (*first, "identity"), (*second, "identity")


class Table(NamedTuple):
    """A policy as arrays [sub-policies, 2]; one that lacks a second operation has identity there.

    Attributes:
        operation: int32, positions in `operations_by_place`.
        bin: int32.
        probability: float64.
    """

    operation: NDArray[np.int32]
    bin: NDArray[np.int32]
    probability: NDArray[np.float64]


@cache
def as_table(name: PolicyName) -> Table:
    """Returns a policy as arrays, for choosing for a whole batch."""
    names, pairs = operations_by_place(name), POLICIES[name]
    shape = len(pairs), 2
    table = Table(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape))
    for row, pair in enumerate(pairs):
        steps = (*pair, Step("identity", 0.0))[:2]
        for place, step in enumerate(steps):
            table.operation[row, place] = names[place].index(step.name)
            table.bin[row, place], table.probability[row, place] = step.bin, step.probability
    return table
