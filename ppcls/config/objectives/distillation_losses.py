"""Losses and metrics of several models, for ``Arch.name: DistillationModel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_core import InitErrorDetails

from ppcls.config.base.fields import Decay, Fraction, NonNegative, Number, Positive, Section, problem
from ppcls.config.objectives.distillation import STUDENT, DistillationModel
from ppcls.config.objectives.multi_label import MultiLabelLoss
from ppcls.config.sections.objective import CELoss, Labels, Loss, LossSpec, Metric, MetricSpec, TopkAcc


class DistillationLossSpec(LossSpec):
    """A loss of some of ``Arch.models``."""

    multi_model: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models that the loss uses."""
        raise NotImplementedError(f"{self.kind} does not name its models")

    @property
    def learners(self) -> tuple[str, ...]:
        """Names of the models that receive gradients."""
        return self.names

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """Yields the model and name of each layer that the loss needs: ``("Student", "blocks[2]")``."""
        yield from ()


class PerModelLoss(DistillationLossSpec):
    """A loss of each of some models."""

    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; these losses always use the logits."""
    model_names: tuple[str, ...] = Field(min_length=1)
    """Models whose losses are added."""

    @property
    def names(self) -> tuple[str, ...]:
        """``model_names``."""
        return self.model_names


class ModelPairLoss(DistillationLossSpec):
    """A loss of pairs of models.

    Attributes:
        mutual: Whether both models of a pair learn.
    """

    mutual: ClassVar[bool] = False
    model_name_pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    """Pairs [learner, teacher], whose losses are added."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models of all pairs."""
        return tuple(name for pair in self.model_name_pairs for name in pair)

    @property
    def learners(self) -> tuple[str, ...]:
        """First model of each pair, or both if the loss is mutual."""
        return self.names if self.mutual else tuple(one for one, _ in self.model_name_pairs)


class LogitPairLoss(ModelPairLoss):
    """A loss of pairs of logits."""

    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; these losses always use the logits."""


class DistillationGTCELoss(PerModelLoss):
    """Cross-entropy of models with the labels, as ``CELoss``."""

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None
    """Label smoothing."""

    @property
    def loss(self) -> CELoss:
        """Loss of each model."""
        return CELoss(epsilon=self.epsilon)


class DistillationMultiLabelLoss(PerModelLoss, MultiLabelLoss):
    """``MultiLabelLoss`` of models."""

    @property
    def loss(self) -> MultiLabelLoss:
        """Loss of each model."""
        return MultiLabelLoss(
            epsilon=self.epsilon,
            size_sum=self.size_sum,
            weight_ratio=self.weight_ratio,
            class_weight=self.class_weight,
            class_weight_beta=self.class_weight_beta,
        )


class DistillationCELoss(LogitPairLoss):
    """Cross-entropy with the teacher's softmax."""

    epsilon: Decay | None = None
    """Smoothing of the teacher's softmax."""


class DistillationKLDivLoss(LogitPairLoss):
    """Kullback-Leibler divergence from the teacher's softmax, at a temperature (Hinton et al. 2015)."""

    temperature: Positive = 4.0
    """Divisor of the logits; higher is softer."""


class DistillationDMLLoss(LogitPairLoss):
    """Divergence in both directions. Both models learn unless one is frozen (Zhang et al. 2018)."""

    mutual: ClassVar[bool] = True
    act: Literal["softmax", "sigmoid"] = "softmax"
    """Activation of the logits."""
    weight_ratio: bool = False
    """Weight labels as MultiLabelLoss does."""
    sum_across_class_dim: bool = False
    """Multiply by the number of classes."""


class DistillationDKDLoss(LogitPairLoss):
    """Decoupled divergence: that of the label's class, and that among all others (Zhao et al. 2022)."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    """Divisor of the logits; higher is softer."""
    alpha: Number = 1.0
    """Weight of the label's class against the others."""
    beta: Number = 1.0
    """Weight of the other classes."""
    use_target_as_gt: bool = False
    """Use the teacher's best class as label. The name is PaddleClas's."""


class DistillationWSLLoss(LogitPairLoss):
    """Weighted soft labels (Zhou et al. 2021): the weight of an image grows with the learner's error."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 2.0
    """Divisor of the logits; higher is softer."""
    use_target_as_gt: bool = False
    """Use the teacher's best class as label. The name is PaddleClas's."""


class DistillationSKDLoss(LogitPairLoss):
    """Spherical distillation (Guo et al. 2020) with logits of equal length, plus the loss of the label."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    """Divisor of the logits; higher is softer."""
    multiplier: Positive = 2.0
    """Standard deviation of each image's logits."""
    alpha: Fraction = 0.9
    """Weight of the teacher's softmax; the label has the rest."""
    use_target_as_gt: bool = False
    """Use the teacher's best class as label. The name is PaddleClas's."""


class DistillationDISTLoss(LogitPairLoss):
    """Correlation of both models' softmax, per image and per class (Huang et al. 2022)."""

    beta: NonNegative = 1.0
    """Weight of the correlation over the classes of an image."""
    gamma: NonNegative = 1.0
    """Weight of the correlation over the images of a class."""


class DistillationTopkAcc(TopkAcc):
    """``TopkAcc`` of one of the models. In evaluation this must be the student."""

    multi_model: ClassVar[bool] = True
    model_key: str
    """Name of the model."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names as in `TopkAcc`, with the model's name unless it is the student."""
        plain = super().names
        return plain if self.model_key == STUDENT else tuple(f"{self.model_key}_{name}" for name in plain)


def distillation_problems(arch: Section, loss: Loss, metric: Metric) -> Iterator[InitErrorDetails]:
    """Yields conflicts between the model and the losses and metrics of several models."""
    models = arch if isinstance(arch, DistillationModel) else None
    specs: list[tuple[tuple[str | int, ...], LossSpec | MetricSpec]] = [
        ((section, split, position, spec.kind), spec)
        for section, parts in (("Loss", loss), ("Metric", metric))
        for split in ("Train", "Eval")
        for position, spec in enumerate(getattr(parts, split))
    ]
    for where, spec in specs:
        if not isinstance(spec, (DistillationLossSpec, DistillationTopkAcc)):
            continue
        names = spec.names if isinstance(spec, DistillationLossSpec) else (spec.model_key,)
        if models is None:
            yield problem("needs several models; expected Arch.name: DistillationModel", *where)
        elif missing := [name for name in names if name not in models.members]:
            known = ", ".join(models.members)
            yield problem(f"Arch.models has no model {missing[0]!r}; expected {known}", *where)
        elif isinstance(spec, DistillationLossSpec) and (text := _layer_problem(spec, models)):
            yield problem(text, *where)
        elif where[1] == "Eval" and (isinstance(spec, ModelPairLoss) or set(names) != {models.student}):
            text = f"only {models.student!r} is evaluated; expected a loss or metric of this model alone"
            yield problem(text, *where)
    if models is None:
        return
    taught = {name for spec in loss.Train if isinstance(spec, DistillationLossSpec) for name in spec.learners}
    if any(not isinstance(spec, DistillationLossSpec) for spec in loss.Train):
        taught.add(models.student)
    for name in (models.student, *models.peers):
        if name not in taught:
            text = f"{name!r} is trainable but receives no gradient; add a loss for it, or freeze it"
            yield problem(text, "Loss", "Train")


def _layer_problem(spec: DistillationLossSpec, arch: DistillationModel) -> str | None:
    """Returns what is wrong with the layers that a loss needs; None if they are valid."""
    try:
        needed = list(spec.layers(arch))
    except ValueError as error:
        return str(error)
    for name, layer in needed:
        patterns = arch.members[name].return_patterns
        if layer not in patterns:
            known = ", ".join(patterns) or "nothing"
            return f"needs layer {layer!r} of {name}, but its return_patterns has {known}; add it there"
    return None
