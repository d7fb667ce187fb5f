"""Fits the rule for the answer ``unknown`` on evaluation images, and measures it on foreign images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.rejection import (
    SCORES,
    ClassMeans,
    RejectionQuality,
    RejectionRule,
    Scope,
    ScoredImages,
    ScoreName,
    energy,
    fit_means,
    fit_rejection,
    measure_rejection,
)
from ppcls.deploy.models.source import ModelSource
from ppcls.deploy.models.trained import TrainedModel
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError, counted
from ppcls.files import print_error

if TYPE_CHECKING:
    from ppcls.deploy.export.samples import ImageSamples

Array = NDArray[Any]


@dataclass(frozen=True)
class RejectionSettings:
    """Settings of a rule.

    Attributes:
        score: Score that the rule uses.
        scope: Whether there is one threshold, or one per class.
        keep: Share of the evaluation images that are not unknown.
    """

    score: ScoreName = "max_probability"
    scope: Scope = "global"
    keep: float = 0.95


@dataclass(frozen=True)
class FittedRejection:
    """Result of `fit_on_images`.

    Attributes:
        rule: The rule.
        means: Means of the classes; None if the rule does not use them.
        qualities: Quality of the rule, and of the rules with the other scores.
        missing: Reason why a score could not be measured; None if all were.
    """

    rule: RejectionRule
    means: ClassMeans | None
    qualities: dict[ScoreName, RejectionQuality]
    missing: str | None


def fit_on_images(
    source: ModelSource,
    evaluation: ImageSamples,
    foreign_images: ImageSamples | None,
    settings: RejectionSettings,
) -> FittedRejection:
    """Fits a rule on evaluation images.

    Args:
        source: Checkpoint of a classifier.
        evaluation: Evaluation images with their labels.
        foreign_images: Images of no class, on which the rule is measured; None for none.
        settings: Settings of the rule.

    Raises:
        UserError: No image can be decoded, or the network does not have the score.
    """
    predictor = Predictor(source)
    assert isinstance(predictor.model, TrainedModel)  # a checkpoint
    missing = None
    try:
        predictor.model.collect_features()
    except UserError as error:
        if settings.score == "distance":
            raise
        missing = str(error)
    known = _run(predictor, evaluation, "evaluation images")
    means = None
    if known.features is not None and known.labels is not None:
        try:
            means = fit_means(known.features, known.labels.astype(int), predictor.description.width)
        except UserError as error:
            if settings.score == "distance":
                raise
            missing = str(error)
    foreign = None
    if foreign_images is not None:
        foreign = _score(_run(predictor, foreign_images, "foreign images"), means)
    scored = _score(known, means)
    names: Sequence[ScoreName] = [name for name in SCORES if name in scored.scores]
    rules = {name: fit_rejection(scored, settings.keep, settings.scope, name) for name in names}
    qualities = {name: measure_rejection(rule, scored, foreign) for name, rule in rules.items()}
    used = means if settings.score == "distance" else None
    return FittedRejection(rules[settings.score], used, qualities, missing)


@dataclass(frozen=True)
class _Outputs:
    """Outputs of the network for some images; see `ppcls.deploy.models.trained.TrainedOutputs`."""

    probabilities: Array
    logits: Array
    features: Array | None
    labels: Array | None


def _run(predictor: Predictor, samples: ImageSamples, use: str) -> _Outputs:
    batches = list(_batches(predictor, samples, use))
    if not batches:
        raise UserError(f"{samples.source}: no image can be decoded")
    total = counted(len(samples), "image")
    count = sum(len(batch.probabilities) for batch in batches)
    if count < len(samples):
        print_error(
            f"warning: {samples.source}: {len(samples) - count} of {total} cannot be decoded, and are ignored"
        )
    return _Outputs(
        np.concatenate([batch.probabilities for batch in batches]),
        np.concatenate([batch.logits for batch in batches]),
        _join([batch.features for batch in batches]),
        _join([batch.labels for batch in batches]),
    )


def _join(parts: Sequence[Array | None]) -> Array | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def _batches(predictor: Predictor, samples: ImageSamples, use: str) -> Iterator[_Outputs]:
    model = predictor.model
    assert isinstance(model, TrainedModel)
    for images, labels in samples.batches(predictor.chain, predictor.cores, use):
        outputs = model.outputs(images)
        if not np.isfinite(outputs.logits).all():
            raise UserError(f"{predictor.source.file}: the model returns NaN or infinite values")
        yield _Outputs(outputs.probabilities, outputs.logits, outputs.features, labels)


def _score(outputs: _Outputs, means: ClassMeans | None) -> ScoredImages:
    scores: dict[ScoreName, Array] = {
        "max_probability": outputs.probabilities.max(axis=1),
        "energy": energy(outputs.logits),
    }
    if means is not None:
        assert outputs.features is not None  # means were computed from features
        scores["distance"] = means.score(outputs.features)
    return ScoredImages(outputs.probabilities, scores)
