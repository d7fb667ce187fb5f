"""Transforms of batches (Mixup and CutMix), which mix each image and its label with the next image.

A batch transform draws the parameters of a step, a `Mix`. ``ppcls.data.loaders.mixing`` mixes the images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, model_validator
from typing_extensions import Self

from ppcls.config.base.choices import Keyed
from ppcls.config.base.component import Component
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Count, Fraction, Positive
from ppcls.config.base.section import Section
from ppcls.data.transforms.base import Layout
from ppcls.registry import BATCH_TRANSFORMS

# Indices of a step's random numbers: choice of the transform, its strength, and the centre of the window.
_CHOICE, _STRENGTH, _ROW, _COLUMN = range(4)
DRAWS = 4  # number of random numbers per step

Draws = Sequence[float]
Size = tuple[int, int]


@dataclass(frozen=True)
class MixWindow:
    """A window of an image, with the rows ``[top, bottom)`` and the columns ``[left, right)``."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """Number of pixels in the window."""
        return (self.bottom - self.top) * (self.right - self.left)

    def slices(self, layout: Layout) -> tuple[slice, ...]:
        """Returns slices that select the window in an image."""
        spatial = slice(self.top, self.bottom), slice(self.left, self.right)
        return (slice(None), *spatial) if layout == "CHW" else (*spatial, slice(None))


@dataclass(frozen=True)
class Mix:
    """Parameters for mixing the images of a batch with their partners.

    Attributes:
        kept: Weight of an image's own label: 0..1 with a window, 0.5..1 without one. The weight of the
            partner's label is ``1 - kept``.
        window: Window whose pixels come from the partner (CutMix). If None, all pixels are weighted sums of
            both images, with the weights of the labels (Mixup).
    """

    kept: float = 1.0
    window: MixWindow | None = None


class BatchTransform(Component, registry=BATCH_TRANSFORMS):
    """Base class of transforms that mix each image of a batch, and its label, with the next image."""

    last_epoch: Count | None = None
    """Last epoch in which images are mixed; later epochs train on unmixed images. null: all epochs."""

    def mixes_in(self, epoch: int) -> bool:
        """Returns whether images are mixed in an epoch.

        Args:
            epoch: Number of completed epochs: 0 in the first epoch.
        """
        return self.last_epoch is None or epoch < self.last_epoch

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:  # noqa: ARG002
        """Yields a last epoch that is not before the end of the run."""
        if self.last_epoch is not None and self.last_epoch >= facts.epochs and not facts.fits_head:
            yield (
                f"last_epoch ({self.last_epoch}) has no effect, because it is not less than Global.epochs "
                f"({facts.epochs})"
            )

    def decide(self, draws: Draws, size: Size) -> Mix:
        """Returns the parameters for mixing the images of a step. It is not called after `last_epoch`.

        Args:
            draws: Uniform random numbers in [0, 1), [DRAWS]. They depend only on the seed and the step.
            size: Height and width of the images in pixels.
        """
        raise NotImplementedError(f"{self.kind} does not define how to mix images")


class _Mixup(Section):
    """Keys of Mixup, as a transform of its own and in OpSampler."""

    alpha: Positive = 1.0
    """Parameter of the distribution Beta(alpha, alpha), from which the weight of the image is drawn for each
    batch."""


class _Cutmix(Section):
    """Keys of CutMix, as a transform of its own and in OpSampler."""

    alpha: Positive = 1.0
    """Parameter of the distribution Beta(alpha, alpha), from which the share of the image outside the window
    is drawn for each batch."""


class MixupOperator(_Mixup, BatchTransform):
    """Mixup: adds each image and its neighbour, and their labels, with random weights (Zhang et al. 2018)."""

    def decide(self, draws: Draws, size: Size) -> Mix:  # noqa: ARG002
        """Draws the weight from Beta(alpha, alpha), as in the paper, and returns it if it is at least 0.5.

        A smaller weight is replaced by its complement. This only swaps the two results, because each of the
        partners is mixed with the other one.
        """
        share = _beta(self.alpha, draws[_STRENGTH])
        return Mix(max(share, 1.0 - share))


class CutmixOperator(_Cutmix, BatchTransform):
    """CutMix (Yun et al. 2019): copies a random window of the next image into each image.

    The labels of both images are added, weighted by the areas that the images occupy.
    """

    def decide(self, draws: Draws, size: Size) -> Mix:
        """Chooses a window around a random pixel.

        It has the image's aspect ratio and is clipped at the edges.
        """
        side = math.sqrt(1.0 - _beta(self.alpha, draws[_STRENGTH]))
        (top, bottom), (left, right) = (
            _clipped_interval(length, int(length * side), int(length * draws[column]))
            for length, column in zip(size, (_ROW, _COLUMN), strict=True)
        )
        window = MixWindow(top, bottom, left, right)
        return Mix(1.0 - window.area / math.prod(size), window)


class SampledMixup(_Mixup):
    """Keys of Mixup in OpSampler."""

    prob: Fraction
    """Probability, 0 to 1, that Mixup is applied to a batch."""


class SampledCutmix(_Cutmix):
    """Keys of CutMix in OpSampler."""

    prob: Fraction
    """Probability, 0 to 1, that CutMix is applied to a batch."""


class OpSampler(BatchTransform):
    """Chooses Mixup, CutMix or neither for each batch, at random."""

    MixupOperator: SampledMixup = SampledMixup(prob=0.0)
    """Settings of Mixup. By default, it is not applied."""
    CutmixOperator: SampledCutmix = SampledCutmix(prob=0.0)
    """Settings of CutMix. By default, it is not applied."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        total = self.MixupOperator.prob + self.CutmixOperator.prob
        if not 0 < total <= 1 + 1e-9:
            raise ValueError(f"expected the sum of prob to be > 0 and <= 1, got {total:.12g}")
        return self

    def decide(self, draws: Draws, size: Size) -> Mix:
        """Chooses Mixup, CutMix, or no mixing, with their probabilities."""
        mixup = self.MixupOperator
        cutmix = self.CutmixOperator
        if draws[_CHOICE] < mixup.prob:
            return MixupOperator(alpha=mixup.alpha).decide(draws, size)
        if draws[_CHOICE] < mixup.prob + cutmix.prob:
            return CutmixOperator(alpha=cutmix.alpha).decide(draws, size)
        return Mix()


def _check_one(specs: tuple[BatchTransform, ...]) -> tuple[BatchTransform, ...]:
    if len(specs) > 1:
        raise ValueError(
            f"expected at most one batch transform, got {', '.join(spec.kind for spec in specs)}; "
            "use OpSampler to choose between them at random"
        )
    return specs


BatchTransforms = Annotated[
    tuple[Annotated[BatchTransform, Keyed(BATCH_TRANSFORMS)], ...], AfterValidator(_check_one)
]


def _beta(alpha: float, uniform: float) -> float:
    """Returns the quantile of the distribution Beta(alpha, alpha) for a probability in [0, 1)."""
    from scipy.special import betaincinv  # slow to import

    return float(betaincinv(alpha, alpha, uniform))


def _clipped_interval(length: int, size: int, centre: int) -> tuple[int, int]:
    """Returns the start and end of ``size`` pixels around ``centre``, clipped to ``[0, length)``."""
    begin = centre - size // 2
    return max(begin, 0), min(begin + size, length)
