"""What happens to training batches as wholes: ``DataLoader.Train.dataset.batch_transform_ops``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from ppcls.config.fields import Fraction, Keyed, Positive, Section, Spec
from ppcls.registry import BATCH_TRANSFORMS


class BatchTransform(Spec):
    """Mixes each image of a batch with its neighbour, and their labels as much."""


class _Mixup(Section):
    """What Mixup asks for, alone or as one of several."""

    alpha: Positive = Field(1.0, description="each batch draws the weight from Beta(alpha, alpha)")


class _Cutmix(Section):
    """What CutMix asks for, alone or as one of several."""

    alpha: Positive = Field(
        1.0, description="each batch draws 1 - the window's share of the image from Beta(alpha, alpha)"
    )


class MixupOperator(_Mixup, BatchTransform):
    """Adds up each image and its neighbour by random weights, and their labels (Zhang et al. 2018)."""


class CutmixOperator(_Cutmix, BatchTransform):
    """Takes a random window from each image's neighbour; labels count by area (Yun et al. 2019)."""


class SampledMixup(_Mixup):
    """Mixup in a share of the batches."""

    prob: Fraction = Field(description="share of the batches")


class SampledCutmix(_Cutmix):
    """CutMix in a share of the batches."""

    prob: Fraction = Field(description="share of the batches")


class OpSampler(BatchTransform):
    """Does at random one of the following to each batch, or none."""

    MixupOperator: SampledMixup = Field(SampledMixup(prob=0.0), description="never where it is not given")
    CutmixOperator: SampledCutmix = Field(SampledCutmix(prob=0.0), description="never where it is not given")

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        total = self.MixupOperator.prob + self.CutmixOperator.prob
        if not 0 < total <= 1 + 1e-9:
            raise ValueError(f"expected prob to add up to a share > 0 and <= 1, got {total:.12g}")
        return self


def _check_one(specs: tuple[BatchTransform, ...]) -> tuple[BatchTransform, ...]:
    if len(specs) > 1:
        raise ValueError(
            f"expected at most one, got {', '.join(spec.kind for spec in specs)}; "
            "OpSampler takes one of several for each batch"
        )
    return specs


BatchTransforms = Annotated[
    tuple[Annotated[BatchTransform, Keyed(BATCH_TRANSFORMS)], ...], AfterValidator(_check_one)
]
