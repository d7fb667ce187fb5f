"""Rejection: the answer ``unknown`` for images that belong to no class, by the highest probability."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ppcls.config.base.fields import Fraction
from ppcls.config.base.section import Section
from ppcls.errors import UserError
from ppcls.files import write_text

Array = NDArray[Any]
Scope = Literal["global", "per-class"]

REJECTION_FILE = "rejection.json"  # in the checkpoint folder
_FEWEST = 20  # images of a class from which its own threshold is computed
_RECALL = 0.95  # at which the false positive rate is reported


class RejectionRule(Section):
    """Rule for the answer ``unknown``: the probability of the best class is below the threshold."""

    score: Literal["max_probability"] = "max_probability"
    threshold: Fraction | tuple[Fraction, ...]
    """Smallest probability of the best class, after the temperature: one value, or one value per class."""

    def rejects(self, probabilities: Array) -> bool:
        """Returns whether an image with these probabilities, [C], belongs to no class."""
        best = int(probabilities.argmax())
        limit = self.threshold[best] if isinstance(self.threshold, tuple) else self.threshold
        return bool(probabilities[best] < limit)


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


def fit_rejection(probabilities: Array, keep: float, scope: Scope) -> RejectionRule:
    """Returns the rule that accepts a share of the evaluation images.

    Args:
        probabilities: Probabilities of the evaluation images, [N, C].
        keep: Share of the evaluation images to accept.
        scope: ``per-class`` for one threshold per class. A class with fewer than 20 images has the global
            threshold.
    """
    best = probabilities.max(axis=1)
    predicted = probabilities.argmax(axis=1)
    threshold = _quantile(best, 1 - keep)
    if scope == "global":
        return RejectionRule(threshold=threshold)
    thresholds = []
    for number in range(probabilities.shape[1]):
        own = best[predicted == number]
        thresholds.append(_quantile(own, 1 - keep) if len(own) >= _FEWEST else threshold)
    return RejectionRule(threshold=tuple(thresholds))


def measure_rejection(rule: RejectionRule, known: Array, foreign: Array | None) -> RejectionQuality:
    """Returns the quality of a rule.

    Args:
        rule: The rule.
        known: Probabilities of the evaluation images, [N, C].
        foreign: Probabilities of the foreign images, [M, C]; None if there are none.
    """
    kept = 1 - float(np.mean([rule.rejects(row) for row in known]))
    if foreign is None:
        return RejectionQuality(len(known), kept)
    accepted = known.max(axis=1)
    others = foreign.max(axis=1)
    limit = _quantile(accepted, 1 - _RECALL)
    return RejectionQuality(
        len(known),
        kept,
        len(foreign),
        float(np.mean([rule.rejects(row) for row in foreign])),
        auroc(accepted, others),
        float(np.mean(others >= limit)),
    )


def auroc(positive: Array, negative: Array) -> float:
    """Returns the probability that a positive score exceeds a negative score. Ties count one half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left")
    equal = np.searchsorted(ordered, positive, "right") - below
    return float((below + 0.5 * equal).mean() / len(negative))


def write_rejection(folder: Path, rule: RejectionRule) -> Path:
    """Writes a rule into a checkpoint folder, and returns the path of the file.

    Raises:
        OSError: The file cannot be written.
    """
    file = folder / REJECTION_FILE
    write_text(file, json.dumps(rule.model_dump(mode="json")) + "\n")
    return file


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
        rule = RejectionRule.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, RecursionError, ValueError, ValidationError):
        rule = None
    if rule is None or (isinstance(rule.threshold, Sequence) and len(rule.threshold) != classes):
        raise UserError(
            f'{file}: expected {{"threshold": NUMBER}} from 0 to 1, or a list of {classes} numbers; delete '
            "it, or run ppcls calibrate --unknown again"
        )
    return rule


def _quantile(values: Array, share: float) -> float:
    """Returns the value below which at most a share of the values lies, rounded down to 6 digits.

    It is one of the values, as a number between two of them would reject the lower one. Rounded up, it could
    reject the image from which it comes.
    """
    value = float(np.quantile(values, share, method="lower"))
    return max(0.0, float(np.floor(value * 1e6)) / 1e6)
