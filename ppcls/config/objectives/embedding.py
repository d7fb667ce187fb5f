"""Losses of embedding models, ``Arch.name: RecModel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic_core import InitErrorDetails

from ppcls.config.base.fields import (
    ClassCount,
    Count,
    NonNegative,
    Positive,
    Section,
    problem,
)
from ppcls.config.objectives.rec_model import RecModel
from ppcls.config.sections.dataset import MultiLabelDataset
from ppcls.config.sections.loader import DataLoader, QueryAndGallery
from ppcls.config.sections.objective import Labels, Loss, LossSpec


class TripletLossV2(LossSpec):
    """Triplet loss with the hardest pairs of a batch (Hermans et al. 2017, batch hard).

    For each image, the distance to the farthest image of the same identity should be smaller, by a margin,
    than the distance to the nearest image of another identity. The pairs are searched in the batch of the
    process, so use ``PKSampler``.
    """

    key_hints: ClassVar[Mapping[str, str]] = {"feat_from": "write feature_from"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: Positive = 0.5
    """Minimum difference between the distances to images of other identities and of the same identity."""
    normalize_feature: bool = True
    """Normalize embeddings to length 1."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""


class TripletLoss(TripletLossV2):
    """``TripletLossV2`` without normalization of the embeddings."""

    margin: Positive = 1.0
    normalize_feature: Literal[False] = False


class SupConLoss(LossSpec):
    """Supervised contrastive loss of normalized embeddings (Khosla et al. 2020, equation 2).

    Images of the same identity are searched in the batch of the process, so use ``PKSampler``. Images for
    which the batch has no other image of the same identity are ignored.
    """

    ignored: ClassVar[Mapping[str, str]] = {"views": "sample_per_id of PKSampler is the number of images"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
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


class CenterLoss(LossSpec):
    """Center loss (Wen et al. 2016): mean squared distance between embeddings and learned class centers.

    SGD with a constant learning rate updates the centers, independently of the optimizer of the model. Use
    this loss in `Loss.Train` only, together with a loss of classes.
    """

    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    has_weights: ClassVar[bool] = True
    num_classes: ClassCount
    """Number of centers. Must equal the number of classes."""
    feat_dim: Count
    """Length of the embeddings."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""
    center_rate: NonNegative = 1000.0
    """Learning rate of the centers. It multiplies the gradient of the weighted loss. To use the rate r with
    the gradient of the unweighted loss, set `center_rate` to r divided by `weight`."""


class PairwiseCosface(LossSpec):
    """Pairwise loss (Sun et al. 2020): log-sum-exp of the cosines of all pairs in the batch of a process."""

    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: NonNegative
    """Minimum difference between the cosines of the same identity and of different identities."""
    gamma: Positive
    """Factor of the cosines."""


class HashLoss(LossSpec):
    """Base class of losses for embeddings whose signs are hash codes, with `Global.feature_binarize: sign`.

    The losses use all pairs in the batch of the process.
    """

    ignored: ClassVar[Mapping[str, str]] = {"n_class": "pairs are compared by their labels"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True


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


class LCDSHLoss(HashLoss):
    """Locality-Constrained Deep Supervised Hashing (Zhu & Gao 2017)."""

    quantization: NonNegative = 3.0
    """Weight of the quantization loss: the difference between the similarities of embeddings and of their
    signs."""


class DSHSDLoss(LossSpec):
    """Deep Supervised Hashing based on Stable Distribution (Wu et al. 2019).

    The loss is the cross-entropy of the head, plus a loss of the distances of pairs.
    """

    labels: ClassVar[Labels] = "one"
    alpha: NonNegative = 0.05
    """Weight of the loss of pairs."""
    multi_label: Literal[False] = False
    """Train with several labels per image. Only False is supported."""


def embedding_problems(
    arch: Section, loss: Loss, data: DataLoader, retrieval: bool
) -> Iterator[InitErrorDetails]:
    """Yields conflicts of the model and its data with losses that need embeddings or classes.

    Args:
        arch: Section of the model that is evaluated.
    """
    rec = arch if isinstance(arch, RecModel) else None
    headless = rec is not None and rec.Head is None
    for split in ("Train", "Eval"):
        for position, spec in enumerate(getattr(loss, split)):
            where = ("Loss", split, position, spec.kind)
            if (spec.on_embeddings or isinstance(spec, DSHSDLoss)) and rec is None:
                yield problem("needs embeddings; expected Arch.name: RecModel", *where)
            if isinstance(spec, CenterLoss):
                yield from _center_problems(spec, rec, where)
            if headless and not spec.on_embeddings and not (split == "Eval" and retrieval):
                yield problem("needs classes; add a Head to Arch", *where)
    if retrieval and rec is None:
        yield problem("retrieval needs embeddings; expected Arch.name: RecModel", "Global", "eval_mode")
    if isinstance(data.Eval, QueryAndGallery) and not retrieval:
        text = "Query and Gallery are only for retrieval; set Global.eval_mode: retrieval"
        yield problem(text, "DataLoader", "Eval")
    if rec is not None:
        yield from _gradient_problems(rec, loss.Train)
        yield from _dataset_problems(data)


def _center_problems(
    spec: CenterLoss, rec: RecModel | None, where: tuple[int | str, ...]
) -> Iterator[InitErrorDetails]:
    if where[1] == "Eval":
        yield problem("supported only in Loss.Train, where the centers are learned; remove it", *where)
    if rec is None or rec.Head is None:
        return
    size = rec.embedding_size if spec.feature_from == "features" else spec.feat_dim
    for key, expected in (("num_classes", rec.class_num), ("feat_dim", size)):
        if (actual := getattr(spec, key)) != expected:
            yield problem(f"expected {expected}, the value in Arch, got {actual}", *where, key)


def _gradient_problems(rec: RecModel, losses: tuple[LossSpec, ...]) -> Iterator[InitErrorDetails]:
    """Yields parts of the model that receive no gradient.

    They would stay random, and block the exchange of gradients between processes.
    """
    if rec.Head is not None and all(spec.on_embeddings for spec in losses):
        text = "no loss uses the classes of the Head; add CELoss to Loss.Train, or remove the Head"
        yield problem(text, "Arch", "Head")
    elif rec.Neck is not None and all(getattr(spec, "feature_from", "") == "backbone" for spec in losses):
        text = "all losses use the input of the Neck; set their feature_from to features, or remove the Neck"
        yield problem(text, "Arch", "Neck")


def _dataset_problems(data: DataLoader) -> Iterator[InitErrorDetails]:
    for place, split in data.splits.items():
        where = ("DataLoader", *place.split("."), "dataset")
        if isinstance(split.dataset, MultiLabelDataset):
            text = "a RecModel needs one identity per image; use a data set with one label per image"
            yield problem(text, *where, "name")
        if split.dataset.batch_transform_ops:
            yield problem("mixed images have no identity; remove this key", *where, "batch_transform_ops")
