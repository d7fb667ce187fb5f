"""Rejection: the answer ``unknown`` for images that belong to no class, by a score that is low for them.

Decisions:
    - A score is high for images of the classes. Thus one comparison with a threshold works for all scores.
    - The distance to the classes' means divides each feature by its deviation within the classes. A complete
      covariance would need more images than most evaluation sets have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import FiniteFloat, ValidationError, model_validator
from safetensors import SafetensorError
from typing_extensions import Self

from ppcls.config.base.section import Section
from ppcls.errors import UserError, counted
from ppcls.files import atomic_write, open_regular, read_regular, write_text

Array = NDArray[Any]
Scope = Literal["global", "per-class"]
ScoreName = Literal["max_probability", "energy", "distance"]

SCORES: tuple[ScoreName, ...] = get_args(ScoreName)
REJECTION_FILE = "rejection.json"  # in the checkpoint folder
_FEWEST = 20  # images of a class from which its own threshold is computed
KNOWN_SCORE = "known_score"  # output of a model for a rule that needs one
MEANS_FILE = "rejection.safetensors"  # in the checkpoint folder, for the score distance
_ARRAYS = ("centre", "deviation", "means")
_RECALL = 0.95  # at which the false positive rate is reported


class RejectionRule(Section):
    """Rule for the answer ``unknown``: the score of an image is below the threshold."""

    score: ScoreName = "max_probability"
    """max_probability: the probability of the best class, after the temperature; energy: the logarithm of the
    sum of the exponentials of the logits, after the temperature; distance: the negative distance of the
    features to the nearest mean of a class."""
    threshold: FiniteFloat | tuple[FiniteFloat, ...]
    """Smallest score of an image that belongs to a class: one value, or one value per best class."""

    @model_validator(mode="after")
    def _check_probabilities(self) -> Self:
        limits = self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)
        if self.score == "max_probability" and not all(0 <= limit <= 1 for limit in limits):
            raise ValueError(f"threshold: expected probabilities from 0 to 1, got {list(limits)[:5]}")
        return self

    @property
    def needs_output(self) -> bool:
        """Whether the model must return the score, because the probabilities do not determine it."""
        return self.score != "max_probability"

    def score_of(self, probabilities: Array, score: float | None = None) -> float:
        """Returns the score of an image.

        Args:
            probabilities: Probabilities of the classes, [C].
            score: Score that the model returned; None if it returns none.
        """
        if not self.needs_output:
            return float(probabilities.max())
        assert score is not None  # the model returns it, see `needs_output`
        return score

    def limit_of(self, probabilities: Array) -> float:
        """Returns the threshold for an image with these probabilities, [C]."""
        if isinstance(self.threshold, tuple):
            return self.threshold[int(probabilities.argmax())]
        return self.threshold

    def rejects(self, probabilities: Array, score: float | None = None) -> bool:
        """Returns whether an image belongs to no class; see `score_of`."""
        return self.score_of(probabilities, score) < self.limit_of(probabilities)


@dataclass(frozen=True)
class ClassMeans:
    """Means of the features of the classes, for the score ``distance``.

    Attributes:
        centre: Mean of the features of all images, [D] float32.
        deviation: Standard deviation of each feature within the classes, [D] float32.
        means: Means of the classes after subtraction of ``centre`` and division by ``deviation``, [C, D]
            float32.
    """

    centre: Array
    deviation: Array
    means: Array

    def score(self, features: Array) -> Array:
        """Returns the negative distances to the nearest means, [N], for features [N, D].

        A distance is the root of the mean of the squared differences of the features.
        """
        scaled = (features - self.centre) / self.deviation
        squares = np.square(scaled).sum(axis=1)
        nearest = (scaled @ (-2 * self.means.T) + self.offsets()).min(axis=1)
        return np.asarray(-np.sqrt(np.maximum(squares + nearest, 0) / features.shape[1]))

    def offsets(self) -> Array:
        """Returns the squared lengths of the means, [C] float32."""
        return np.asarray(np.square(self.means).sum(axis=1))


def fit_means(features: Array, labels: Array, classes: int) -> ClassMeans:
    """Returns the means of the features of each class.

    Args:
        features: Features of images, [N, D].
        labels: Numbers of their classes, [N].
        classes: Number of classes, C.

    Raises:
        UserError: A class has no image.
    """
    counts = np.bincount(labels, minlength=classes)
    if not counts.all():
        missing = np.flatnonzero(counts == 0)
        raise UserError(
            f"--score distance needs evaluation images of each class, but there are none of {len(missing)}, "
            f"such as class {missing[0]}; add images, or use --score energy"
        )
    values = features.astype(np.float64)
    means = np.zeros((classes, values.shape[1]))
    np.add.at(means, labels, values)
    means /= counts[:, None]
    deviation = np.sqrt(np.square(values - means[labels]).mean(axis=0))
    # Features that never change, such as those of dead units, must not dominate.
    deviation = np.maximum(deviation, max(1e-3 * deviation.mean(), 1e-6))
    centre = values.mean(axis=0)
    scaled = (means - centre) / deviation
    return ClassMeans(*(array.astype(np.float32) for array in (centre, deviation, scaled)))


def energy(logits: Array) -> Array:
    """Returns the logarithms of the sums of the exponentials of logits, [N], for logits [N, C]."""
    largest = logits.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1)))


@dataclass(frozen=True)
class RejectionQuality:
    """Quality of a rule on evaluation images, and on foreign images that belong to no class.

    Attributes:
        known: Number of evaluation images.
        kept: Share of the evaluation images that are not rejected.
        foreign: Number of foreign images.
        rejected: Share of the foreign images that are rejected; None without foreign images.
        auroc: Probability that an evaluation image has a higher score than a foreign image; None without
            foreign images.
        false_positives: Share of the foreign images that are accepted if 95 % of the evaluation images are;
            None without foreign images.
    """

    known: int
    kept: float
    foreign: int = 0
    rejected: float | None = None
    auroc: float | None = None
    false_positives: float | None = None


@dataclass(frozen=True)
class ScoredImages:
    """Scores of images that a rule judges.

    Attributes:
        probabilities: Probabilities of the classes, [N, C].
        scores: Scores of each kind that the model allows, [N].
    """

    probabilities: Array
    scores: dict[ScoreName, Array]


def fit_rejection(
    images: ScoredImages, keep: float, scope: Scope, score: ScoreName = "max_probability"
) -> RejectionRule:
    """Returns the rule that accepts a share of the evaluation images.

    Args:
        images: Evaluation images.
        keep: Share of the evaluation images to accept.
        scope: ``per-class`` for one threshold per class. A class with fewer than 20 images has the global
            threshold.
        score: Score that the rule uses.
    """
    scores = images.scores[score]
    predicted = images.probabilities.argmax(axis=1)
    threshold = _quantile(scores, 1 - keep)
    if scope == "global":
        return RejectionRule(score=score, threshold=threshold)
    thresholds = []
    for number in range(images.probabilities.shape[1]):
        own = scores[predicted == number]
        thresholds.append(_quantile(own, 1 - keep) if len(own) >= _FEWEST else threshold)
    return RejectionRule(score=score, threshold=tuple(thresholds))


def measure_rejection(
    rule: RejectionRule, known: ScoredImages, foreign: ScoredImages | None
) -> RejectionQuality:
    """Returns the quality of a rule.

    Args:
        rule: The rule.
        known: Evaluation images.
        foreign: Foreign images; None if there are none.
    """
    kept = 1 - _share_rejected(rule, known)
    if foreign is None:
        return RejectionQuality(len(known.probabilities), kept)
    accepted = known.scores[rule.score]
    others = foreign.scores[rule.score]
    limit = _quantile(accepted, 1 - _RECALL)
    return RejectionQuality(
        len(accepted),
        kept,
        len(others),
        _share_rejected(rule, foreign),
        auroc(accepted, others),
        float(np.mean(others >= limit)),
    )


def _share_rejected(rule: RejectionRule, images: ScoredImages) -> float:
    pairs = zip(images.probabilities, images.scores[rule.score], strict=True)
    return float(np.mean([rule.rejects(row, float(score)) for row, score in pairs]))


def auroc(positive: Array, negative: Array) -> float:
    """Returns the probability that a positive score exceeds a negative score. Ties count one half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left")
    equal = np.searchsorted(ordered, positive, "right") - below
    return float((below + 0.5 * equal).mean() / len(negative))


def write_rejection(folder: Path, rule: RejectionRule, means: ClassMeans | None = None) -> Path:
    """Writes a rule into a checkpoint folder, and returns the path of the file.

    Args:
        folder: Folder of the checkpoint.
        rule: The rule.
        means: Means of the classes, for the score ``distance``.

    Raises:
        OSError: A file cannot be written.
    """
    file = folder / REJECTION_FILE
    if means is not None:
        arrays = {name: np.ascontiguousarray(getattr(means, name)) for name in _ARRAYS}
        with atomic_write(folder / MEANS_FILE) as stream:
            stream.write(safetensors.numpy.save(arrays))
    write_text(file, json.dumps(rule.model_dump(mode="json")) + "\n")
    return file


def remove_rejection(folder: Path) -> bool:
    """Removes the rule of a checkpoint folder, and returns whether there was one."""
    existed = (folder / REJECTION_FILE).exists()
    for name in (REJECTION_FILE, MEANS_FILE):
        (folder / name).unlink(missing_ok=True)
    return existed


def read_rejection(weights: Path, classes: int) -> RejectionRule | None:
    """Returns the rule of a checkpoint folder; None if the folder contains none.

    Args:
        weights: Folder of the checkpoint, or file of weights.
        classes: Number of classes.

    Raises:
        UserError: The file is invalid.
    """
    file = weights / REJECTION_FILE
    if not file.is_file():
        return None
    try:
        rule = RejectionRule.model_validate(json.loads(read_regular(file)))
    except (OSError, RecursionError, ValueError, ValidationError):
        rule = None
    if rule is None or (isinstance(rule.threshold, Sequence) and len(rule.threshold) != classes):
        raise UserError(
            f'{file}: expected {{"threshold": NUMBER}} from 0 to 1, or a list of {classes} numbers; delete '
            "it, or run ppcls calibrate --unknown again"
        )
    return rule


def read_means(weights: Path, classes: int) -> ClassMeans:
    """Returns the means of the classes in a checkpoint folder.

    Raises:
        UserError: The file is missing or invalid.
    """
    file = weights / MEANS_FILE
    try:
        with open_regular(file) as stream:
            arrays = safetensors.numpy.load(stream.read())
        centre, deviation, means = (arrays[name] for name in _ARRAYS)
    except (OSError, KeyError, SafetensorError, ValueError) as error:
        raise UserError(
            f"{file}: cannot be read: {error}; run ppcls calibrate --unknown --score distance again"
        ) from None
    shape = (classes, len(centre) if centre.ndim == 1 else 0)
    finite = all(np.isfinite(array).all() and array.dtype == np.float32 for array in arrays.values())
    if means.shape != shape or deviation.shape != centre.shape or not finite or not (deviation > 0).all():
        raise UserError(
            f"{file}: expected the means of {counted(classes, 'class')}, found the shape "
            f"{list(means.shape)}; run ppcls calibrate --unknown --score distance again"
        )
    return ClassMeans(centre, deviation, means)


def _quantile(values: Array, share: float) -> float:
    """Returns the value below which at most a share of the values lies, rounded down to 6 digits.

    It is one of the values, as a number between two of them would reject the lower one. Rounded up, it could
    reject the image from which it comes.
    """
    value = float(np.quantile(values, share, method="lower"))
    return float(np.floor(value * 1e6)) / 1e6
