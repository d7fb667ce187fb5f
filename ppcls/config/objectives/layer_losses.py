"""Distillation losses that compare the layer outputs of two models."""

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
    """Mean distance between the outputs of a layer in both models, or between the logits of both models."""

    mutual: ClassVar[bool] = True
    mode: Literal["l1", "l2", "smooth_l1"] = "l2"
    """Distance: absolute (`l1`), squared (`l2`), or Huber loss with a threshold of 1 (`smooth_l1`)."""
    key: str | None = None
    """Name of the layer, in the form of `return_patterns`; default: the logits."""
    act: Literal["sigmoid", "softmax"] | None = None
    """Activation to apply to both outputs: `sigmoid`, or `softmax` over the last axis. Default: none."""

    @property
    def layer(self) -> str | None:
        """Name of the layer to compare; None for the logits."""
        return None if self.key in _LOGITS else self.key

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `DistillationLossSpec.layers`."""
        if self.layer is not None:
            yield from ((name, self.layer) for name in self.names)


class DistillationRKDLoss(ModelPairLoss):
    """Relational knowledge distillation (Park et al. 2019): compares distances and angles between images."""

    model_name_pairs: tuple[tuple[str, str], ...] = Field((("Student", "Teacher"),), min_length=1)
    """Pairs [learner, teacher] of model names. The losses of all pairs are summed."""
    student_keepkeys: tuple[str, ...] = Field(min_length=1)
    """Names of the layers of the learner."""
    teacher_keepkeys: tuple[str, ...] = Field(min_length=1)
    """Names of the layers of the teacher, one for each layer of the learner."""
    target_size: Count | None = None
    """Number of rows and columns to which layer outputs are pooled; default: no pooling."""
    avgpool: Literal[False] = False
    """Accepted for compatibility with PaddleClas; only False is supported. Use `target_size` for pooling."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        student_layers = len(self.student_keepkeys)
        teacher_layers = len(self.teacher_keepkeys)
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
    """A loss that compares one layer of each model, with additional trainable layers.

    The trainable layers are not part of the student. ``MGDLoss`` removes some channels of the student's
    features and predicts the teacher's features from the remaining channels (Yang et al. 2022, "Masked
    Generative Distillation"). ``PEFDLoss`` is one minus the cosine between the teacher's features and the
    mean of several projections of the student's features (Chen et al. 2022, "Projector Ensemble").
    """

    has_weights: ClassVar[bool] = True
    base_loss_name: Literal["MGDLoss", "PEFDLoss"]
    """Loss that compares the layers."""
    name: str | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""
    s_key: str | None = None
    """Name of the layer of the learner. Set either `s_key` or `s_keys`."""
    t_key: str | None = None
    """Name of the layer of the teacher. Set either `t_key` or `t_keys`."""
    s_keys: tuple[str] | None = None
    """List with the name of the layer of the learner. Set either `s_key` or `s_keys`."""
    t_keys: tuple[str] | None = None
    """List with the name of the layer of the teacher. Set either `t_key` or `t_keys`."""
    student_channels: Count | None = None
    """Number of channels of the learner's layer. Set either `student_channels` or `student_channel`."""
    teacher_channels: Count | None = None
    """Number of channels of the teacher's layer. Set either `teacher_channels` or `teacher_channel`."""
    student_channel: Count | None = None
    """Alias of `student_channels`."""
    teacher_channel: Count | None = None
    """Alias of `teacher_channels`."""
    alpha_mgd: Positive = 1.756
    """Factor of MGDLoss."""
    lambda_mgd: Decay = 0.15
    """Share of the channels that MGDLoss removes, 0 to 1."""
    num_projectors: Count = 3
    """Number of projections of PEFDLoss."""

    @property
    def keys(self) -> tuple[str, str]:
        """Names of the layers of the learner and of the teacher."""
        one = self.s_key or (self.s_keys or ("",))[0]
        other = self.t_key or (self.t_keys or ("",))[0]
        return one, other

    @property
    def channels(self) -> tuple[int, int]:
        """Numbers of channels of the layers of the learner and of the teacher."""
        one = self.student_channels or self.student_channel
        other = self.teacher_channels or self.teacher_channel
        assert one is not None  # by _check_both
        assert other is not None
        return one, other

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        problems = [
            problem(f"expected either {name} or {other}, and not both", name)
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
    """Attention-based feature distillation (Ji et al. 2021), which learns which pairs of layers to compare.

    The trainable layers of the loss are not part of the student. The key ``attention`` of each model, or its
    ``AttentionModel``, lists the layers.
    """

    has_weights: ClassVar[bool] = True
    model_name_pair: tuple[str, str] = ("Student", "Teacher")
    """Pair [learner, teacher] of model names."""
    student_keys: tuple[Literal["bilinear_key"], Literal["value"]] = ("bilinear_key", "value")
    """Accepted for compatibility with PaddleClas; has no effect."""
    teacher_keys: tuple[Literal["query"], Literal["value"]] = ("query", "value")
    """Accepted for compatibility with PaddleClas; has no effect."""
    s_shapes: tuple[LayerShape, ...] = Field(min_length=1)
    """Output shape [channels, height, width] of each layer of the learner."""
    t_shapes: tuple[LayerShape, ...] = Field(min_length=1)
    """Output shape [channels, height, width] of each layer of the teacher."""
    qk_dim: Count = 128
    """Length of the query and key vectors of the attention. Must equal `qk_dim` of both models."""
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
        """Returns the names of the layers of the learner and of the teacher.

        Raises:
            ValueError: A model has no ``attention``, or its values do not match this loss.
        """
        layers = []
        for name, shapes in zip(self.model_name_pair, (self.s_shapes, self.t_shapes), strict=True):
            attention = arch.members[name].attention
            if attention is None:
                raise ValueError(
                    f"the model {name} has no layers for this loss; list them in the key 'attention' of this "
                    "model (Arch.models)"
                )
            if len(attention.keys) != len(shapes):
                raise ValueError(f"expected {len(attention.keys)} shapes for {name}, got {len(shapes)}")
            if attention.qk_dim != self.qk_dim:
                raise ValueError(
                    f"qk_dim is {self.qk_dim}, but attention.qk_dim of {name} is {attention.qk_dim}; "
                    "set both to the same value"
                )
            layers.append(attention.keys)
        return layers[0], layers[1]

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:
        """See `DistillationLossSpec.layers`."""
        for name, keys in zip(self.model_name_pair, self.attention_layers(arch), strict=True):
            yield from ((name, key) for key in keys)
