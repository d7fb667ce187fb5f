"""The operations of automatic augmentation and the ranges of their magnitudes.

The ranges, but for `TIMM`, are those of ``nvidia.dali.auto_aug``, whose operators work on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Augmentation:
    """An operation and how strong it may be.

    Attributes:
        name: Such as ``"shear_x"``.
        low: Magnitude of the first bin.
        high: Magnitude of the last bin; the others are evenly spaced between.
        signed: Whether the magnitude is negated for every second image.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    signed: bool = False

    def magnitudes(self, bins: int) -> NDArray[np.float32]:
        """Returns the magnitude of each bin, [bins] float32."""
        return np.linspace(self.low, self.high, bins, dtype=np.float32)


Suite = Mapping[str, Augmentation]  # by name


def _suite(*augmentations: Augmentation) -> dict[str, Augmentation]:
    return {each.name: each for each in augmentations}


def _geometric(shear: float, angle: float) -> tuple[Augmentation, ...]:
    return (
        Augmentation("translate_x", 0, 0, signed=True),
        Augmentation("translate_y", 0, 0, signed=True),
        Augmentation("shear_x", 0, shear, signed=True),
        Augmentation("shear_y", 0, shear, signed=True),
        Augmentation("rotate", 0, angle, signed=True),
    )


def _enhancing(low: float, high: float, signed: bool) -> tuple[Augmentation, ...]:
    """Factors where unsigned, and what is added to the factor 1 where signed."""
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
TRIVIAL_WIDE = _suite(
    *_geometric(0.99, 135),
    *_enhancing(0.01, 0.99, signed=True),
    Augmentation("posterize", 8, 2),
    Augmentation("solarize", 256, 0),
    *_PLAIN,
)


def with_translation(suite: Suite, furthest: float) -> dict[str, Augmentation]:
    """Returns a suite whose translations reach up to ``furthest``, pixels or a share of the side."""
    return {
        name: replace(each, high=furthest) if name.startswith("translate") else each
        for name, each in suite.items()
    }
