"""Losses on the layer outputs of two models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Decay, Positive, error_at, problem
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.distillation_losses import DistillationLossSpec, ModelPairLoss

_LOGITS = ("logits", "output")
LayerShape = tuple[Count, Count, Count]  # [channels, height, width]


class DistillationDistanceLoss(ModelPairLoss):
    """Mean distance between the outputs of one layer in both models, or between their logits."""

    mutual: ClassVar[bool] = True
    mode: Literal["l1", "l2", "smooth_l1"] = "l2"
    """Absolute distance, squared distance, or Huber's with a threshold of 1."""
    key: str | None = None
    """Layer, as in `return_patterns`; by default the logits."""
    act: Literal["sigmoid", "softmax"] | None = None
    """Activation of both outputs; the softmax is over the last axis."""

    @property
    def layer(self) -> str | None:
        """Name of the layer; None for the logits."""
        return None if self.key in _LOGITS else self.key

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `DistillationLossSpec.layers`."""
        if self.layer is not None:
            yield from ((name, self.layer) for name in self.names)


class DistillationRKDLoss(ModelPairLoss):
    """Relations between the images of a batch: distances, and angles of triples (Park et al. 2019)."""

    model_name_pairs: tuple[tuple[str, str], ...] = Field((("Student", "Teacher"),), min_length=1)
    """Pairs [learner, teacher], whose losses are added."""
    student_keepkeys: tuple[str, ...] = Field(min_length=1)
    """Layers of the learner."""
    teacher_keepkeys: tuple[str, ...] = Field(min_length=1)
    """Layers of the teacher, one for each layer of the learner."""
    target_size: Count | None = None
    """Pool the outputs to this number of rows and columns; by default no pooling."""
    avgpool: Literal[False] = False
    """Accepted for compatibility with PaddleClas; use `target_size` for pooling."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        student_layers, teacher_layers = len(self.student_keepkeys), len(self.teacher_keepkeys)
        if student_layers != teacher_layers:
            text = f"expected {student_layers} layers, as many as in student_keepkeys, got {teacher_layers}"
            raise error_at(text, "teacher_keepkeys")
        return self

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `DistillationLossSpec.layers`."""
        for one, other in self.model_name_pairs:
            yield from ((one, layer) for layer in self.student_keepkeys)
            yield from ((other, layer) for layer in self.teacher_keepkeys)


class DistillationPairLoss(ModelPairLoss):
    """A loss with trainable layers of its own, which are not part of the student.

    ``MGDLoss``: the teacher's features, generated from the student's with some channels removed (Yang et al.
    2022, "Masked Generative Distillation"). ``PEFDLoss``: one minus the cosine between the teacher's features
    and the mean of several projections of the student's (Chen et al. 2022, "Projector Ensemble").
    """

    has_weights: ClassVar[bool] = True
    base_loss_name: Literal["MGDLoss", "PEFDLoss"]
    """Loss between the two layers of a pair."""
    name: str | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""
    s_key: str | None = None
    """Layer of the learner. Set either this or `s_keys`."""
    t_key: str | None = None
    """Layer of the teacher. Set either this or `t_keys`."""
    s_keys: tuple[str] | None = None
    """Layer of the learner as a list of one item."""
    t_keys: tuple[str] | None = None
    """Layer of the teacher as a list of one item."""
    student_channels: Count | None = None
    """Channels of the learner's layer. Set either this or `student_channel`."""
    teacher_channels: Count | None = None
    """Channels of the teacher's layer. Set either this or `teacher_channel`."""
    student_channel: Count | None = None
    """Other name of `student_channels`."""
    teacher_channel: Count | None = None
    """Other name of `teacher_channels`."""
    alpha_mgd: Positive = 1.756
    """MGDLoss: factor of the loss."""
    lambda_mgd: Decay = 0.15
    """MGDLoss: share of the removed channels."""
    num_projectors: Count = 3
    """PEFDLoss: number of projections."""

    @property
    def keys(self) -> tuple[str, str]:
        """Layers of the learner and of the teacher."""
        one, other = self.s_key or (self.s_keys or ("",))[0], self.t_key or (self.t_keys or ("",))[0]
        return one, other

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of these layers."""
        one = self.student_channels or self.student_channel
        other = self.teacher_channels or self.teacher_channel
        assert one is not None  # by _check_both
        assert other is not None
        return one, other

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        problems = [
            problem(f"expected either this or {other}", name)
            for name, other in (
                ("s_key", "s_keys"),
                ("t_key", "t_keys"),
                ("student_channels", "student_channel"),
                ("teacher_channels", "teacher_channel"),
            )
            if (getattr(self, name) is None) == (getattr(self, other) is None)
        ]
        if problems:
            raise ValidationError.from_exception_data("pair", problems)
        return self

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `DistillationLossSpec.layers`."""
        for pair in self.model_name_pairs:
            yield from zip(pair, self.keys, strict=True)


class AFDLoss(DistillationLossSpec):
    """Attention-based feature distillation (Ji et al. 2021), which learns the pairs of layers to compare.

    Its trainable layers are not part of the student. The ``AttentionModel`` of each model names the layers.
    """

    has_weights: ClassVar[bool] = True
    model_name_pair: tuple[str, str] = ("Student", "Teacher")
    """Pair [learner, teacher]."""
    student_keys: tuple[Literal["bilinear_key"], Literal["value"]] = ("bilinear_key", "value")
    """Accepted for compatibility with PaddleClas; has no effect."""
    teacher_keys: tuple[Literal["query"], Literal["value"]] = ("query", "value")
    """Accepted for compatibility with PaddleClas; has no effect."""
    s_shapes: tuple[LayerShape, ...] = Field(min_length=1)
    """[channels, height, width] of each layer of the learner."""
    t_shapes: tuple[LayerShape, ...] = Field(min_length=1)
    """[channels, height, width] of each layer of the teacher."""
    qk_dim: Count = 128
    """Length of queries and keys, as in both models."""
    name: str | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of both models."""
        return self.model_name_pair

    @property
    def learners(self) -> tuple[str, ...]:
        """Name of the learner."""
        return self.model_name_pair[:1]

    def attention_layers(self, arch: DistillationModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the layers of the learner and of the teacher.

        Raises:
            ValueError: A model names no layers, or they do not match the shapes.
        """
        layers = []
        for name, shapes in zip(self.model_name_pair, (self.s_shapes, self.t_shapes), strict=True):
            attention = arch.members[name].attention
            if attention is None:
                raise ValueError(f"{name} does not name its layers; expected an AttentionModel")
            if len(attention.keys) != len(shapes):
                raise ValueError(f"expected {len(attention.keys)} shapes for {name}, got {len(shapes)}")
            if attention.qk_dim != self.qk_dim:
                raise ValueError(f"qk_dim is {self.qk_dim}, but that of {name} is {attention.qk_dim}")
            layers.append(attention.keys)
        return layers[0], layers[1]

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:
        """See `DistillationLossSpec.layers`."""
        for name, keys in zip(self.model_name_pair, self.attention_layers(arch), strict=True):
            yield from ((name, key) for key in keys)
