"""Automatic augmentation: AutoAugment, RandAugment, TrivialAugment.

An image goes through stages; each chooses one operation from a list, a bin of its magnitude, and a sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, Index
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.augmentation import (
    AUTO,
    RAND,
    RAND_AS_AUTO,
    TRIVIAL_WIDE,
    Augmentation,
    with_translation,
)
from ppcls.data.transforms.specs.auto_augment import BINS, PolicyName, as_table, operations_by_place
from ppcls.data.transforms.specs.basic import need_8_bit, need_hwc
from ppcls.data.transforms.specs.decisions import Decided, Draws, Sides, decide

Grey = Annotated[int, Bound(ge=0, le=255)]
Stages = tuple[tuple[str, ...], ...]
Integers = NDArray[np.int32]


def _pick(draws: Draws, count: int) -> Integers:
    """Maps uniform numbers in [0, 1) to 0 … count - 1."""
    return (draws.astype(np.float64) * count).astype(np.int32)


def _coin(draws: Draws) -> Integers:
    return (draws < 0.5).astype(np.int32)


class Policy(Transform):
    """What the three have in common; they work on 8-bit RGB images of any size, and leave the size.

    Their decisions are three arrays [N, stages] int32: the operation, as a position in the stage's list of
    `stages`; the bin of its magnitude; and 1 where a magnitude that has a sign is negated. Where a
    translation is a share of the side, a fourth, [N, 2] float32, has heights and widths.
    """

    furthest_share: ClassVar[float | None] = None
    furthest_pixels: ClassVar[int | None] = None

    fill_value: Grey = Field(128, description="grey of what a translation, shear or rotation uncovers")
    max_translate_rel: Fraction | None = Field(
        None,
        description="furthest translation as a share of the side; by default 150/331 in AutoAugment, 100/224 "
        "in RandAugment, and 32 pixels in TrivialAugment",
    )
    max_translate_abs: Count | None = Field(
        None, description="furthest translation in pixels, instead of max_translate_rel"
    )

    @model_validator(mode="after")
    def _check_translation(self) -> Policy:
        if self.max_translate_rel is not None and self.max_translate_abs is not None:
            raise ValueError("expected max_translate_rel or max_translate_abs, not both")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_hwc(state)
        need_8_bit(state)
        if state.channels != 3:
            raise ValueError(f"works on RGB images, these have {state.channels} channels")
        return state

    @property
    def translation(self) -> tuple[float, bool]:
        """The furthest translation, and whether it is a share of the image's side rather than pixels."""
        if self.max_translate_rel is not None:
            return self.max_translate_rel, True
        if self.max_translate_abs is not None:
            return float(self.max_translate_abs), False
        if self.furthest_share is not None:
            return self.furthest_share, True
        assert self.furthest_pixels is not None
        return float(self.furthest_pixels), False

    def sides_for_translation(self, sides: Sides) -> tuple[NDArray[np.float32], ...]:
        """Returns the images' heights and widths as the fourth decision, or nothing."""
        needed = self.translates and self.translation[1]
        return (sides.astype(np.float32, order="C"),) if needed else ()

    @property
    def translates(self) -> bool:
        """Whether any of its operations is a translation."""
        return any(name.startswith("translate") for names in self.stages for name in names)

    @property
    def suite(self) -> Mapping[str, Augmentation]:
        """The operations by name, with the ranges of their magnitudes."""
        return with_translation(self.operations, self.translation[0])

    @property
    def operations(self) -> Mapping[str, Augmentation]:
        """The operations by name, their translations not yet scaled."""
        raise NotImplementedError

    @property
    def bins(self) -> int:
        """Steps between the weakest and the strongest magnitude, both included."""
        raise NotImplementedError

    @property
    def stages(self) -> Stages:
        """Names of the operations that each stage chooses from."""
        raise NotImplementedError


class AutoAugment(Policy):
    """One of 25 pairs of operations that a search found (Cubuk et al. 2019)."""

    draws: ClassVar[int] = 5
    furthest_share: ClassVar[float | None] = 150 / 331  # table 6 of the paper: 150 pixels of 331

    policy: PolicyName = Field(
        "reduced_image_net", description="which pairs, by what they were found on; by default PaddleClas's"
    )

    @property
    def operations(self) -> Mapping[str, Augmentation]:
        """Those of AutoAugment."""
        return AUTO

    @property
    def bins(self) -> int:
        """As the paper has it."""
        return BINS

    @property
    def stages(self) -> Stages:
        """What the pairs have at their first and second place, and nothing at all."""
        return operations_by_place(self.policy)


@decide.register
def _(spec: AutoAugment, draws: Draws, sides: Sides) -> Decided:
    """Operation, bin, sign and sides as `Policy` says, of a pair whose parts are applied or not."""
    table = as_table(spec.policy)
    pair = _pick(draws[:, 0], len(table.operation))
    applied = draws[:, 1:3] < table.probability[pair]
    nothing = [len(names) - 1 for names in spec.stages]
    operation = np.where(applied, table.operation[pair], np.array(nothing, np.int32))
    return operation, table.bin[pair], _coin(draws[:, 3:5]), *spec.sides_for_translation(sides)


class RandAugment(Policy):
    """``num_layers`` operations, each drawn from 14, all of one magnitude (Cubuk et al. 2020)."""

    furthest_share: ClassVar[float | None] = 100 / 224  # 100 pixels of 224, as in the paper's code

    num_layers: Count = Field(2, description="operations an image")
    magnitude: Index = Field(5, description="from 0, the weakest, to num_magnitude_bins - 1")
    num_magnitude_bins: Annotated[int, Bound(ge=2)] = Field(
        11, description="11 for PaddleClas's scale from 0 to 10; 31 for DALI's and torchvision's to 30"
    )
    monotonic_mag: bool = Field(
        True, description="stronger with magnitude; False takes AutoAugment's ranges, where some weaken"
    )

    @model_validator(mode="after")
    def _check_magnitude(self) -> RandAugment:
        if self.magnitude >= self.num_magnitude_bins:
            raise ValueError(
                f"expected a magnitude < num_magnitude_bins, {self.num_magnitude_bins}, got {self.magnitude}"
            )
        return self

    @property
    def draws(self) -> int:  # type: ignore[override]
        """An operation and a sign for each layer."""
        return 2 * self.num_layers

    @property
    def operations(self) -> Mapping[str, Augmentation]:
        """The 14."""
        return RAND if self.monotonic_mag else RAND_AS_AUTO

    @property
    def bins(self) -> int:
        """As configured."""
        return self.num_magnitude_bins

    @property
    def stages(self) -> Stages:
        """All operations, ``num_layers`` times."""
        return (tuple(self.operations),) * self.num_layers


@decide.register
def _(spec: RandAugment, draws: Draws, sides: Sides) -> Decided:
    """Operation, bin, sign and sides as `Policy` says, of each layer."""
    operation = _pick(draws[:, 0::2], len(spec.operations))
    bins = np.full_like(operation, spec.magnitude)
    return operation, bins, _coin(draws[:, 1::2]), *spec.sides_for_translation(sides)


class TrivialAugment(Policy):
    """One operation of random magnitude, from wide ranges (Müller & Hutter 2021, TrivialAugmentWide)."""

    draws: ClassVar[int] = 3
    furthest_pixels: ClassVar[int | None] = 32

    num_magnitude_bins: Annotated[int, Bound(ge=2)] = Field(31, description="magnitudes to draw from")

    @property
    def operations(self) -> Mapping[str, Augmentation]:
        """The 14, in their wide ranges."""
        return TRIVIAL_WIDE

    @property
    def bins(self) -> int:
        """As configured."""
        return self.num_magnitude_bins

    @property
    def stages(self) -> Stages:
        """All operations, once."""
        return (tuple(self.operations),)


@decide.register
def _(spec: TrivialAugment, draws: Draws, sides: Sides) -> Decided:
    """Operation, bin, sign and sides as `Policy` says."""
    operation, bins = _pick(draws[:, :1], len(spec.operations)), _pick(draws[:, 1:2], spec.bins)
    return operation, bins, _coin(draws[:, 2:]), *spec.sides_for_translation(sides)
