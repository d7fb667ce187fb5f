"""Defines tables for automatic augmentation: operations, their magnitudes, and AutoAugment's sub-policies.

All tables except `TIMM`, `RAND_V3`, `RAND_V4`, `MIX` and those of PaddleClas are equal to the tables of
``nvidia.dali.auto_aug``, which the DALI backend uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ppcls.zoo import read_table

PolicyName = Literal["image_net", "reduced_image_net", "svhn", "reduced_cifar10"]
PolicySource = Literal["paper", "paddleclas"]
BINS = 11  # number of magnitudes in AutoAugment's sub-policies
PADDLECLAS_BINS = 10  # the same in PaddleClas


@dataclass(frozen=True)
class Augmentation:
    """An operation and the range of its magnitude.

    Attributes:
        name: Name of the operation, such as ``"shear_x"``.
        low: Magnitude of the first bin.
        high: Magnitude of the last bin. The magnitudes of the other bins are evenly spaced.
        signed: Whether the magnitude is negated for half of the images.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    signed: bool = False

    def magnitudes(self, bins: int) -> NDArray[np.float32]:
        """Returns the magnitude of each bin, [bins] float32."""
        return np.linspace(self.low, self.high, bins, dtype=np.float32)


Suite = Mapping[str, Augmentation]  # operations, keyed by name
Stages = tuple[tuple[str, ...], ...]  # for each stage, the names of the operations to choose from


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
    """Returns the enhancing operations.

    Args:
        low: Magnitude of the first bin.
        high: Magnitude of the last bin.
        signed: Whether magnitudes are differences of the factor from 1, with a random sign. Otherwise,
            magnitudes are factors.
    """
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
_ROTATION = Augmentation("rotate", 0, 30)  # PaddleClas rotates only counter-clockwise
AUTO_PADDLECLAS = RAND | _suite(_ROTATION, Augmentation("invert"))
RAND_PADDLECLAS = {name: entry for name, entry in RAND.items() if name != "identity"} | _suite(
    _ROTATION, Augmentation("solarize", 0, 256), Augmentation("invert")
)
TIMM = _suite(  # timm's ranges; posterize retains at least one bit
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
    """Returns a suite with ``furthest`` as the maximum translation, in pixels or as a share of the side."""
    return {
        name: replace(augmentation, high=furthest) if name.startswith("translate") else augmentation
        for name, augmentation in suite.items()
    }


class SubPolicyStep(NamedTuple):
    """One operation of a sub-policy.

    Attributes:
        name: Name of the operation.
        probability: Probability of the operation.
        bin: Bin of the magnitude; 0 if the operation has no magnitude.
    """

    name: str
    probability: float
    bin: int = 0


SubPolicy = tuple[SubPolicyStep, ...]


def _read_step(text: str) -> SubPolicyStep:
    name, probability, *bins = text.split()
    return SubPolicyStep(name, float(probability), *map(int, bins))


@cache
def read_policies() -> dict[PolicyName, tuple[SubPolicy, ...]]:
    """Returns AutoAugment's policies, which are lists of sub-policies."""
    return {
        cast(PolicyName, name): tuple(tuple(map(_read_step, line.split(","))) for line in lines)
        for name, lines in read_table(Path(__file__).with_name("autoaugment.yaml")).items()
    }


class SubPolicyTable(NamedTuple):
    """AutoAugment's sub-policies as arrays, from which the sub-policies of a whole batch can be selected.

    Attributes:
        stages: Names of the first operations and of the second operations. Both lists end in identity.
        operation: [S, 2] int32, positions in ``stages`` of both operations of each sub-policy; identity if
            there is no second operation.
        bin: [S, 2] int32, bins of the magnitudes.
        probability: [S, 2] float64, probabilities of the operations.
    """

    stages: Stages
    operation: NDArray[np.int32]
    bin: NDArray[np.int32]
    probability: NDArray[np.float64]


@cache
def sub_policy_table(name: PolicyName) -> SubPolicyTable:
    """Returns the sub-policies of an AutoAugment policy as arrays."""
    pairs = [(*steps, SubPolicyStep("identity", 0.0))[:2] for steps in read_policies()[name]]
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
