"""Defines AugMix and the policy of ML-Decoder, whose decisions have additional arrays."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppcls.config.base.fields import Bound, Count, Fraction, Positive
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.policies import GreyLevel, Policy, SearchSpace
from ppcls.data.transforms.specs.policy_tables import MIX, RAND_V4

# _V4_DRAWS: random numbers per stage
_V4_STAGES = 2
_V4_BINS = 10
_V4_DRAWS = 6
_MAX_LEVEL = 10
_BINS_PER_LEVEL = 100
_MAX_DEPTH = 3  # maximum depth of a chain if the depth is random


class RandAugmentV4(Policy):
    """PaddleClas's variant of RandAugment for ML-Decoder.

    Two operations are drawn from 15, and each one is applied to half of the images. Magnitudes are random.
    The operation ``cutout`` fills a square with a side of up to 40 pixels, at a random position, with
    ``fill_value``.
    """

    draws: ClassVar[int] = _V4_STAGES * _V4_DRAWS
    furthest_share: ClassVar[float | None] = 150 / 331

    @property
    def space(self) -> SearchSpace:
        """Both stages choose from 15 operations and identity."""
        names = tuple(name for name in RAND_V4 if name != "identity")
        return SearchSpace(RAND_V4, ((*names, "identity"),) * _V4_STAGES, _V4_BINS)


@decide.register
def decide_v4_stages(spec: RandAugmentV4, draws: Draws, sides: Sides) -> Decisions:
    """Returns operations, magnitudes and signs as in `Policy`, and the squares of ``cutout``.

    The squares are [N, stages, 4] float32: start (top, left) and size (height, width).
    """
    drawn = draws.astype(np.float64).reshape(len(draws), _V4_STAGES, _V4_DRAWS)
    identity = len(spec.stages[0]) - 1
    operation = np.where(drawn[..., 1] < 0.5, (drawn[..., 0] * identity).astype(np.int32), identity)
    bins = 1 + (drawn[..., 2] * (_V4_BINS - 1)).astype(np.int32)
    negated = (drawn[..., 3] < 0.5).astype(np.int32)
    half = np.rint(RAND_V4["cutout"].magnitudes(_V4_BINS)[bins])[..., None]
    centre = np.floor(drawn[..., 4:] * (sides[:, None] + 1))
    start = np.maximum(centre - half, 0)
    end = np.minimum(centre + half, sides[:, None])
    squares = np.concatenate([start, end - start], axis=-1).astype(np.float32)
    return operation.astype(np.int32), bins, negated, *spec.sides_for_translation(sides), squares


class AugMix(Policy):
    """Mixes an image with the results of several chains of random operations (Hendrycks et al. 2020)."""

    furthest_share: ClassVar[float | None] = 1 / 3

    prob: Fraction = 0.5
    """Share of the images that are mixed."""
    aug_prob_coeff: Positive = 0.1
    """Parameter of the Dirichlet and Beta distributions from which weights are drawn."""
    mixture_width: Count = 3
    """Number of chains."""
    mixture_depth: Annotated[int, Bound(ge=-1, le=10)] = 1
    """Number of operations per chain; -1 or 0: a random number from 1 to 3."""
    aug_severity: Annotated[float, Bound(ge=0.1, le=_MAX_LEVEL)] = 1
    """Maximum strength of an operation, up to 10; strengths are drawn from 0.1 to this value."""
    fill_value: GreyLevel = 0
    """Grey level of the area that a translation, shear or rotation uncovers."""

    @property
    def depth(self) -> int:
        """Maximum number of operations in a chain."""
        return self.mixture_depth if self.mixture_depth > 0 else _MAX_DEPTH

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers: three per image, two per chain, and three per operation."""
        return 3 + 2 * self.mixture_width + 3 * self.mixture_width * self.depth

    @property
    def space(self) -> SearchSpace:
        """Each operation of each chain is chosen from nine operations and identity."""
        steps = self.mixture_width * self.depth
        return SearchSpace(MIX, (tuple(MIX),) * steps, _MAX_LEVEL * _BINS_PER_LEVEL + 1)


@decide.register
def decide_mixture(spec: AugMix, draws: Draws, sides: Sides) -> Decisions:
    """Returns operations, magnitudes and signs as in `Policy`, chain by chain, and the weights of the chains.

    The weights are [N, chains] float32. The weight of the original image is 1 minus their sum. All weights
    are 0 if the image is not mixed.
    """
    width = spec.mixture_width
    depth = spec.depth
    identity = len(MIX) - 1
    drawn = draws.astype(np.float64)
    applied, shares, chains, depths = np.split(drawn[:, : 3 + 2 * width], [1, 3, 3 + width], axis=1)
    steps = drawn[:, 3 + 2 * width :].reshape(len(draws), width, depth, 3)
    share = _gammas(shares, spec.aug_prob_coeff)
    weights = _gammas(chains, spec.aug_prob_coeff)
    weights *= share[:, :1] / share.sum(axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    operation = (steps[..., 0] * identity).astype(np.int32)
    if spec.mixture_depth <= 0:
        used = 1 + (depths * _MAX_DEPTH).astype(np.int32)
        operation = np.where(np.arange(depth) < used[..., None], operation, identity).astype(np.int32)
    level = 0.1 + (spec.aug_severity - 0.1) * steps[..., 1]
    negated = (steps[..., 2] < 0.5).astype(np.int32)
    bins = np.rint(level * _BINS_PER_LEVEL).astype(np.int32)
    return (
        *(part.reshape(len(draws), width * depth) for part in (operation, bins, negated)),
        *spec.sides_for_translation(sides),
        np.where(applied < spec.prob, weights, 0).astype(np.float32),
    )


def _gammas(uniform: NDArray[np.float64], shape: float) -> NDArray[np.float64]:
    """Converts uniform random numbers into gamma-distributed ones, which are > 0."""
    from scipy.special import gammaincinv

    gammas: NDArray[np.float64] = np.maximum(gammaincinv(shape, uniform), 1e-300)
    return gammas
