"""Tables of automatic augmentation: operations, ranges of their magnitudes, AutoAugment's sub-policies.

All except `TIMM`, `RAND_V3`, `RAND_V4` and `MIX` equal those of ``nvidia.dali.auto_aug``, whose operators
work on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

PolicyName = Literal["image_net", "reduced_image_net", "svhn", "reduced_cifar10"]
BINS = 11  # of the magnitudes in AutoAugment's sub-policies


@dataclass(frozen=True)
class Augmentation:
    """An operation and the range of its magnitude.

    Attributes:
        name: Name such as ``"shear_x"``.
        low: Magnitude of the first bin.
        high: Magnitude of the last bin; the others are evenly spaced in between.
        signed: Whether the magnitude is negated for half of the images.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    signed: bool = False

    def magnitudes(self, bins: int) -> NDArray[np.float32]:
        """Returns the magnitude of each bin, [bins] float32."""
        return np.linspace(self.low, self.high, bins, dtype=np.float32)


Suite = Mapping[str, Augmentation]  # by name
Stages = tuple[tuple[str, ...], ...]  # names of the operations that each stage chooses from


def _suite(*augmentations: Augmentation) -> dict[str, Augmentation]:
    return {augmentation.name: augmentation for augmentation in augmentations}


def _geometric(shear: float, angle: float) -> tuple[Augmentation, ...]:
    return (
        Augmentation("translate_x", 0, 0, signed=True),
        Augmentation("translate_y", 0, 0, signed=True),
        Augmentation("shear_x", 0, shear, signed=True),
        Augmentation("shear_y", 0, shear, signed=True),
        Augmentation("rotate", 0, angle, signed=True),
    )


def _enhancing(low: float, high: float, signed: bool) -> tuple[Augmentation, ...]:
    """Returns enhancements; the magnitude is the factor if unsigned, and the difference from 1 if signed."""
    names = ("brightness", "contrast", "color", "sharpness")
    return tuple(Augmentation(name, low, high, signed) for name in names)


_PLAIN = tuple(map(Augmentation, ("equalize", "auto_contrast", "identity")))

RAND = _suite(
    *_geometric(0.3, 30),
    *_enhancing(0, 0.9, signed=True),
    Augmentation("posterize", 8, 4),
    Augmentation("solarize", 256, 0),
    *_PLAIN,
)
RAND_AS_AUTO = _suite(
    *_geometric(0.3, 30),
    *_enhancing(0.1, 1.9, signed=False),
    Augmentation("posterize", 0, 4),
    Augmentation("solarize", 0, 256),
    *_PLAIN,
)
AUTO = RAND_AS_AUTO | _suite(Augmentation("invert"), Augmentation("solarize_add", 0, 110))
TIMM = _suite(  # timm's ranges; posterize keeps at least one bit
    *_geometric(0.3, 30),
    *_enhancing(0, 0.9, signed=True),
    Augmentation("posterize", 4, 0),
    Augmentation("solarize", 256, 0),
    Augmentation("solarize_add", 0, 110),
    Augmentation("invert"),
    *_PLAIN,
)
RAND_V3 = {name: entry for name, entry in RAND.items() if name != "identity"} | _suite(
    Augmentation("solarize", 255, 0), Augmentation("invert")
)
RAND_V4 = RAND | _suite(Augmentation("invert"), Augmentation("cutout", 0, 20))
MIX = _suite(
    *_geometric(0.3, 30),
    Augmentation("posterize", 4, 0),
    Augmentation("solarize", 256, 0),
    *_PLAIN,
)
TRIVIAL_WIDE = _suite(
    *_geometric(0.99, 135),
    *_enhancing(0.01, 0.99, signed=True),
    Augmentation("posterize", 8, 2),
    Augmentation("solarize", 256, 0),
    *_PLAIN,
)


def with_translation(suite: Suite, furthest: float) -> dict[str, Augmentation]:
    """Returns a suite whose translations reach up to ``furthest``: pixels, or a share of the side."""
    return {
        name: replace(augmentation, high=furthest) if name.startswith("translate") else augmentation
        for name, augmentation in suite.items()
    }


class SubPolicyStep(NamedTuple):
    """One operation of a sub-policy, its probability, and the bin of its magnitude (0 if it has none)."""

    name: str
    probability: float
    bin: int = 0


SubPolicy = tuple[SubPolicyStep, ...]


def _read(table: str) -> tuple[SubPolicy, ...]:
    """Reads one sub-policy per line: steps of name, probability and bin."""

    def read_step(text: str) -> SubPolicyStep:
        name, probability, *bins = text.split()
        return SubPolicyStep(name, float(probability), *map(int, bins))

    return tuple(tuple(map(read_step, line.split(","))) for line in table.strip().splitlines())


# Cubuk et al. 2019, appendix.
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


class SubPolicyTable(NamedTuple):
    """AutoAugment's sub-policies as arrays [sub-policies, 2], to choose from for a whole batch.

    Attributes:
        stages: Names of the first and second operations, each list ending in identity.
        operation: int32, positions in ``stages``; identity where there is no second operation.
        bin: int32.
        probability: float64.
    """

    stages: Stages
    operation: NDArray[np.int32]
    bin: NDArray[np.int32]
    probability: NDArray[np.float64]


@cache
def sub_policy_table(name: PolicyName) -> SubPolicyTable:
    """Returns the sub-policies of an AutoAugment policy as arrays."""
    pairs = [(*steps, SubPolicyStep("identity", 0.0))[:2] for steps in POLICIES[name]]
    names = [dict.fromkeys(step.name for step in steps) for steps in zip(*pairs, strict=True)]
    stages = tuple(
        (*(operation for operation in stage if operation != "identity"), "identity") for stage in names
    )
    operation = [[stages[k].index(step.name) for k, step in enumerate(pair)] for pair in pairs]
    return SubPolicyTable(
        stages,
        np.array(operation, np.int32),
        np.array([[step.bin for step in pair] for pair in pairs], np.int32),
        np.array([[step.probability for step in pair] for pair in pairs]),
    )
