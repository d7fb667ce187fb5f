"""The base class of post-processing methods, which convert the scores of a model into a prediction.

A method is a section of the config, ``Infer.PostProcess``, and of the description of an exported model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic_core import InitErrorDetails

from ppcls.config.base.component import Component
from ppcls.config.base.facts import LabelsPerImage, RunFacts
from ppcls.config.base.problems import problem
from ppcls.registry import POSTPROCESSES

if TYPE_CHECKING:  # --help must not wait for NumPy
    from numpy.typing import NDArray

    from ppcls.postprocess.results import Prediction

# Range of logits in which scores of float32 resolve a difference of 0.01: larger ones round to 1, and
# smaller ones to 0 or to a number with few digits.
_LARGEST_LOGIT = 12.0
_SMALLEST_LOGIT = -85.0
Activation = Literal["softmax", "sigmoid", "none"]  # the first two convert logits to scores from 0 to 1


def calibrate_threshold(threshold: float, temperature: float) -> float:
    """Returns the threshold for scores whose logits are divided by a temperature.

    A sigmoid, or the softmax of the second of two classes, reaches it for the same logits as before.

    Args:
        threshold: Threshold of the scores without the temperature, 0 to 1.
        temperature: Divisor of the logits, > 0.
    """
    if threshold in (0.0, 1.0):
        return threshold
    logit = math.log(threshold / (1.0 - threshold)) / temperature
    share = math.exp(-abs(logit))  # at most 1, so that no exponential overflows
    return (1.0 if logit >= 0.0 else share) / (1.0 + share)


def lowest_temperature(thresholds: Iterable[float]) -> float:
    """Returns the smallest temperature for which scores near the thresholds are still different numbers.

    Scores are float32, which round to 1 for logits above 17, and to 0 for logits below -103. With a smaller
    temperature, scores on one side of a calibrated threshold would be on the other side or equal to it.

    Args:
        thresholds: Thresholds of the scores without the temperature, 0 to 1.
    """
    logits = [math.log(each / (1.0 - each)) for each in thresholds if 0.0 < each < 1.0]
    return max([0.0, *(logit / (_LARGEST_LOGIT if logit > 0 else _SMALLEST_LOGIT) for logit in logits)])


class PostProcess(Component, registry=POSTPROCESSES):
    """Base class of post-processing, which selects classes by their scores.

    A subclass overrides `select`, or `interpret` if its result is not a choice of classes.

    Attributes:
        activation: Function that converts the model's logits into the scores.
        labels: Number of labels per image for which the method is meant.
        not_exported: Keys that the description of an exported model does not contain. The description may
            come from other people, so it must not name files of this machine.
    """

    activation: ClassVar[Activation] = "softmax"
    labels: ClassVar[LabelsPerImage | Literal["any"]] = "one"
    not_exported: ClassVar[frozenset[str]] = frozenset({"class_id_map_file"})
    class_id_map_file: str | None = None
    """Text file with one line `id name` per class; default: the names stored with the model, if any."""

    def select(self, scores: NDArray[Any], topk: int | None) -> NDArray[Any]:
        """Returns the positions of the selected classes.

        Args:
            scores: Scores of one image, [class_num] float32.
            topk: Number of classes that the caller wants; None for the number of the method.
        """
        raise NotImplementedError(f"{self.kind} does not select classes")

    def interpret(
        self, scores: NDArray[Any], names: tuple[str, ...] | None, topk: int | None = None
    ) -> Prediction:
        """Returns the prediction for one image.

        Args:
            scores: Scores of the image, [class_num] float32.
            names: Names of the classes, [class_num]; None if they are unknown.
            topk: Number of classes that the caller wants; None for the number of the method.
        """
        from ppcls.postprocess.results import Classification

        selected = self.select(scores, topk)
        return Classification(
            tuple(selected.tolist()),
            None if names is None else tuple(names[position] for position in selected),
            tuple(scores[selected].tolist()),
        )

    def decide(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Returns decisions that can be compared with labels: the class with the highest score, [N].

        Args:
            scores: Scores of N images, [N, class_num].
        """
        best: NDArray[Any] = scores.argmax(axis=1)
        return best

    @property
    def default_names(self) -> tuple[str, ...] | None:
        """Names of the classes in the keys of the method; None if it has no such keys."""
        return None

    def calibrated(self, temperature: float) -> PostProcess:  # noqa: ARG002
        """Returns the method for scores whose logits are divided by a temperature, with equal decisions."""
        return self

    @property
    def lowest_temperature(self) -> float:
        """Smallest temperature with which the decisions do not change; 0 if there is no limit."""
        return 0.0

    def for_export(self) -> PostProcess:
        """Returns the method that the description of an exported model contains."""
        return self

    def class_problems(self, class_num: int) -> Iterator[InitErrorDetails]:  # noqa: ARG002
        """Yields the conflicts with the number of classes, located relative to this section."""
        yield from ()

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the classes and labels. Embedding models ignore the method."""
        yield from super().problems(facts, part)
        if facts.embeds:
            return
        yield from self.class_problems(facts.class_num)
        for place, labels in list(facts.labels.items())[:1]:
            if self.labels not in ("any", labels):
                suitable = "MultiLabelThreshOutput" if labels == "several" else "Topk"
                text = f"expected {suitable}, got {self.kind}, because the data set is a"
                yield problem(f"{text} {facts.datasets[place]}", "name")
