"""Models side by side: what training calls where one learns from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.feature_extractor import FeatureExtractor
from ppcls.outputs import LOGITS, layer_output_name


class DistillationNetwork(nn.Layer):  # type: ignore[misc]
    """Gives the logits of all models, by name, and what some of their layers give.

    Only the student is a part of it, with what learns beside it, peers and losses that have layers of their
    own, which are the student's sublayers: so its parameters are what is trained, and the student's keep
    their names. Teachers are held apart: no optimizer, average, checkpoint, exchange or `train` finds them.

    Args:
        name: Of the student.
        student: With its peers, under their names, and with the losses.
        taps: The models by name, the student and its peers among them; all others are teachers, and are put
            into evaluation mode, without gradients.
        peers: Names of those that learn beside the student.
        losses: Names of the student's sublayers that are losses: each maps these outputs to [B] float32.
        teaching: By teachers' names, what makes the context of a forward pass: it gives them their precision.
    """

    def __init__(
        self,
        name: str,
        student: nn.Layer,
        taps: Mapping[str, FeatureExtractor],
        peers: Sequence[str] = (),
        losses: Sequence[str] = (),
        teaching: Mapping[str, Callable[[], AbstractContextManager[Any]]] | None = None,
    ) -> None:
        super().__init__()
        self.student, self._losses = student, tuple(losses)
        self._learning = {name: taps[name], **{peer: taps[peer] for peer in peers}}
        self._teachers = {other: tapped for other, tapped in taps.items() if other not in self._learning}
        self._name, self._teaching = name, teaching or {}
        for tapped in self._teachers.values():
            tapped.model.eval()
            for parameter in tapped.model.parameters():
                parameter.stop_gradient = True

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Maps images to name to logits [B, C], the student's also as ``logits``.

        Outputs of layers are included under ``ppcls.outputs.layer_output_name``, and each loss's costs per
        image, [B], under the loss's name.
        """
        outputs: dict[str, Tensor] = {}
        with paddle.no_grad():
            for name, tapped in self._teachers.items():
                with self._teaching.get(name, nullcontext)():
                    outputs |= _named(name, *tapped(image))
        for name, tapped in self._learning.items():
            outputs |= _named(name, *tapped(image))
        outputs[LOGITS] = outputs[self._name]
        for loss in self._losses:
            outputs[loss] = getattr(self.student, loss)(outputs)
        return outputs


def _named(name: str, logits: Tensor, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: logits, **{layer_output_name(name, layer): each for layer, each in given.items()}}


def attach_to_student(student: nn.Layer, name: str, layer: nn.Layer) -> None:
    """Makes ``layer``, a model or a loss, a sublayer of ``student``, whose own work does not change.

    Raises:
        ValueError: The student has something of this name, or would take it for one of its stages.
    """
    if isinstance(student, nn.Sequential) or hasattr(student, name):
        raise ValueError(f"{type(student).__name__} can't hold a model called {name!r}; choose another name")
    student.add_sublayer(name, layer)
