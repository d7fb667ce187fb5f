"""Distillation losses that compare the layer outputs of two models, without trainable layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.base.facts import ModelFacts
from ppcls.config.base.fields import Count
from ppcls.config.base.problems import error_at
from ppcls.errors import counted
from ppcls.loss.base import ClassStatistics, Criterion
from ppcls.loss.distillation import ModelPairLoss
from ppcls.outputs import layer_output_name

if TYPE_CHECKING:
    from paddle import Tensor, nn

_LOGITS = ("logits", "output")
# A function of the outputs of a layer of the student and of a layer of another model.
LayerLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


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

    def layers(self, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
        """Yields the layer of each model; see `Loss.layers`."""
        if self.layer is not None:
            yield from ((name, self.layer) for name in self.names)

    def build(self, data: ClassStatistics) -> LayerLoss:
        """Returns a function of the outputs of both models; see `Loss.build`."""
        from ppcls.loss.functional.features import distance

        return partial(distance, mode=self.mode, act=self.act)

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the sum of the distances of all pairs; see `Loss.build_term`."""
        loss = self.build(data)
        keys = [
            [name if self.layer is None else layer_output_name(name, self.layer) for name in pair]
            for pair in self.model_name_pairs
        ]
        return lambda outputs, _: sum(loss(outputs[one], outputs[other]) for one, other in keys)


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
            expected = counted(student_layers, "layer")
            text = f"expected {expected}, as many as in student_keepkeys, got {teacher_layers}"
            raise error_at(text, "teacher_keepkeys")
        return self

    def layers(self, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
        """Yields the layers of each pair of models; see `Loss.layers`."""
        for one, other in self.model_name_pairs:
            yield from ((one, layer) for layer in self.student_keepkeys)
            yield from ((other, layer) for layer in self.teacher_keepkeys)

    def build(self, data: ClassStatistics) -> LayerLoss:
        """Returns a function of the outputs of both models; see `Loss.build`."""
        from ppcls.loss.functional.features import relational

        return partial(relational, side=self.target_size)

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the sum of the losses of all pairs of models and of layers; see `Loss.build_term`."""
        loss = self.build(data)
        keys = [
            (layer_output_name(one, student_layer), layer_output_name(other, teacher_layer))
            for one, other in self.model_name_pairs
            for student_layer, teacher_layer in zip(self.student_keepkeys, self.teacher_keepkeys, strict=True)
        ]
        return lambda outputs, _: sum(loss(outputs[one], outputs[other]) for one, other in keys)
