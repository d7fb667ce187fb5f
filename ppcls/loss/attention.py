"""Attention-based feature distillation: which layer of a model is to learn from which layer of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.errors import UserError

Shape = tuple[int, int, int]  # [channels, height, width]


class LinearNorm(nn.Layer):  # type: ignore[misc]
    """A linear layer and batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.bn = nn.Linear(inputs, outputs), nn.BatchNorm1D(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, inputs] to [B, outputs]."""
        return self.bn(self.linear(x))


class AttentionTransfer(nn.Layer):  # type: ignore[misc]
    """Show, attend and distill (Ji, Heo & Park 2021, equations 2 to 6).

    Each teacher's layer asks (a query, of its channels' means), each student's layer answers (a key); their
    product says by a softmax how much the layer of the teacher is for which of the student. So much weighs
    the squared difference of where both have their energy: the mean square over channels, of length 1.

    Args:
        student: Names of its layers in the outputs.
        teacher: Names of its layers.
        student_shapes: Of the student's layers.
        teacher_shapes: Of the teacher's.
        size: Numbers of a query or key.
    """

    def __init__(
        self,
        student: Sequence[str],
        teacher: Sequence[str],
        student_shapes: Sequence[Shape],
        teacher_shapes: Sequence[Shape],
        size: int,
    ) -> None:
        super().__init__()
        self._student, self._teacher = tuple(student), tuple(teacher)
        names = (*student, *teacher)
        self._shapes = dict(zip(names, (*student_shapes, *teacher_shapes), strict=True))
        self._sides = [(height, width) for _, height, width in teacher_shapes]
        self._size = size
        self.query_layer = nn.LayerList([LinearNorm(shape[0], size) for shape in teacher_shapes])
        self.key_layer = nn.LayerList([LinearNorm(shape[0], size) for shape in student_shapes])
        self.bilinear = LinearNorm(size, size * len(teacher_shapes))
        normal = nn.initializer.XavierNormal()
        self.p_t, self.p_s = (
            self.create_parameter([len(names), size], default_initializer=normal)
            for names in (teacher, student)
        )

    def forward(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Maps outputs by name to each image's cost, [B] float32; no gradient reaches the teacher's.

        Raises:
            UserError: An output has another shape than was said.
        """
        for name, shape in self._shapes.items():
            check_map(name, outputs[name], shape)
        own = [outputs[name] for name in self._student]
        other = [outputs[name].detach() for name in self._teacher]
        attention = self._attention(own, other)  # [B, teacher's layers, student's]
        with paddle.amp.auto_cast(enable=False):
            energies = {sides: _at(own, sides) for sides in set(self._sides)}
            cost = paddle.zeros([len(own[0])])
            for position, (each, sides) in enumerate(zip(other, self._sides, strict=True)):
                target = F.normalize(_energy(each).flatten(1), axis=1)
                difference = (energies[sides] - target.unsqueeze(1)).square().mean(axis=2)
                cost = cost + (difference * attention[:, position]).sum(axis=1)
            return cost

    def _attention(self, own: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
        """Returns shares, [B, teacher's layers, student's] float32; those of a teacher's layer sum to 1."""
        asked = [layer(_means(each)) for layer, each in zip(self.query_layer, other, strict=True)]
        query = paddle.stack(asked, 1)
        keys = [F.relu(layer(_means(each))) for layer, each in zip(self.key_layer, own, strict=True)]
        key = self.bilinear(paddle.stack(keys, 1).flatten(0, 1))
        key = key.reshape([-1, len(own), len(other), self._size])
        with paddle.amp.auto_cast(enable=False):
            fit = paddle.einsum("bstq,btq->bts", key.astype("float32"), query.astype("float32"))
            place = self.p_t.astype("float32").matmul(self.p_s.astype("float32"), transpose_y=True)
            return F.softmax((fit + place) / self._size**0.5, axis=2)


def check_map(name: str, given: Tensor, shape: Sequence[int]) -> None:
    """Checks what a layer gave.

    Raises:
        UserError: It is not [B, *shape].
    """
    found = list(given.shape[1:])
    if found != list(shape):
        raise UserError(
            f"Loss.Train: {name} gives {found}, channels first, and the loss expects {list(shape)}; "
            "set it right there, or take another layer"
        )


def _means(each: Tensor) -> Tensor:
    """Maps [B, C, H, W] to its channels' means, [B, C]."""
    return each.mean(axis=[2, 3])


def _energy(each: Tensor) -> Tensor:
    """Maps [B, C, H, W] to the mean square over channels, [B, 1, H, W] float32."""
    return each.astype("float32").square().mean(axis=1, keepdim=True)


def _at(own: Sequence[Tensor], sides: tuple[int, int]) -> Tensor:
    """Returns all layers' energies, pooled to ``sides``, of length 1: [B, layers, H * W]."""
    pooled = [F.adaptive_avg_pool2d(_energy(each), sides).flatten(1) for each in own]
    return F.normalize(paddle.stack(pooled, 1), axis=2)
