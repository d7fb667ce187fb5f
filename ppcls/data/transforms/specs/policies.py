"""Defines policies of automatic augmentation: AutoAugment, RandAugment and variants, and TrivialAugment.

A policy consists of stages. Each stage chooses an operation from a list, a magnitude, and the sign of the
magnitude.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, Index
from ppcls.config.base.problems import error_at
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import need_rgb
from ppcls.data.transforms.specs.policy_tables import (
    AUTO,
    AUTO_PADDLECLAS,
    BINS,
    PADDLECLAS_BINS,
    RAND,
    RAND_AS_AUTO,
    RAND_PADDLECLAS,
    RAND_V3,
    TIMM,
    TRIVIAL_WIDE,
    Augmentation,
    PolicyName,
    PolicySource,
    Stages,
    Suite,
    sub_policy_table,
    with_translation,
)
from ppcls.data.transforms.specs.rng import normals

_MAX_TIMM_MAGNITUDE = 10  # timm's magnitudes are 0 to 10
_TIMM_BINS_PER_UNIT = 10  # number of bins per unit of the magnitude
_TIMM_PART = re.compile(r"m(?P<m>\d+)|mstd(?P<mstd>\d+(?:\.\d+)?)|inc(?P<inc>\d+)|n(?P<n>[1-9]\d*)")

GreyLevel = Annotated[int, Bound(ge=0, le=255)]
Integers = NDArray[np.int32]


def _pick(draws: Draws, count: int) -> Integers:
    """Converts uniform random numbers in [0, 1) into integers from 0 to ``count`` - 1."""
    return (draws.astype(np.float64) * count).astype(np.int32)


def _coin(draws: Draws) -> Integers:
    return (draws < 0.5).astype(np.int32)


class SearchSpace(NamedTuple):
    """The operations and magnitudes that a policy chooses from.

    Attributes:
        operations: Operations, keyed by name, in which the maximum of translations is not set yet.
        stages: For each stage, the names of the operations to choose from.
        bins: Number of magnitudes.
    """

    operations: Suite
    stages: Stages
    bins: int


class Policy(Transform, abstract=True):
    """Base class of policies, which change 8-bit RGB images of any size and do not change the size.

    The decisions of a policy are three arrays, [N, stages] int32. The first one has the positions of the
    operations in `stages`, and the second one has the bins of the magnitudes. The third one is 1 if a signed
    magnitude is negated, else 0. If the maximum translation is a share of the side, a fourth array, [N, 2]
    float32, has the heights and widths of the images.
    """

    furthest_share: ClassVar[float | None] = None
    furthest_pixels: ClassVar[int | None] = None

    fill_value: GreyLevel = 128
    """Grey level of the area that a translation, shear or rotation uncovers."""
    max_translate_rel: Fraction | None = None
    """Maximum translation as a share of the side; null: 150/331 in AutoAugment, RandAugmentV3 and
    RandAugmentV4, 100/224 in RandAugment, 0.45 in TimmAutoAugment, 1/3 in AugMix, 32 pixels in
    TrivialAugment."""
    max_translate_abs: Count | None = None
    """Maximum translation in pixels; excludes max_translate_rel."""

    @model_validator(mode="after")
    def _check_translation(self) -> Policy:
        if self.max_translate_rel is not None and self.max_translate_abs is not None:
            raise ValueError("expected either max_translate_rel or max_translate_abs, got both")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_rgb(state)
        return state

    @property
    def space(self) -> SearchSpace:
        """Operations and magnitudes that the policy chooses from."""
        raise NotImplementedError

    @property
    def stages(self) -> Stages:
        """For each stage, the names of the operations to choose from."""
        return self.space.stages

    @property
    def bins(self) -> int:
        """Number of magnitudes."""
        return self.space.bins

    @property
    def suite(self) -> Mapping[str, Augmentation]:
        """Operations, keyed by name, with the ranges of their magnitudes."""
        return with_translation(self.space.operations, self.translation[0])

    @property
    def translation(self) -> tuple[float, bool]:
        """Maximum translation, and whether it is a share of the image's side instead of pixels."""
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
        """Whether any operation of the policy is a translation."""
        return any(name.startswith("translate") for names in self.stages for name in names)

    def sides_for_translation(self, sides: Sides) -> tuple[NDArray[np.float32], ...]:
        """Returns a tuple with heights and widths of the images, or an empty tuple if they are not needed."""
        needed = self.translates and self.translation[1]
        return (sides.astype(np.float32, order="C"),) if needed else ()


class AutoAugment(Policy):
    """Applies one of 25 pairs of operations, which were determined by a search (Cubuk et al. 2019)."""

    draws: ClassVar[int] = 5
    furthest_share: ClassVar[float | None] = 150 / 331  # table 6 of the paper: 150 pixels of 331

    policy: PolicyName = "reduced_image_net"
    """Dataset for which the pairs were determined; PaddleClas uses reduced_image_net."""
    source: PolicySource = "paper"
    """Ranges of the magnitudes. `paper`: those of the paper's code. `paddleclas`: those of PaddleClas, in
    which a higher magnitude always strengthens an operation; for example, posterize retains 8 to 4 bits
    instead of 0 to 4, and rotations are only counter-clockwise. PaddleClas's files use `paddleclas`."""

    @model_validator(mode="after")
    def _check_source(self) -> AutoAugment:
        if self.source == "paddleclas" and self.policy == "image_net":
            raise error_at("expected paper: PaddleClas does not have the policy image_net", "source")
        return self

    @property
    def space(self) -> SearchSpace:
        """Stage 1 has the first operations of all pairs, stage 2 the second ones. Both have identity."""
        stages = sub_policy_table(self.policy).stages
        if self.source == "paddleclas":
            return SearchSpace(AUTO_PADDLECLAS, stages, PADDLECLAS_BINS)
        return SearchSpace(AUTO, stages, BINS)


@decide.register
def decide_pair(spec: AutoAugment, draws: Draws, sides: Sides) -> Decisions:
    """Returns operations, magnitudes and signs as in `Policy`."""
    table = sub_policy_table(spec.policy)
    pair = _pick(draws[:, 0], len(table.operation))
    applied = draws[:, 1:3] < table.probability[pair]
    identity = [len(names) - 1 for names in spec.stages]
    operation = np.where(applied, table.operation[pair], np.array(identity, np.int32))
    return operation, table.bin[pair], _coin(draws[:, 3:5]), *spec.sides_for_translation(sides)


class RandAugment(Policy):
    """Applies random operations of equal magnitude, each drawn from 14 operations (Cubuk et al. 2020)."""

    furthest_share: ClassVar[float | None] = 100 / 224  # 100 pixels of 224, as in the paper's code

    num_layers: Count = 2
    """Number of operations per image."""
    magnitude: Index = 5
    """Strength of the operations, from 0 (weakest) to num_magnitude_bins - 1."""
    num_magnitude_bins: Annotated[int, Bound(ge=2)] = 11
    """Number of magnitudes: 11 for the scale of PaddleClas, 0 to 10; 31 for the scale of DALI and
    torchvision, 0 to 30."""
    monotonic_mag: bool = True
    """True: a higher magnitude strengthens all operations; False: use the ranges of AutoAugment's paper, in
    which a higher magnitude weakens some operations. With half of the highest magnitude, brightness,
    contrast, color and sharpness then change nothing. Only for `source: paper`."""
    source: PolicySource = "paper"
    """Operations and their ranges. `paper`: those of the paper, with identity. `paddleclas`: those of
    PaddleClas, with invert instead of identity, fewer bits and higher thresholds of solarize at lower
    magnitudes, counter-clockwise rotations, and translations up to 150/331 of the side. PaddleClas's files
    use `paddleclas`."""

    @model_validator(mode="after")
    def _check_source(self) -> RandAugment:
        if self.source == "paddleclas" and not self.monotonic_mag:
            text = "expected True with source: paddleclas, whose ranges are fixed; remove one of both keys"
            raise error_at(text, "monotonic_mag")
        return self

    @model_validator(mode="after")
    def _check_magnitude(self) -> RandAugment:
        if self.magnitude >= self.num_magnitude_bins:
            raise ValueError(
                f"expected a magnitude below num_magnitude_bins ({self.num_magnitude_bins}), got "
                f"{self.magnitude}"
            )
        return self

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers: two per layer, for an operation and a sign."""
        return 2 * self.num_layers

    @property
    def translation(self) -> tuple[float, bool]:
        """Maximum translation, and whether it is a share of the image's side instead of pixels."""
        if self.source == "paddleclas" and self.max_translate_rel is None and self.max_translate_abs is None:
            return 150 / 331, True
        return super().translation

    @property
    def space(self) -> SearchSpace:
        """Each layer chooses from all 14 operations."""
        operations: Suite = RAND if self.monotonic_mag else RAND_AS_AUTO
        if self.source == "paddleclas":
            bits = int(4 * self.magnitude / (self.num_magnitude_bins - 1))  # rounded down, as there
            operations = {**RAND_PADDLECLAS, "posterize": Augmentation("posterize", bits, bits)}
        return SearchSpace(operations, (tuple(operations),) * self.num_layers, self.num_magnitude_bins)


@decide.register
def decide_layers(spec: RandAugment, draws: Draws, sides: Sides) -> Decisions:
    """Returns operations, magnitudes and signs as in `Policy`."""
    operation = _pick(draws[:, 0::2], len(spec.space.operations))
    bins = np.full_like(operation, spec.magnitude)
    return operation, bins, _coin(draws[:, 1::2]), *spec.sides_for_translation(sides)


class RandAugmentV3(RandAugment):
    """PaddleClas's variant of RandAugment for MobileViTV2.

    It has inversion instead of the operation identity, and other defaults. For example, uncovered areas are
    black.
    """

    furthest_share: ClassVar[float | None] = 150 / 331

    magnitude: Index = 3
    """Strength of the operations, from 0 (weakest) to num_magnitude_bins - 1."""
    monotonic_mag: Literal[True] = True
    """Must be True."""
    source: Literal["paddleclas"] = "paddleclas"
    """Must be paddleclas."""
    fill_value: GreyLevel = 0
    """Grey level of the area that a translation, shear or rotation uncovers."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "random"] | None = None
    """No effect, accepted for compatibility with PaddleClas; interpolation is always bilinear."""

    @property
    def space(self) -> SearchSpace:
        """Each layer chooses from all 14 operations."""
        return SearchSpace(RAND_V3, (tuple(RAND_V3),) * self.num_layers, self.num_magnitude_bins)


class TrivialAugment(Policy):
    """Applies one operation of random magnitude (Müller & Hutter 2021, variant TrivialAugmentWide)."""

    draws: ClassVar[int] = 3
    furthest_pixels: ClassVar[int | None] = 32

    num_magnitude_bins: Annotated[int, Bound(ge=2)] = 31
    """Number of magnitudes from which one is drawn."""

    @property
    def space(self) -> SearchSpace:
        """The only stage chooses from all 14 operations."""
        return SearchSpace(TRIVIAL_WIDE, (tuple(TRIVIAL_WIDE),), self.num_magnitude_bins)


@decide.register
def decide_operation(spec: TrivialAugment, draws: Draws, sides: Sides) -> Decisions:
    """Returns operations, magnitudes and signs as in `Policy`."""
    operation = _pick(draws[:, :1], len(spec.space.operations))
    bins = _pick(draws[:, 1:2], spec.bins)
    return operation, bins, _coin(draws[:, 2:]), *spec.sides_for_translation(sides)


class TimmStrength(NamedTuple):
    """Settings in ``config_str``.

    Attributes:
        magnitude: Mean of the magnitudes, 0..10.
        deviation: Standard deviation of the magnitudes.
        layers: Number of operations per image.
    """

    magnitude: float
    deviation: float
    layers: int


def parse_timm_config(text: str) -> TimmStrength:
    """Parses a text such as ``rand-m9-mstd0.5-inc1``. The parts after ``rand`` may be in any order.

    Raises:
        ValueError: The policy is not ``rand``, the part ``inc`` is missing, or a part is unknown.
    """
    policy, *parts = text.split("-")
    if policy != "rand":
        raise ValueError(
            f"expected text that starts with rand, such as rand-m9-mstd0.5-inc1, got '{text}'; for other "
            "policies, use AutoAugment"
        )
    values: dict[str, str] = {}
    for part in parts:
        match = _TIMM_PART.fullmatch(part)
        if match is None:
            raise ValueError(f"expected m, mstd, inc or n, followed by a number, got '{part}'")
        values |= {name: number for name, number in match.groupdict().items() if number is not None}
    if "inc" not in values:
        raise ValueError(
            f"expected the part inc1 (a higher magnitude strengthens all operations), got '{text}'; add it, "
            "or use RandAugment with monotonic_mag: False"
        )
    return TimmStrength(
        float(values.get("m", _MAX_TIMM_MAGNITUDE)), float(values.get("mstd", 0)), int(values.get("n", 2))
    )


def _check_timm_config(text: str) -> str:
    parse_timm_config(text)
    return text


class TimmAutoAugment(Policy):
    """timm's variant of RandAugment (Cubuk et al. 2020).

    Operations are drawn from 15, and each one is applied to half of the images. Magnitudes are normally
    distributed and clipped to 0..10. A higher magnitude strengthens all operations except inversion.
    """

    ignored: ClassVar[Mapping[str, str]] = {"mean": "fill_value sets the colour of uncovered areas"}
    furthest_share: ClassVar[float | None] = 0.45

    config_str: Annotated[str, AfterValidator(_check_timm_config)] = "rand-m9-mstd0.5-inc1"
    """`rand`, followed by these parts in any order: `m`: mean magnitude, 0 to 10, default 10; `mstd`:
    standard deviation of the magnitude, default 0; `inc1`: required; `n`: number of operations per image,
    default 2."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "random"] | None = None
    """No effect, accepted for compatibility with PaddleClas; interpolation is always bilinear."""
    img_size: Count | tuple[Count, Count] | None = None
    """No effect, accepted for compatibility with PaddleClas; translations use the sides of the image."""
    fill_value: GreyLevel = 116
    """Grey level of the area that a translation, shear or rotation uncovers; 116 is the mean of ImageNet."""
    prob: Fraction = 1.0
    """Share of the images that are augmented."""

    @property
    def strength(self) -> TimmStrength:
        """Settings in ``config_str``."""
        return parse_timm_config(self.config_str)

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers.

        Each layer needs three, for an operation, whether to apply it, and a sign. The normally distributed
        magnitudes need an even number, at least one per layer. If ``prob`` is below 1, the image needs one
        more.
        """
        layers = self.strength.layers
        return 3 * layers + 2 * -(-layers // 2) + (self.prob < 1)

    @property
    def space(self) -> SearchSpace:
        """Each layer chooses from 15 operations and identity.

        There are ten bins per unit of the magnitude.
        """
        bins = _MAX_TIMM_MAGNITUDE * _TIMM_BINS_PER_UNIT + 1
        return SearchSpace(TIMM, (tuple(TIMM),) * self.strength.layers, bins)


@decide.register
def decide_timm_layers(spec: TimmAutoAugment, draws: Draws, sides: Sides) -> Decisions:
    """Returns operations, magnitudes and signs as in `Policy`."""
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
