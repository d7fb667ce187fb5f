"""Losses of what layers of two models give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Decay, Positive, problem
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.distillation_losses import DistillationLossSpec, ModelPairLoss

_LOGITS = ("logits", "output")
Shape = tuple[Count, Count, Count]  # [channels, height, width]


class DistillationDistanceLoss(ModelPairLoss):
    """Mean distance of what a layer gives in both models, or of their logits."""

    mutual: ClassVar[bool] = True
    mode: Literal["l1", "l2", "smooth_l1"] = Field("l2", description="absolute, squared, or Huber's at 1")
    key: str | None = Field(None, description="the layer, as in return_patterns; by default the logits")
    act: Literal["sigmoid", "softmax"] | None = Field(
        None, description="done to both first; softmax goes over the last axis"
    )

    @property
    def layer(self) -> str | None:
        """The layer; None for the logits."""
        return None if self.key in _LOGITS else self.key

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `DistillationLossSpec.layers`."""
        if self.layer is not None:
            yield from ((name, self.layer) for name in self.names)


class DistillationRKDLoss(ModelPairLoss):
    """Relations among a batch's images: their distances, and the angles of three (Park et al. 2019)."""

    model_name_pairs: tuple[tuple[str, str], ...] = Field(
        (("Student", "Teacher"),),
        min_length=1,
        description="each [who learns, from whom]; their losses are added up",
    )
    student_keepkeys: tuple[str, ...] = Field(min_length=1, description="layers of the first model")
    teacher_keepkeys: tuple[str, ...] = Field(
        min_length=1, description="layers of the second, one for each of the first's"
    )
    target_size: Count | None = Field(
        None, description="pool what the layers give to so many rows and columns; by default it stays"
    )
    avgpool: Literal[False] = Field(False, description="read for PaddleClas; target_size pools")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if len(self.student_keepkeys) != len(self.teacher_keepkeys):
            text = f"expected {len(self.student_keepkeys)} layers, as student_keepkeys, got "
            text += str(len(self.teacher_keepkeys))
            raise ValidationError.from_exception_data("keys", [problem(text, "teacher_keepkeys")])
        return self

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `DistillationLossSpec.layers`."""
        for one, other in self.model_name_pairs:
            yield from ((one, layer) for layer in self.student_keepkeys)
            yield from ((other, layer) for layer in self.teacher_keepkeys)


class DistillationPairLoss(ModelPairLoss):
    """A loss with layers of its own, which learn beside the models and are no part of the student.

    ``MGDLoss``: the teacher's features, generated from the student's with some channels left out (Yang et al.
    2022, "Masked Generative Distillation"). ``PEFDLoss``: one minus the cosine between them and the mean of
    several projections of the student's (Chen et al. 2022, "Projector Ensemble").
    """

    base_loss_name: Literal["MGDLoss", "PEFDLoss"]
    name: str | None = Field(None, description="read for PaddleClas")
    s_key: str | None = Field(None, description="layer of the first model; or s_keys, a list of one")
    t_key: str | None = Field(None, description="layer of the second; or t_keys")
    s_keys: tuple[str] | None = None
    t_keys: tuple[str] | None = None
    student_channels: Count | None = Field(
        None, description="channels that the first layer gives; or student_channel"
    )
    teacher_channels: Count | None = Field(None, description="of the second; or teacher_channel")
    student_channel: Count | None = None
    teacher_channel: Count | None = None
    alpha_mgd: Positive = Field(1.756, description="MGDLoss: a factor")
    lambda_mgd: Decay = Field(0.15, description="MGDLoss: share of channels left out")
    num_projectors: Count = Field(3, description="PEFDLoss: how many projections")

    @property
    def has_weights(self) -> bool:
        """It has."""
        return True

    @property
    def keys(self) -> tuple[str, str]:
        """The two layers."""
        one, other = self.s_key or (self.s_keys or ("",))[0], self.t_key or (self.t_keys or ("",))[0]
        return one, other

    @property
    def channels(self) -> tuple[int, int]:
        """What they give."""
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
    """Attention-based feature distillation (Ji et al. 2021): learns which layer is to learn from which.

    Its layers learn beside the models and are no part of the student. Which layers of the models it is of,
    their ``AttentionModel`` says.
    """

    model_name_pair: tuple[str, str] = Field(("Student", "Teacher"), description="who learns, and from whom")
    student_keys: tuple[Literal["bilinear_key"], Literal["value"]] = ("bilinear_key", "value")
    teacher_keys: tuple[Literal["query"], Literal["value"]] = ("query", "value")
    s_shapes: tuple[Shape, ...] = Field(
        min_length=1, description="[channels, height, width] of each of the first model's layers"
    )
    t_shapes: tuple[Shape, ...] = Field(min_length=1, description="the same of the second model's")
    qk_dim: Count = Field(128, description="numbers of a query or key, as in both models")
    name: str | None = Field(None, description="read for PaddleClas")

    @property
    def has_weights(self) -> bool:
        """It has."""
        return True

    @property
    def names(self) -> tuple[str, ...]:
        """Both."""
        return self.model_name_pair

    @property
    def learners(self) -> tuple[str, ...]:
        """The first."""
        return self.model_name_pair[:1]

    def attended(self, arch: DistillationModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the layers of the first and of the second model.

        Raises:
            ValueError: A model does not say which, or says other ones than the shapes are of.
        """
        found = []
        for name, shapes in zip(self.model_name_pair, (self.s_shapes, self.t_shapes), strict=True):
            attention = arch.members[name].attention
            if attention is None:
                raise ValueError(f"{name} does not say which of its layers; expected an AttentionModel")
            if len(attention.keys) != len(shapes):
                raise ValueError(f"expected {len(attention.keys)} shapes for {name}, got {len(shapes)}")
            if attention.qk_dim != self.qk_dim:
                raise ValueError(f"qk_dim is {self.qk_dim}, and that of {name} is {attention.qk_dim}")
            found.append(attention.keys)
        return found[0], found[1]

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:
        """See `DistillationLossSpec.layers`."""
        for name, keys in zip(self.model_name_pair, self.attended(arch), strict=True):
            yield from ((name, key) for key in keys)
