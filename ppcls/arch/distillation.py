"""Models side by side: what training calls where one learns from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import paddle
from paddle import Tensor, nn

from ppcls.outputs import LOGITS


class Distilling(nn.Layer):  # type: ignore[misc]
    """Gives the logits of all models, by name.

    Only the student is a part of it, with the peers that learn beside it, which are the student's own
    sublayers: so its parameters are what is trained, and the student's keep their names. Teachers are held
    apart: no optimizer, average, checkpoint, exchange or `train` finds them.

    Args:
        name: Of the student.
        student: With its peers.
        peers: Their names.
        teachers: By name; put into evaluation mode, without gradients.
    """

    def __init__(
        self, name: str, student: nn.Layer, peers: Sequence[str], teachers: Mapping[str, nn.Layer]
    ) -> None:
        super().__init__()
        self.student, self._name, self._peers = student, name, tuple(peers)
        for teacher in teachers.values():
            teacher.eval()
            for parameter in teacher.parameters():
                parameter.stop_gradient = True
        self._teachers = dict(teachers)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Maps images to name to logits [B, C]; the student's also as ``logits``."""
        with paddle.no_grad():
            outputs = {name: teacher(image) for name, teacher in self._teachers.items()}
        outputs[self._name] = outputs[LOGITS] = self.student(image)
        for name in self._peers:
            outputs[name] = getattr(self.student, name)(image)
        return outputs


def add_peer(student: nn.Layer, name: str, peer: nn.Layer) -> None:
    """Makes ``peer`` a sublayer of ``student``, whose own work does not change.

    Raises:
        ValueError: The student has something of this name, or would take it for one of its stages.
    """
    if isinstance(student, nn.Sequential) or hasattr(student, name):
        raise ValueError(f"{type(student).__name__} can't hold a model called {name!r}; choose another name")
    student.add_sublayer(name, peer)
