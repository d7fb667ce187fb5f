"""Automatic augmentation: AutoAugment, RandAugment, TrivialAugment, and timm's variant of RandAugment.

An image passes through stages. Each stage chooses an operation from a list, a bin of its magnitude, and a
sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, Index
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import need_rgb
from ppcls.data.transforms.specs.policy_tables import (
    AUTO,
    BINS,
    RAND,
    RAND_AS_AUTO,
    RAND_V3,
    TIMM,
    TRIVIAL_WIDE,
    Augmentation,
    PolicyName,
    Stages,
    Suite,
    sub_policy_table,
    with_translation,
)
from ppcls.data.transforms.specs.rng import normals

_MAX_TIMM_MAGNITUDE = 10
_TIMM_BINS_PER_UNIT = 10  # of the magnitude
_TIMM_PART = re.compile(r"m(?P<m>\d+)|mstd(?P<mstd>\d+(?:\.\d+)?)|inc(?P<inc>\d+)|n(?P<n>[1-9]\d*)")

GreyLevel = Annotated[int, Bound(ge=0, le=255)]
Integers = NDArray[np.int32]


def _pick(draws: Draws, count: int) -> Integers:
    """Maps uniform numbers in [0, 1) to 0 … count - 1."""
    return (draws.astype(np.float64) * count).astype(np.int32)


def _coin(draws: Draws) -> Integers:
    return (draws < 0.5).astype(np.int32)


class SearchSpace(NamedTuple):
    """What a policy chooses from.

    Attributes:
        operations: Operations by name, their translations not yet scaled.
        stages: Names of the operations that each stage chooses from.
        bins: Number of magnitudes, from the weakest to the strongest.
    """

    operations: Suite
    stages: Stages
    bins: int


class Policy(Transform):
    """Base of the policies. They work on 8-bit RGB images of any size and keep the size.

    Their decisions are three arrays [N, stages] int32: the operation, as a position in the stage's list of
    `stages`; the bin of its magnitude; and 1 where a signed magnitude is negated. If translations are shares
    of the side, a fourth array, [N, 2] float32, holds heights and widths.
    """

    furthest_share: ClassVar[float | None] = None
    furthest_pixels: ClassVar[int | None] = None

    fill_value: GreyLevel = Field(
        128, description="grey level of the area that a translation, shear or rotation uncovers"
    )
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
        need_rgb(state)
        return state

    @property
    def space(self) -> SearchSpace:
        """The operations that it chooses from."""
        raise NotImplementedError

    @property
    def stages(self) -> Stages:
        """Names of the operations that each stage chooses from."""
        return self.space.stages

    @property
    def bins(self) -> int:
        """Number of magnitudes, from the weakest to the strongest."""
        return self.space.bins

    @property
    def suite(self) -> Mapping[str, Augmentation]:
        """The operations by name, with the ranges of their magnitudes."""
        return with_translation(self.space.operations, self.translation[0])

    @property
    def translation(self) -> tuple[float, bool]:
        """The furthest translation, and whether it is a share of the image's side instead of pixels."""
        if self.max_translate_rel is not None:
            return self.max_translate_rel, True
        if self.max_translate_abs is not None:
            return float(self.max_translate_abs), False
        if self.furthest_share is not None:
            return self.furthest_share, True
        assert self.furthest_pixels is not None
        return float(self.furthest_pixels), False

    @property
    def translates(self) -> bool:
        """Whether any of its operations is a translation."""
        return any(name.startswith("translate") for names in self.stages for name in names)

    def sides_for_translation(self, sides: Sides) -> tuple[NDArray[np.float32], ...]:
        """Returns the images' heights and widths as the fourth decision, or nothing if not needed."""
        needed = self.translates and self.translation[1]
        return (sides.astype(np.float32, order="C"),) if needed else ()


class AutoAugment(Policy):
    """One of 25 pairs of operations found by a search (Cubuk et al. 2019)."""

    draws: ClassVar[int] = 5
    furthest_share: ClassVar[float | None] = 150 / 331  # table 6 of the paper: 150 pixels of 331

    policy: PolicyName = Field(
        "reduced_image_net", description="data set that the pairs were found on; PaddleClas's by default"
    )

    @property
    def space(self) -> SearchSpace:
        """The first and second operations of the pairs, and identity."""
        return SearchSpace(AUTO, sub_policy_table(self.policy).stages, BINS)


@decide.register
def decide_pair(spec: AutoAugment, draws: Draws, sides: Sides) -> Decisions:
    """Operation, bin, sign and sides as `Policy` describes, of a pair whose parts are applied or not."""
    table = sub_policy_table(spec.policy)
    pair = _pick(draws[:, 0], len(table.operation))
    applied = draws[:, 1:3] < table.probability[pair]
    identity = [len(names) - 1 for names in spec.stages]
    operation = np.where(applied, table.operation[pair], np.array(identity, np.int32))
    return operation, table.bin[pair], _coin(draws[:, 3:5]), *spec.sides_for_translation(sides)


class RandAugment(Policy):
    """``num_layers`` operations, each drawn from 14, all of one magnitude (Cubuk et al. 2020)."""

    furthest_share: ClassVar[float | None] = 100 / 224  # 100 pixels of 224, as in the paper's code

    num_layers: Count = Field(2, description="operations per image")
    magnitude: Index = Field(5, description="from 0, the weakest, to num_magnitude_bins - 1")
    num_magnitude_bins: Annotated[int, Bound(ge=2)] = Field(
        11,
        description="11 for PaddleClas's scale, 0 to 10; 31 for that of DALI and torchvision, 0 to 30",
    )
    monotonic_mag: bool = Field(
        True,
        description="higher magnitudes are stronger; False: AutoAugment's ranges, some of which weaken",
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
    def space(self) -> SearchSpace:
        """All 14 operations in each layer."""
        operations = RAND if self.monotonic_mag else RAND_AS_AUTO
        return SearchSpace(operations, (tuple(operations),) * self.num_layers, self.num_magnitude_bins)


@decide.register
def decide_layers(spec: RandAugment, draws: Draws, sides: Sides) -> Decisions:
    """Operation, bin, sign and sides of each layer, as `Policy` describes them."""
    operation = _pick(draws[:, 0::2], len(spec.space.operations))
    bins = np.full_like(operation, spec.magnitude)
    return operation, bins, _coin(draws[:, 1::2]), *spec.sides_for_translation(sides)


class RandAugmentV3(RandAugment):
    """PaddleClas's RandAugment of MobileViTV2: inversion instead of identity, black uncovered areas."""

    furthest_share: ClassVar[float | None] = 150 / 331

    magnitude: Index = Field(3, description="from 0, the weakest, to num_magnitude_bins - 1")
    monotonic_mag: Literal[True] = Field(True, description="must be True")
    fill_value: GreyLevel = Field(
        0, description="grey level of the area that a translation, shear or rotation uncovers"
    )
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "random"] | None = Field(
        None,
        description="accepted for compatibility with PaddleClas, without effect; interpolation is bilinear",
    )

    @property
    def space(self) -> SearchSpace:
        """All 14 operations in each layer."""
        return SearchSpace(RAND_V3, (tuple(RAND_V3),) * self.num_layers, self.num_magnitude_bins)


class TrivialAugment(Policy):
    """One operation of random magnitude, from wide ranges (Müller & Hutter 2021, TrivialAugmentWide)."""

    draws: ClassVar[int] = 3
    furthest_pixels: ClassVar[int | None] = 32

    num_magnitude_bins: Annotated[int, Bound(ge=2)] = Field(
        31, description="number of magnitudes to draw from"
    )

    @property
    def space(self) -> SearchSpace:
        """All 14 operations, once."""
        return SearchSpace(TRIVIAL_WIDE, (tuple(TRIVIAL_WIDE),), self.num_magnitude_bins)


@decide.register
def decide_operation(spec: TrivialAugment, draws: Draws, sides: Sides) -> Decisions:
    """Operation, bin, sign and sides as `Policy` describes."""
    operation, bins = _pick(draws[:, :1], len(spec.space.operations)), _pick(draws[:, 1:2], spec.bins)
    return operation, bins, _coin(draws[:, 2:]), *spec.sides_for_translation(sides)


class TimmStrength(NamedTuple):
    """The settings that ``config_str`` encodes."""

    magnitude: float
    deviation: float
    layers: int


def parse_timm_config(text: str) -> TimmStrength:
    """Parses ``rand-m9-mstd0.5-inc1``, whose parts may have any order.

    Raises:
        ValueError: It is not the policy ``rand``, lacks ``inc``, or has an unknown part.
    """
    policy, *parts = text.split("-")
    if policy != "rand":
        raise ValueError(f"expected text such as rand-m9-mstd0.5-inc1, got '{text}'; see also AutoAugment")
    values: dict[str, str] = {}
    for part in parts:
        match = _TIMM_PART.fullmatch(part)
        if match is None:
            raise ValueError(f"expected parts m, mstd, inc and n, each with a number, got '{part}'")
        values |= {name: number for name, number in match.groupdict().items() if number is not None}
    if "inc" not in values:
        raise ValueError(
            f"expected the part inc1 (a higher magnitude strengthens all operations), got '{text}'; "
            "without it use RandAugment with monotonic_mag: False"
        )
    return TimmStrength(
        float(values.get("m", _MAX_TIMM_MAGNITUDE)), float(values.get("mstd", 0)), int(values.get("n", 2))
    )


def _check_timm_config(text: str) -> str:
    parse_timm_config(text)
    return text


class TimmAutoAugment(Policy):
    """Two operations, each drawn from 15 and applied to half of the images, with magnitudes around a mean.

    This is timm's variant of RandAugment (Cubuk et al. 2020). Magnitudes are normally distributed and clipped
    to 0..10. All operations except inversion strengthen with them.
    """

    ignored: ClassVar[Mapping[str, str]] = {"mean": "fill_value is the colour of uncovered areas"}
    furthest_share: ClassVar[float | None] = 0.45

    config_str: Annotated[str, AfterValidator(_check_timm_config)] = Field(
        "rand-m9-mstd0.5-inc1",
        description="rand, then in any order: m, the mean magnitude (0 to 10); mstd, its deviation; "
        "inc1; n, operations per image, by default 2",
    )
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "random"] | None = Field(
        None,
        description="accepted for compatibility with PaddleClas, without effect; interpolation is bilinear",
    )
    img_size: Count | tuple[Count, Count] | None = Field(
        None,
        description="accepted for compatibility with PaddleClas, without effect; "
        "translations use the image's sides",
    )
    fill_value: GreyLevel = Field(
        116,
        description="grey level of the area that a translation, shear or rotation uncovers; ImageNet's mean",
    )
    prob: Fraction = Field(1.0, description="share of the images that are augmented")

    @property
    def strength(self) -> TimmStrength:
        """The settings that ``config_str`` encodes."""
        return parse_timm_config(self.config_str)

    @property
    def draws(self) -> int:  # type: ignore[override]
        """An operation, a coin and a sign for each layer; an even count for the normal distribution.

        With ``prob``, also a coin for the image.
        """
        layers = self.strength.layers
        return 3 * layers + 2 * -(-layers // 2) + (self.prob < 1)

    @property
    def space(self) -> SearchSpace:
        """The 15 operations and identity in each layer; ten bins per unit of the magnitude."""
        bins = _MAX_TIMM_MAGNITUDE * _TIMM_BINS_PER_UNIT + 1
        return SearchSpace(TIMM, (tuple(TIMM),) * self.strength.layers, bins)


@decide.register
def decide_timm_layers(spec: TimmAutoAugment, draws: Draws, sides: Sides) -> Decisions:
    """Operation, bin, sign and sides of each layer, as `Policy` describes them."""
    mean, deviation, layers = spec.strength
    identity = len(TIMM) - 1
    drawn = _pick(draws[:, :layers], identity)
    operation = np.where(draws[:, layers : 2 * layers] < 0.5, drawn, identity).astype(np.int32)
    negated = _coin(draws[:, 2 * layers : 3 * layers])
    if spec.prob < 1:
        operation = np.where(draws[:, -1:] < spec.prob, operation, identity).astype(np.int32)
    gaussian = normals(draws[:, 3 * layers : 3 * layers + 2 * -(-layers // 2)])[:, :layers]
    magnitude = np.clip(mean + deviation * gaussian, 0, _MAX_TIMM_MAGNITUDE)
    bins = np.rint(magnitude * _TIMM_BINS_PER_UNIT).astype(np.int32)
    return operation, bins, negated, *spec.sides_for_translation(sides)
