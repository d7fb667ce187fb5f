"""The network for distillation, which consists of a student, its peers and its teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.feature_extractor import FeatureExtractor
from ppcls.outputs import LOGITS, Outputs, get_logits, layer_output_name


class DistillationNetwork(nn.Layer):  # type: ignore[misc]
    """A network that runs a student, its peers and its teachers on the same images.

    The student is the only sublayer. Peers and losses with parameters are sublayers of the student, so that
    the student contains all trained parameters. Teachers are not sublayers. Therefore the optimizer, the
    moving average, checkpoints, the gradient exchange and `train` do not affect them.

    Args:
        name: Name of the student.
        student: Student, which contains the peers and the losses as sublayers.
        extractors: All models by name. Models other than the student and its peers are teachers, which the
            network sets to evaluation mode and freezes.
        peers: Names of the models that are trained together with the student.
        losses: Names of the student's sublayers that are losses. A loss maps the outputs of this network to
            float32 values [B].
        teaching: For each teacher's name, a function that returns the context manager for its forward pass,
            which sets the precision. By default, no context managers are used.
    """

    def __init__(
        self,
        name: str,
        student: nn.Layer,
        extractors: Mapping[str, FeatureExtractor],
        peers: Sequence[str] = (),
        losses: Sequence[str] = (),
        teaching: Mapping[str, Callable[[], AbstractContextManager[Any]]] | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self._losses = tuple(losses)
        self._learners = {model: extractors[model] for model in (name, *peers)}
        self._teachers = {
            other: extractor for other, extractor in extractors.items() if other not in self._learners
        }
        self._name = name
        self._teaching = teaching or {}
        for teacher in self._teachers.values():
            teacher.model.eval()
            for parameter in teacher.model.parameters():
                parameter.stop_gradient = True

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Maps images to a dictionary with the logits [B, C] of each model under the model's name.

        The key ``logits`` holds the logits of the student. Outputs of layers have the keys that
        `ppcls.outputs.layer_output_name` returns. Losses per image, [B], have the names of the losses.
        """
        outputs: dict[str, Tensor] = {}
        with paddle.no_grad():
            for name, teacher in self._teachers.items():
                with self._teaching.get(name, nullcontext)():
                    outputs |= _named(name, *teacher(image))
        for name, learner in self._learners.items():
            own, features = learner(image)
            outputs |= _named(name, own, features)
            if name == self._name:
                outputs |= own if isinstance(own, dict) else {LOGITS: own}
        for loss in self._losses:
            outputs[loss] = getattr(self.student, loss)(outputs)
        return outputs


def _named(name: str, outputs: Outputs, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: get_logits(outputs),
        **{layer_output_name(name, layer): feature for layer, feature in features.items()},
    }


def attach_to_student(student: nn.Layer, name: str, layer: nn.Layer) -> None:
    """Makes ``layer``, a model or a loss, a sublayer of ``student`` without changing its forward pass.

    Raises:
        ValueError: The student has an attribute of this name, or is an `nn.Sequential`, which would call the
            layer.
    """
    if isinstance(student, nn.Sequential) or hasattr(student, name):
        raise ValueError(f"{type(student).__name__} cannot hold a model called {name!r}; choose another name")
    student.add_sublayer(name, layer)
