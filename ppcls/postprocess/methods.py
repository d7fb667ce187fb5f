"""The post-processing methods. Each class has the keys of a method in YAML, and applies it to scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import LabelsPerImage
from ppcls.config.base.fields import Bound, Count, Fraction
from ppcls.config.base.problems import problem
from ppcls.postprocess.base import Activation, PostProcess, calibrate_threshold, lowest_temperature

if TYPE_CHECKING:  # --help must not wait for NumPy
    from numpy.typing import NDArray

    from ppcls.postprocess.results import Scores


class Topk(PostProcess):
    """Returns the classes with the highest softmax scores of each image."""

    topk: Count = 5
    """Number of classes per image."""

    def select(self, scores: NDArray[Any], topk: int | None) -> NDArray[Any]:
        """Returns the positions of the ``topk`` classes with the highest scores, in descending order."""
        from ppcls.postprocess.results import rank

        return rank(scores, min(topk or self.topk, len(scores)))

    def class_problems(self, class_num: int) -> Iterator[InitErrorDetails]:
        """Yields the conflict with a model that has fewer classes."""
        if self.topk > class_num:
            yield problem(f"expected at most {class_num}, the number of classes, got {self.topk}", "topk")


class ThreshOutput(PostProcess):
    """Chooses between two classes: the second if its softmax score reaches the threshold, else the first."""

    not_exported: ClassVar[frozenset[str]] = PostProcess.not_exported | {"label_0", "label_1"}
    threshold: Fraction = 0.5
    """Smallest score, 0 to 1, with which the second class is chosen: the score before ppcls calibrate."""
    label_0: str | None = None
    """Name of the first class; default: no name."""
    label_1: str | None = None
    """Name of the second class; default: no name."""

    @property
    def default_names(self) -> tuple[str, ...] | None:
        """The names ``label_0`` and ``label_1``; None if one of them is missing."""
        if self.label_0 is None or self.label_1 is None:
            return None
        return self.label_0, self.label_1

    def select(self, scores: NDArray[Any], topk: int | None) -> NDArray[Any]:  # noqa: ARG002
        """Returns the position of the chosen class, [1]."""
        return self.decide(scores[None])

    def decide(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Returns the chosen class of each image, [N]."""
        import numpy as np

        return (scores[:, 1] >= self.threshold).astype(np.int64)

    def calibrated(self, temperature: float) -> ThreshOutput:
        """Returns the method with the threshold for calibrated scores."""
        return self.model_copy(update={"threshold": calibrate_threshold(self.threshold, temperature)})

    @property
    def lowest_temperature(self) -> float:
        """Smallest temperature with which the decisions do not change."""
        return lowest_temperature([self.threshold])

    def class_problems(self, class_num: int) -> Iterator[InitErrorDetails]:
        """Yields the conflict with a model that has another number of classes."""
        if class_num != 2:
            yield problem(f"ThreshOutput needs two classes, but the model has {class_num}", "name")


class MultiLabelThreshOutput(PostProcess):
    """Returns all classes of an image whose sigmoid scores reach the threshold. There may be none."""

    activation: ClassVar[Activation] = "sigmoid"
    labels: ClassVar[LabelsPerImage | Literal["any"]] = "several"
    threshold: Fraction | tuple[Fraction, ...] = 0.5
    """Smallest score, 0 to 1, with which a class is predicted: one value for all classes, or a list with one
    value per class. It refers to the scores before ppcls calibrate."""

    def select(self, scores: NDArray[Any], topk: int | None) -> NDArray[Any]:
        """Returns the positions of the predicted classes, at most ``topk``, in descending order of score."""
        from ppcls.postprocess.results import rank

        ranked = rank(scores, len(scores))
        selected: NDArray[Any] = ranked[self.decide(scores)[ranked]]
        return selected[:topk]

    def decide(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Returns whether each class is predicted, in the shape of ``scores``."""
        import numpy as np

        predicted: NDArray[Any] = scores >= np.array(self.threshold)
        return predicted

    def calibrated(self, temperature: float) -> MultiLabelThreshOutput:
        """Returns the method with the thresholds for calibrated scores."""
        threshold: float | tuple[float, ...]
        if isinstance(self.threshold, tuple):
            threshold = tuple(calibrate_threshold(each, temperature) for each in self.threshold)
        else:
            threshold = calibrate_threshold(self.threshold, temperature)
        return self.model_copy(update={"threshold": threshold})

    @property
    def lowest_temperature(self) -> float:
        """Smallest temperature with which the decisions do not change."""
        return lowest_temperature(self.threshold if isinstance(self.threshold, tuple) else [self.threshold])

    def class_problems(self, class_num: int) -> Iterator[InitErrorDetails]:
        """Yields the conflict of a list of thresholds with the number of classes."""
        if isinstance(self.threshold, tuple) and len(self.threshold) != class_num:
            text = f"expected {class_num} thresholds, one per class, got {len(self.threshold)}"
            yield problem(text, "threshold")


class DistillationPostProcess(Topk):
    """PaddleClas's name for ``Topk`` with distillation. Only the student is exported."""

    model_name: Literal["Student"] = "Student"
    """Accepted for compatibility with PaddleClas; has no effect."""
    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""
    func: Literal["Topk"] = "Topk"
    """Accepted for compatibility with PaddleClas; has no effect."""

    def for_export(self) -> Topk:
        """Returns the same method with its usual name."""
        return Topk(class_id_map_file=self.class_id_map_file, topk=self.topk)


class ScoreOutput(PostProcess):
    """Returns the rounded outputs of the model for each class, without softmax or sigmoid."""

    activation: ClassVar[Activation] = "none"
    labels: ClassVar[LabelsPerImage | Literal["any"]] = "any"
    decimal_places: Annotated[int, Bound(ge=0, le=15)]
    """Number of decimal places."""

    def interpret(
        self,
        scores: NDArray[Any],
        names: tuple[str, ...] | None,
        topk: int | None = None,  # noqa: ARG002
    ) -> Scores:
        """Returns the rounded outputs of one image. See `PostProcess.interpret` for the arguments."""
        import numpy as np

        from ppcls.postprocess.results import Scores

        # float32 has too few digits for 15 decimal places.
        rounded = scores.astype(np.float64).round(self.decimal_places)
        return Scores(tuple(rounded.tolist()), names)
