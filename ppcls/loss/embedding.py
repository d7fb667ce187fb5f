"""Losses of embeddings: metric learning and hashing.

All of them compare the images in the batch of one process, so the batch must contain several images of an
identity; see ``PKSampler``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from ppcls.config.base.fields import NonNegative, Positive
from ppcls.loss.base import ClassStatistics, Labels, Loss
from ppcls.outputs import FEATURES, LOGITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle import Tensor

# A function of embeddings, [B, D] of any floating dtype, and of identities, [B] int64.
FeatureLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


class EmbeddingLoss(Loss, abstract=True):
    """Base class of losses of embeddings. The identities of images may be any numbers."""

    labels: ClassVar[Labels] = "one"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the output with the vectors that the loss uses."""
        return (FEATURES,)


class TripletLossV2(EmbeddingLoss):
    """Triplet loss with the hardest pairs of a batch (Hermans et al. 2017, batch hard).

    For each image, the distance to the farthest image of the same identity should be smaller, by a margin,
    than the distance to the nearest image of another identity. The pairs are searched in the batch of the
    process, so use ``PKSampler``.
    """

    key_hints: ClassVar[Mapping[str, str]] = {"feat_from": "write feature_from"}
    margin: Positive = 0.5
    """Minimum difference between the distances to images of other identities and of the same identity."""
    normalize_feature: bool = True
    """Normalize embeddings to length 1."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the output with the vectors that the loss uses."""
        return (self.feature_from,)

    def build(self, data: ClassStatistics) -> FeatureLoss:
        """Returns a function of vectors, [B, D], and identities; see `Loss.build`."""
        from ppcls.loss.functional.embedding import hard_triplets

        return partial(hard_triplets, margin=self.margin, normalize=self.normalize_feature)


class TripletLoss(TripletLossV2):
    """``TripletLossV2`` without normalization of the embeddings."""

    margin: Positive = 1.0
    normalize_feature: Literal[False] = False


class SupConLoss(EmbeddingLoss):
    """Supervised contrastive loss of normalized embeddings (Khosla et al. 2020, equation 2).

    Images of the same identity are searched in the batch of the process, so use ``PKSampler``. Images for
    which the batch has no other image of the same identity are ignored.
    """

    ignored: ClassVar[Mapping[str, str]] = {"views": "sample_per_id of PKSampler is the number of images"}
    temperature: Positive = 0.07
    """Temperature: divisor of the cosines."""
    base_temperature: Positive = 0.07
    """Base temperature. The loss is multiplied by `temperature / base_temperature`."""
    normalize_feature: Literal[True] = True
    """Normalize embeddings to length 1. Only True is supported."""
    contrast_mode: Literal["all"] = "all"
    """Images to compare with. Only `all` is supported: all images of the batch."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the output with the vectors that the loss uses."""
        return (self.feature_from,)

    def build(self, data: ClassStatistics) -> FeatureLoss:
        """Returns a function of vectors, [B, D], and identities; see `Loss.build`."""
        from ppcls.loss.functional.embedding import supervised_contrast

        factor = self.temperature / self.base_temperature
        return lambda features, label: factor * supervised_contrast(features, label, self.temperature)


class PairwiseCosface(EmbeddingLoss):
    """Pairwise loss (Sun et al. 2020): log-sum-exp of the cosines of all pairs in the batch of a process."""

    margin: NonNegative
    """Minimum difference between the cosines of the same identity and of different identities."""
    gamma: Positive
    """Factor of the cosines."""

    def build(self, data: ClassStatistics) -> FeatureLoss:
        """Returns a function of embeddings, [B, D], and identities; see `Loss.build`."""
        from ppcls.loss.functional.embedding import pairwise_cosines

        return partial(pairwise_cosines, margin=self.margin, gamma=self.gamma)


class HashLoss(EmbeddingLoss, abstract=True):
    """Base class of losses for embeddings whose signs are hash codes, with `Global.feature_binarize: sign`.

    The losses use all pairs in the batch of the process.
    """

    ignored: ClassVar[Mapping[str, str]] = {"n_class": "pairs are compared by their labels"}


class DCHLoss(HashLoss):
    """Deep Cauchy Hashing (Cao et al. 2018).

    Pairs of the same identity and pairs of different identities are weighted, so that the rarer kind of pair
    counts more.
    """

    gamma: Positive = 20.0
    """Scale parameter of the Cauchy distribution of distances."""
    quantization: NonNegative = 0.1
    """Weight of the quantization loss, which grows with the angle between an embedding and the vector of
    its signs."""

    def build(self, data: ClassStatistics) -> FeatureLoss:
        """Returns a function of embeddings, [B, D], and identities; see `Loss.build`."""
        from ppcls.loss.functional.hashing import cauchy_hashing

        return partial(cauchy_hashing, gamma=self.gamma, quantization=self.quantization)


class LCDSHLoss(HashLoss):
    """Locality-Constrained Deep Supervised Hashing (Zhu & Gao 2017)."""

    quantization: NonNegative = 3.0
    """Weight of the quantization loss: the difference between the similarities of embeddings and of their
    signs."""

    def build(self, data: ClassStatistics) -> FeatureLoss:
        """Returns a function of embeddings, [B, D], and identities; see `Loss.build`."""
        from ppcls.loss.functional.hashing import locality_constrained

        return partial(locality_constrained, quantization=self.quantization)


class DSHSDLoss(Loss):
    """Deep Supervised Hashing based on Stable Distribution (Wu et al. 2019).

    The loss is the cross-entropy of the head, plus a loss of the distances of pairs.
    """

    labels: ClassVar[Labels] = "one"
    alpha: NonNegative = 0.05
    """Weight of the loss of pairs."""
    multi_label: Literal[False] = False
    """Train with several labels per image. Only False is supported."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the embeddings and of the logits, in the order of the arguments of the formula."""
        return (FEATURES, LOGITS)

    def build(self, data: ClassStatistics) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Returns a function of embeddings, [B, D], logits, [B, C], and labels; see `Loss.build`."""
        from ppcls.loss.functional.hashing import stable_distribution

        return partial(stable_distribution, alpha=self.alpha)
