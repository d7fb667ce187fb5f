"""Trainable layers of the losses in ``learned.py``. Most of them compare layers of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.errors import UserError
from ppcls.optimizer.functional import SGD_RATE

FeatureShape = tuple[int, int, int]  # [channels, height, width]


class CenterDistance(nn.Layer):  # type: ignore[misc]
    """Computes squared distances between embeddings and the centers of their classes.

    See Wen et al. 2016, equation 2. The centers are trained with plain SGD.

    Attributes:
        centers: Center of each class, [classes, size], initially from the standard normal distribution.

    Args:
        classes: Number of classes.
        size: Length of an embedding.
        rate: Learning rate of the centers. See `ppcls.optimizer.functional.with_plain_sgd`.
    """

    def __init__(self, classes: int, size: int, rate: float) -> None:
        super().__init__()
        # The rate of the centers is constant. If they were clipped, the norm of the model's gradients would
        # scale their updates, and their gradients would scale those of the model.
        attr = paddle.ParamAttr(initializer=nn.initializer.Normal(), need_clip=False)
        self.centers = self.create_parameter([classes, size], attr=attr)
        self.centers.optimize_attr[SGD_RATE] = rate

    def zeros(self, rows: int) -> Tensor:
        """Returns zeros, [rows] float32, that are computed from the centers, with a gradient of 0."""
        # The forward pass must use the centers, because ranks exchange only gradients of parameters it uses.
        return (self.centers.sum() * 0.0).expand([rows])

    def forward(self, features: Tensor, label: Tensor) -> Tensor:
        """Returns the mean distance over the batch, a float32 scalar.

        Args:
            features: Embeddings, [B, size].
            label: [B] int64.

        Raises:
            UserError: The length of the embeddings differs from ``size``.
        """
        if features.shape[1] != self.centers.shape[1]:
            raise UserError(
                f"Loss.Train: CenterLoss.feat_dim: expected {features.shape[1]}, the length of the features, "
                f"got {self.centers.shape[1]}"
            )
        with paddle.amp.auto_cast(enable=False):
            return (features.astype("float32") - F.embedding(label, self.centers)).square().sum(axis=1).mean()


class FeaturePairLoss(nn.Layer):  # type: ignore[misc]
    """Base class of losses that sum a cost over pairs of feature maps.

    The second feature map of a pair gets no gradient.

    Args:
        pairs: Names of the two outputs of each pair.
        channels: Number of channels of the first output of each pair.
        other_channels: Number of channels of the second output of each pair.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], channels: int, other_channels: int) -> None:
        super().__init__()
        self._pairs = tuple(pairs)
        self._channels = (channels, other_channels)

    def forward(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the cost per image, [B] float32.

        Args:
            outputs: Outputs of the models by name.

        Raises:
            UserError: An output has another number of channels, or the outputs of a pair differ in height or
                width.
        """
        total: Tensor | float = 0.0
        for one, other in self._pairs:
            student = outputs[one]
            target = outputs[other].detach()
            for name, feature, channels in zip((one, other), (student, target), self._channels, strict=True):
                _check_shape(name, feature, [channels, *target.shape[2:]])
            total = total + self.cost(student, target)
        return total

    def cost(self, student: Tensor, other: Tensor) -> Tensor:
        """Returns the cost per image, [B] float32, for feature maps [B, C, H, W] and [B, C', H, W]."""
        raise NotImplementedError


class MaskedGeneration(FeaturePairLoss):
    """Implements masked generative distillation (Yang et al. 2022, equation 4).

    Random channels of the student's features are masked. Two convolutions then generate the other model's
    features from them. The cost is the mean squared difference.

    Args:
        pairs: Names of the two outputs of each pair.
        channels: Number of channels of the student's features.
        other_channels: Number of channels of the other model's features.
        masked: Share of masked channels.
        factor: Factor of the cost.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        channels: int,
        other_channels: int,
        masked: float,
        factor: float,
    ) -> None:
        super().__init__(pairs, channels, other_channels)
        self._masked = masked
        self._factor = factor
        self.align = nn.Identity() if channels == other_channels else _conv(channels, other_channels, 1)
        first = _conv(other_channels, other_channels, 3)
        second = _conv(other_channels, other_channels, 3)
        self.generation = nn.Sequential(first, nn.ReLU(), second)

    def cost(self, student: Tensor, other: Tensor) -> Tensor:
        """Returns the cost per image. See `FeaturePairLoss.cost`."""
        student = self.align(student)
        mask = (paddle.rand([*student.shape[:2], 1, 1]) >= self._masked).astype(student.dtype)
        generated = self.generation(student * mask)
        with paddle.amp.auto_cast(enable=False):
            difference = generated.astype("float32") - other.astype("float32")
            return difference.square().mean(axis=[1, 2, 3]) * self._factor


def _conv(in_channels: int, out_channels: int, kernel: int) -> nn.Conv2D:
    # The paper's code uses the fan-out.
    initializer = nn.initializer.KaimingNormal(fan_in=out_channels * kernel**2)
    return nn.Conv2D(in_channels, out_channels, kernel, padding=kernel // 2, weight_attr=initializer)


class ProjectorEnsemble(FeaturePairLoss):
    """Implements the projector ensemble (Chen et al. 2022, equations 5 and 6).

    Several layers project the student's features. The cost is one minus the cosine between the mean of the
    projections and the other model's features.

    Args:
        pairs: Names of the two outputs of each pair.
        channels: Number of channels of the student's features.
        other_channels: Number of channels of the other model's features.
        projectors: Number of projections.
    """

    def __init__(
        self, pairs: Sequence[tuple[str, str]], channels: int, other_channels: int, projectors: int
    ) -> None:
        super().__init__(pairs, channels, other_channels)
        self.projectors = nn.LayerList([nn.Conv2D(channels, other_channels, 1) for _ in range(projectors)])

    def cost(self, student: Tensor, other: Tensor) -> Tensor:
        """Returns the cost per image. See `FeaturePairLoss.cost`."""
        projected = sum(F.relu(project(student)) for project in self.projectors) / len(self.projectors)
        with paddle.amp.auto_cast(enable=False):
            one = projected.astype("float32").flatten(1)
            two = other.astype("float32").flatten(1)
            return 1.0 - F.cosine_similarity(one, two, axis=1)


class LinearNorm(nn.Layer):  # type: ignore[misc]
    """A linear layer, followed by batch normalization."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.bn = nn.BatchNorm1D(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, inputs] to [B, outputs]."""
        return self.bn(self.linear(x))


class AttentionTransfer(nn.Layer):  # type: ignore[misc]
    """Implements attention-based feature distillation, AFD (Ji, Heo & Park 2021, equations 2 to 6).

    Queries are computed from the channel means of the teacher's layers, and keys from the channel means of
    the student's layers. The softmax of their products is the weight of each pair of layers. The cost is the
    weighted sum of the mean squared differences between energies. The energy of a layer is the mean square
    over channels, normalized to length 1.

    Args:
        student: Output names of the student's layers.
        teacher: Output names of the teacher's layers.
        student_shapes: Shapes of the student's layers.
        teacher_shapes: Shapes of the teacher's layers.
        size: Length of a query or key.
    """

    def __init__(
        self,
        student: Sequence[str],
        teacher: Sequence[str],
        student_shapes: Sequence[FeatureShape],
        teacher_shapes: Sequence[FeatureShape],
        size: int,
    ) -> None:
        super().__init__()
        self._student = tuple(student)
        self._teacher = tuple(teacher)
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
        """Returns the cost per image, [B] float32. The teacher's outputs get no gradient.

        Args:
            outputs: Outputs of the models by name.

        Raises:
            UserError: The shape of an output differs from the config.
        """
        for name, shape in self._shapes.items():
            _check_shape(name, outputs[name], shape)
        student = [outputs[name] for name in self._student]
        targets = [outputs[name].detach() for name in self._teacher]
        attention = self._attention(student, targets)  # [B, teacher's layers, student's layers]
        with paddle.amp.auto_cast(enable=False):
            energies = {sides: _pooled_energies(student, sides) for sides in set(self._sides)}
            cost = paddle.zeros([len(student[0])])
            for position, (target, sides) in enumerate(zip(targets, self._sides, strict=True)):
                energy = F.normalize(_energy(target).flatten(1), axis=1)
                difference = (energies[sides] - energy.unsqueeze(1)).square().mean(axis=2)
                cost = cost + (difference * attention[:, position]).sum(axis=1)
            return cost

    def _attention(self, student: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Returns the weights of pairs, [B, teacher's layers, student's layers] float32.

        The sum over the last axis is 1.
        """
        queries = [layer(_means(feature)) for layer, feature in zip(self.query_layer, targets, strict=True)]
        query = paddle.stack(queries, 1)
        keys = [
            F.relu(layer(_means(feature))) for layer, feature in zip(self.key_layer, student, strict=True)
        ]
        key = self.bilinear(paddle.stack(keys, 1).flatten(0, 1))
        key = key.reshape([-1, len(student), len(targets), self._size])
        with paddle.amp.auto_cast(enable=False):
            fit = paddle.einsum("bstq,btq->bts", key.astype("float32"), query.astype("float32"))
            prior = self.p_t.astype("float32").matmul(self.p_s.astype("float32"), transpose_y=True)
            return F.softmax((fit + prior) / self._size**0.5, axis=2)


def _check_shape(name: str, feature: Tensor, shape: Sequence[int]) -> None:
    """Raises `UserError` if the shape of an output is not [B, *shape]."""
    actual = list(feature.shape[1:])
    if actual != list(shape):
        raise UserError(
            f"Loss.Train: {name} has the shape {actual}, channels first, but the loss expects {list(shape)}; "
            "correct the shape in the config of the loss, or choose another layer"
        )


def _means(feature: Tensor) -> Tensor:
    """Returns the mean of each channel, [B, C], of a feature map [B, C, H, W]."""
    return feature.mean(axis=[2, 3])


def _energy(feature: Tensor) -> Tensor:
    """Returns the mean square over channels, [B, 1, H, W] float32, of a feature map [B, C, H, W]."""
    return feature.astype("float32").square().mean(axis=1, keepdim=True)


def _pooled_energies(features: Sequence[Tensor], sides: tuple[int, int]) -> Tensor:
    """Returns the energies of all features, pooled to ``sides`` and normalized, [B, layers, H * W]."""
    pooled = [F.adaptive_avg_pool2d(_energy(feature), sides).flatten(1) for feature in features]
    return F.normalize(paddle.stack(pooled, 1), axis=2)
