"""Compares the output of each stage with the expected output, and explains common differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.bundle.schema import Decision
from ppcls.postprocess.results import rank

Array = NDArray[Any]
Stage = Literal["decoding", "resizing", "network", "post-processing"]

STAGES: tuple[Stage, ...] = ("decoding", "resizing", "network", "post-processing")
_FITS = 0.05  # part of the squared difference that an explanation may leave
_SIMILAR = 0.8  # correlation of images that show the same


@dataclass(frozen=True)
class StageDifference:
    """Difference between the output of a stage and the expected output.

    Attributes:
        stage: Name of the stage.
        largest: Largest absolute difference of a value; infinity if the shapes differ.
        mean: Mean absolute difference.
        allowed: Largest allowed values of ``largest`` and ``mean``.
        hint: Probable reason; "" if the output is as expected, or if no reason is known.
    """

    stage: Stage
    largest: float
    mean: float
    allowed: tuple[float, float]
    hint: str = ""

    @property
    def passed(self) -> bool:
        """Whether the difference is allowed. NaN is not."""
        return self.largest <= self.allowed[0] and self.mean <= self.allowed[1]

    def __str__(self) -> str:
        if np.isinf(self.largest):
            text = self.hint
        else:
            text = (
                f"largest difference {self.largest:.2g} (allowed {self.allowed[0]:.2g}), mean {self.mean:.2g}"
                f" (allowed {self.allowed[1]:.2g})"
            )
            text += f"; {self.hint}" if self.hint else ""
        return f"{self.stage}: {text}"


def compare_pixels(actual: Array, expected: Array, allowed: tuple[float, float]) -> StageDifference:
    """Compares decoded pixels, [H, W, 3] uint8."""
    if actual.shape != expected.shape:
        return _other_shape("decoding", actual, expected, allowed)
    difference = _difference("decoding", actual, expected, allowed)
    return difference if difference.passed else _with_hint(difference, explain_pixels(actual, expected))


def compare_prepared(actual: Array, expected: Array, allowed: tuple[float, float]) -> StageDifference:
    """Compares inputs of the network, [3, H, W] or [H, W, 3] float32."""
    if actual.shape != expected.shape:
        return _other_shape("resizing", actual, expected, allowed)
    difference = _difference("resizing", actual, expected, allowed)
    return difference if difference.passed else _with_hint(difference, explain_prepared(actual, expected))


def compare_values(stage: Stage, actual: Array, expected: Array, allowed: float) -> StageDifference:
    """Compares logits or probabilities, [C] float32."""
    if actual.shape != expected.shape:
        return _other_shape(stage, actual, expected, (allowed, allowed))
    difference = _difference(stage, actual, expected, (allowed, allowed))
    return difference if difference.passed else _with_hint(difference, explain_scores(actual, expected))


def select_classes(probabilities: Array, decision: Decision) -> tuple[int, ...]:
    """Returns the numbers of the selected classes, in descending order of their scores.

    Args:
        probabilities: Scores of the classes, [C] float32.
        decision: Rule of the bundle.
    """
    if decision.method == "topk":
        return tuple(rank(probabilities, min(decision.topk, len(probabilities))).tolist())
    thresholds = np.asarray(decision.threshold, np.float64)
    if decision.method == "binary":
        return (int(probabilities[1] >= thresholds),)
    ranked = rank(probabilities, len(probabilities))
    return tuple(ranked[(probabilities >= thresholds)[ranked]].tolist())


def compare_classes(
    actual: tuple[int, ...],
    expected: tuple[int, ...],
    probabilities: Array,
    decision: Decision,
    allowed: float,
) -> StageDifference | None:
    """Returns the difference between selected classes; None if they are equal, or nearly tied.

    Args:
        actual: Selected classes.
        expected: Expected classes.
        probabilities: Expected scores, [C] float32.
        decision: Rule of the bundle.
        allowed: Differences of scores that do not matter.
    """
    if actual == expected:
        return None
    hint = f"expected the classes {list(expected)}, got {list(actual)}"
    wrong = StageDifference("post-processing", float("inf"), float("inf"), (allowed, allowed), hint)
    if any(not 0 <= number < len(probabilities) for number in actual):
        return wrong
    if decision.method == "topk":
        if len(actual) != len(expected) or len(set(actual)) != len(actual):
            return wrong
        gaps = np.abs(probabilities[list(actual)] - probabilities[list(expected)])
        return wrong if gaps.max(initial=0) > 2 * allowed else None
    changed = sorted(set(actual) ^ set(expected))
    thresholds = np.broadcast_to(np.asarray(decision.threshold), probabilities.shape)
    near = np.abs(probabilities - thresholds) <= 2 * allowed
    decisive = [1] if decision.method == "binary" else changed
    return None if near[decisive].all() and changed else wrong


def compare_unknown(actual: tuple[float, float], expected: tuple[float, float], allowed: float) -> bool:
    """Returns whether an image gets another answer, although no score is near its threshold.

    Args:
        actual: Score and threshold of the image.
        expected: Expected score and threshold.
        allowed: Differences of scores that do not matter.
    """
    score, limit = expected
    return abs(score - limit) > 2 * allowed and (actual[0] < actual[1]) != (score < limit)


def explain_pixels(actual: Array, expected: Array) -> str:
    """Returns the probable reason for other pixels, [H, W, 3] uint8; "" if it is unknown."""
    # The correlations only choose between hints: an image with other pixels has failed already.
    if _correlation(actual[..., ::-1], expected) > max(0.999, _correlation(actual, expected)):
        return "the channels are in BGR order; expected RGB"
    for name, turned in (
        ("mirrored", expected[:, ::-1]),
        ("upside down", expected[::-1]),
        ("rotated by 180 degrees", expected[::-1, ::-1]),
    ):
        if _correlation(actual, turned) > max(0.99, _correlation(actual, expected)):
            return f"the image is {name}; apply the EXIF orientation"
    if _correlation(actual, expected) > 0.9:
        return (
            "the decoder differs: expected the slow integer DCT and smooth upsampling of colours, as in "
            "libjpeg-turbo, no colour management, and alpha that is ignored"
        )
    return "another image"


def explain_prepared(actual: Array, expected: Array) -> str:
    """Returns the probable reason for another input of the network; "" if it is unknown.

    Args:
        actual: Input of the network, [3, H, W] or [H, W, 3] float32.
        expected: Expected input, of the same shape.
    """
    if not np.isfinite(actual).all():
        return "the input contains NaN or infinite values"
    axis = 0 if expected.shape[0] in (1, 3, 4) else -1
    actual, expected = (np.moveaxis(values, axis, 0).astype(np.float64) for values in (actual, expected))
    fits = [_fit(channel, target) for channel, target in zip(actual, expected, strict=True)]
    reverse = [_fit(channel, target) for channel, target in zip(actual[::-1], expected, strict=True)]
    fitted = np.stack([slope * target + by for (slope, by, _), target in zip(fits, expected, strict=True)])
    if np.square(actual - fitted).sum() < _FITS * np.square(actual - expected).sum():
        functions = ", ".join(f"{slope:.3g} * expected {by:+.3g}" for slope, by, _ in fits)
        return f"the normalization differs (mean, std or scale); the channels are {functions}"
    if all(left < _FITS for *_, left in reverse) and sum(f[2] for f in reverse) < 0.5 * sum(
        f[2] for f in fits
    ):
        return "the channels are in BGR order; expected RGB"
    if np.mean([1 - left for *_, left in fits]) > _SIMILAR:
        return "another resizing: check its method (antialiasing, interpolation) and its size"
    return "another part of the image: check the size of the resizing, and the crop"


def explain_scores(actual: Array, expected: Array) -> str:
    """Returns the probable reason for other scores, [C]; "" if it is unknown."""
    if not np.isfinite(actual).all():
        return "the output contains NaN or infinite values"
    if _correlation(actual, expected) > 0.999:
        slope, shift, left = _fit(actual, expected)
        if left < 1e-4:
            return f"the values are {slope:.3g} * expected {shift:+.3g}: check the temperature"
        return "the values are similar: check the precision and the last activation"
    if expected.min() >= 0 and actual.min() < 0:
        return "these are logits; expected probabilities"
    if np.array_equal(np.sort(actual), np.sort(expected)):
        return "the classes are in another order"
    return ""


def _other_shape(
    stage: Stage, actual: Array, expected: Array, allowed: tuple[float, float]
) -> StageDifference:
    hint = f"expected the shape {list(expected.shape)}, got {list(actual.shape)}"
    if stage == "decoding" and actual.ndim == 3:
        if actual.shape == (expected.shape[1], expected.shape[0], 3):
            hint += "; the image is rotated: apply the EXIF orientation"
        elif actual.shape[2:] in ((1,), (4,)):
            hint += "; convert to RGB"
    elif stage == "resizing" and sorted(actual.shape) == sorted(expected.shape):
        hint += "; the axes are in another order"
    elif stage == "resizing":
        hint += "; check the size of the resizing, and the crop"
    return StageDifference(stage, float("inf"), float("inf"), allowed, hint)


def _difference(
    stage: Stage, actual: Array, expected: Array, allowed: tuple[float, float]
) -> StageDifference:
    absolute = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    return StageDifference(stage, float(absolute.max(initial=0)), float(absolute.mean()), allowed)


def _with_hint(difference: StageDifference, hint: str) -> StageDifference:
    return StageDifference(difference.stage, difference.largest, difference.mean, difference.allowed, hint)


def _correlation(first: Array, second: Array) -> float:
    """Returns the correlation of two arrays of the same shape; 0 if one is constant."""
    x, y = (values.astype(np.float64).ravel() - values.mean() for values in (first, second))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def _fit(actual: Array, expected: Array) -> tuple[float, float, float]:
    """Fits ``actual = slope * expected + shift``; returns both, and the unexplained part of the variance."""
    x = expected.ravel() - expected.mean()
    y = actual.ravel() - actual.mean()
    variance = float(x @ x)
    slope = float(x @ y) / variance if variance else 1.0
    total = float(y @ y)
    left = float(((y - slope * x) ** 2).sum()) / total if total else 0.0
    return slope, float(actual.mean() - slope * expected.mean()), left
