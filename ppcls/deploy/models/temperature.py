"""Temperature scaling: divides logits by a number so that a model's probabilities match its accuracy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ppcls.config.base.fields import Bound, Positive
from ppcls.config.base.section import Section
from ppcls.errors import UserError, counted
from ppcls.files import read_regular, write_text
from ppcls.metric.base import DatasetMetric
from ppcls.postprocess.base import PostProcess

TEMPERATURE_FILE = "temperature.json"  # in the checkpoint folder
_RANGE = (0.05, 20.0)  # range of temperatures
_NEAR = 1.01  # quotient of a temperature and an end of the range, up to which the search ended there
_BINS = 15  # number of bins of the calibration error, as in table 1 of Guo et al.


class Temperature(Section):
    """Content of ``temperature.json``."""

    temperature: Annotated[float, Bound(ge=1e-3, le=1e3)]  # quotients by smaller numbers overflow


class TemperatureScaling(DatasetMetric, abstract=True):  # not a metric of configs
    """Metric that fits the temperature with the lowest negative log-likelihood.

    The method is that of Guo et al. 2017, section 4.2: ``softmax(logits / temperature)``. For several labels
    per image, the sigmoid replaces the softmax. The predicted classes do not change.
    """

    lowest: Positive = _RANGE[0]
    """Smallest temperature."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values: the temperature, and the loss and calibration error without and with it."""
        return ("temperature", "nll", "nll_scaled", "ece", "ece_scaled")

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns one value per name; see `DatasetMetric.compute`."""
        from scipy.optimize import minimize_scalar  # slow to import

        logits = scores.astype(np.float64)
        if scores.shape[1] == 1:  # a single class is present or not: its score is a sigmoid
            labels = labels.reshape(-1, 1)
        if not np.isfinite(logits).all():
            return [float("nan")] * len(self.names)
        minimum = minimize_scalar(
            lambda log: negative_log_likelihood(logits / np.exp(log), labels),
            bounds=np.log((self.lowest, _RANGE[1])),
            method="bounded",
        )
        temperature = max(float(np.exp(minimum.x)), self.lowest)
        pairs = [
            measure(logits / divisor, labels)
            for measure in (negative_log_likelihood, expected_calibration_error)
            for divisor in (1.0, temperature)
        ]
        return [temperature, *pairs]


def scaling_for(method: PostProcess | None) -> TemperatureScaling:
    """Returns the fit of a temperature that does not change decisions of a post-processing method.

    Args:
        method: Method whose thresholds are calibrated with the scores; None without a method.
    """
    return TemperatureScaling(lowest=max(_RANGE[0], method.lowest_temperature if method else 0.0))


def describe_limit(temperature: float, images: int, lowest: float = _RANGE[0]) -> str:
    """Returns a warning about a temperature at an end of the range, or an empty text.

    Args:
        temperature: Fitted temperature.
        images: Number of images on which it was fitted.
        lowest: Lower end of the range, which is higher than usual to keep decisions with thresholds.
    """
    highest = _RANGE[1]
    if temperature * _NEAR >= highest:
        return (
            f"the labels of the {counted(images, 'image')} don't fit the predictions: the temperature is at "
            f"its upper limit, {highest:g}, where all classes are nearly equally probable; check the "
            "accuracy with "
            "ppcls eval, and the names of the class folders"
        )
    if temperature <= lowest * _NEAR and lowest > _RANGE[0]:
        return (
            f"the temperature is at its lower limit, {lowest:.3g}; with a smaller one, scores would round to "
            "1, and Infer.PostProcess.threshold could no longer separate them"
        )
    if temperature <= lowest * _NEAR:
        return (
            f"the temperature is at its lower limit, {lowest:g}, because almost all of the "
            f"{counted(images, 'image')} are predicted right, so the probabilities will be close to 1; use "
            "more images, or harder ones"
        )
    return ""


def negative_log_likelihood(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Returns the mean negative log-likelihood per image, for one label [N] or several labels [N, C]."""
    if labels.ndim == 2:
        return float((np.logaddexp(0.0, logits) - labels * logits).sum(axis=1).mean())
    shifted = logits - logits.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(labels)), labels.astype(int)]
    return float((np.log(np.exp(shifted).sum(axis=1)) - chosen).mean())


def expected_calibration_error(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Returns the expected calibration error of the predicted classes, or of all labels [N, C]."""
    if labels.ndim == 2:
        confidence = 1.0 / (1.0 + np.exp(-logits)).ravel()
        right = labels.ravel() > 0.5
    else:
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        confidence = 1.0 / shares.sum(axis=1)
        right = logits.argmax(axis=1) == labels
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    return float(np.abs(np.bincount(bins, right - confidence, _BINS)).sum() / len(bins))


def round_temperature(temperature: float) -> float:
    """Returns a temperature as `write_temperature` stores it."""
    return round(temperature, 4)


def write_temperature(folder: Path, temperature: float) -> Path:
    """Writes the temperature into a checkpoint folder, and returns the path of the file.

    Raises:
        OSError: The file cannot be written.
    """
    file = folder / TEMPERATURE_FILE
    write_text(file, json.dumps({"temperature": round_temperature(temperature)}) + "\n")
    return file


def read_temperature(weights: Path) -> float:
    """Returns the temperature of a checkpoint folder, or 1 if the folder contains no temperature.

    Raises:
        UserError: The file is invalid.
    """
    file = weights / TEMPERATURE_FILE
    if not file.is_file():
        return 1.0
    try:
        return Temperature.model_validate(json.loads(read_regular(file))).temperature
    except (OSError, RecursionError, ValueError, ValidationError):
        raise UserError(
            f'{file}: expected {{"temperature": NUMBER > 0}}; delete it, or run ppcls calibrate again'
        ) from None
