"""RandAugment as PaddleClas's modern configs have it: ``TimmAutoAugment``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from ppcls.config.base.fields import Count
from ppcls.data.transforms.specs.augmentation import TIMM, Augmentation
from ppcls.data.transforms.specs.decisions import Decided, Draws, Sides, decide
from ppcls.data.transforms.specs.policies import Grey, Policy, Stages
from ppcls.data.transforms.specs.rng import normals

_STRONGEST = 10
_BINS_EACH = 10  # of one step of the magnitude
_NAMES = re.compile(r"m(?P<m>\d+)|mstd(?P<mstd>\d+(?:\.\d+)?)|inc(?P<inc>\d+)|n(?P<n>[1-9]\d*)")


class Strength(NamedTuple):
    """What ``config_str`` says."""

    magnitude: float = _STRONGEST
    deviation: float = 0.0
    layers: int = 2


def read_strength(text: str) -> Strength:
    """Reads ``rand-m9-mstd0.5-inc1``, whose parts have any order.

    Raises:
        ValueError: It is another policy than ``rand``, lacks ``inc``, or has a part that is not known.
    """
    policy, *parts = text.split("-")
    if policy != "rand":
        raise ValueError(f"expected a text such as rand-m9-mstd0.5-inc1, got '{text}'; see also AutoAugment")
    found: dict[str, str] = {}
    for part in parts:
        match = _NAMES.fullmatch(part)
        if match is None:
            raise ValueError(f"expected parts m, mstd, inc and n, each with a number, got '{part}'")
        found |= {name: number for name, number in match.groupdict().items() if number is not None}
    if "inc" not in found:
        raise ValueError(
            f"expected the part inc1, for magnitudes that strengthen all operations, got '{text}'; "
            "RandAugment with monotonic_mag: False has the others"
        )
    usual = Strength()
    return Strength(
        float(found.get("m", usual.magnitude)), float(found.get("mstd", 0)), int(found.get("n", usual.layers))
    )


def _check(text: str) -> str:
    read_strength(text)
    return text


class TimmAutoAugment(Policy):
    """Two operations, each drawn from 15 and done to every second image, of magnitudes around one.

    So timm's variant of RandAugment (Cubuk et al. 2020) has it. Magnitudes are of the normal distribution,
    cut off at 0 and 10, and all operations but inversion get stronger with them.
    """

    furthest_share: ClassVar[float | None] = 0.45

    config_str: Annotated[str, AfterValidator(_check)] = Field(
        "rand-m9-mstd0.5-inc1",
        description="rand, then in any order: m, the mean magnitude, of 10; mstd, its standard deviation; "
        "inc1; n, operations an image, by default 2",
    )
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "random"] | None = Field(
        None, description="read for PaddleClas; what moves is interpolated bilinearly"
    )
    img_size: Count | tuple[Count, Count] | None = Field(
        None, description="read for PaddleClas; translations go by the image's own sides"
    )
    fill_value: Grey = Field(
        116, description="grey of what a translation, shear or rotation uncovers, near ImageNet's mean"
    )

    @property
    def strength(self) -> Strength:
        """What ``config_str`` says."""
        return read_strength(self.config_str)

    @property
    def draws(self) -> int:  # type: ignore[override]
        """An operation, a coin and a sign for each layer; an even count for the normal distribution."""
        layers = self.strength.layers
        return 3 * layers + 2 * -(-layers // 2)

    @property
    def operations(self) -> Mapping[str, Augmentation]:
        """The 15, and nothing at all."""
        return TIMM

    @property
    def bins(self) -> int:
        """Ten for each step of the magnitude."""
        return _STRONGEST * _BINS_EACH + 1

    @property
    def stages(self) -> Stages:
        """All operations, as often as there are layers."""
        return (tuple(TIMM),) * self.strength.layers


@decide.register
def _(spec: TimmAutoAugment, draws: Draws, sides: Sides) -> Decided:
    """Operation, bin, sign and sides as `Policy` says, of each layer."""
    mean, deviation, layers = spec.strength
    nothing = len(spec.operations) - 1
    drawn = (draws[:, :layers].astype(np.float64) * nothing).astype(np.int32)
    operation = np.where(draws[:, layers : 2 * layers] < 0.5, drawn, nothing).astype(np.int32)
    negated = (draws[:, 2 * layers : 3 * layers] < 0.5).astype(np.int32)
    magnitude = np.clip(mean + deviation * normals(draws[:, 3 * layers :])[:, :layers], 0, _STRONGEST)
    bins = np.rint(magnitude * _BINS_EACH).astype(np.int32)
    return operation, bins, negated, *spec.sides_for_translation(sides)
