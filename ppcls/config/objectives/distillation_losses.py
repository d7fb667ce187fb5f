"""Losses for several models, with ``Arch.name: DistillationModel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_core import InitErrorDetails

from ppcls.config.base.fields import Decay, Fraction, NonNegative, Number, Positive, Section, problem
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.multi_label import MultiLabelLoss
from ppcls.config.sections.objective import CELoss, Labels, Loss, LossSpec


class DistillationLossSpec(LossSpec):
    """Base class of losses that use models of ``Arch.models``."""

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
        """Yields model and layer of each output that the loss uses, such as ``("Student", "blocks[2]")``."""
        yield from ()


class PerModelLoss(DistillationLossSpec):
    """Base class of losses that are computed separately for each of several models and then summed."""

    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect. The loss always uses the logits."""
    model_names: tuple[str, ...] = Field(min_length=1)
    """Names of the models whose losses are summed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models that the loss uses: ``model_names``."""
        return self.model_names


class ModelPairLoss(DistillationLossSpec):
    """Base class of losses that compare the models of a pair.

    Attributes:
        mutual: Whether both models of a pair receive gradients. If False, only the first does.
    """

    mutual: ClassVar[bool] = False
    model_name_pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    """Pairs [learner, teacher] of model names. The losses of all pairs are summed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models of all pairs."""
        return tuple(name for pair in self.model_name_pairs for name in pair)

    @property
    def learners(self) -> tuple[str, ...]:
        """Names of the models that receive gradients: the first of each pair, or both if `mutual`."""
        return self.names if self.mutual else tuple(one for one, _ in self.model_name_pairs)


class LogitPairLoss(ModelPairLoss):
    """Base class of losses that compare the logits of a pair of models."""

    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect. The loss always uses the logits."""


class DistillationGTCELoss(PerModelLoss):
    """``CELoss`` of each model: its cross-entropy with the labels."""

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target; default: 0."""

    @property
    def loss(self) -> CELoss:
        """Loss of each model."""
        return CELoss(epsilon=self.epsilon)


class DistillationMultiLabelLoss(PerModelLoss, MultiLabelLoss):
    """``MultiLabelLoss`` of each model."""

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
    """Cross-entropy of the learner's and the teacher's softmax probabilities."""

    epsilon: Decay | None = None
    """Smoothing: share of the uniform distribution in the teacher's probabilities; default: 0."""


class DistillationKLDivLoss(LogitPairLoss):
    """Kullback-Leibler divergence of the softmax probabilities at a temperature (Hinton et al. 2015)."""

    temperature: Positive = 4.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""


class DistillationDMLLoss(LogitPairLoss):
    """Deep mutual learning (Zhang et al. 2018): Kullback-Leibler divergences in both directions.

    Both models learn, except frozen ones.
    """

    mutual: ClassVar[bool] = True
    act: Literal["softmax", "sigmoid"] = "softmax"
    """Activation of the logits."""
    weight_ratio: bool = False
    """Weight the labels as `weight_ratio` of MultiLabelLoss does."""
    sum_across_class_dim: bool = False
    """Multiply the loss by the number of classes."""


class DistillationDKDLoss(LogitPairLoss):
    """Decoupled knowledge distillation (Zhao et al. 2022).

    The loss is the weighted sum of two divergences between the predictions of the models. The first compares
    two probabilities: of the label's class, and of all other classes together. The second compares the
    probabilities among the other classes.
    """

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""
    alpha: Number = 1.0
    """Weight of the first divergence: the label's class against all other classes."""
    beta: Number = 1.0
    """Weight of the second divergence: the probabilities among the other classes."""
    use_target_as_gt: bool = False
    """Use the class that the teacher predicts instead of the label."""


class DistillationWSLLoss(LogitPairLoss):
    """Weighted soft labels (Zhou et al. 2021): the weight of an image increases with the learner's error."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 2.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""
    use_target_as_gt: bool = False
    """Use the class that the teacher predicts instead of the label."""


class DistillationSKDLoss(LogitPairLoss):
    """Spherical knowledge distillation of normalized logits (Guo et al. 2020), plus a loss with the label."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""
    multiplier: Positive = 2.0
    """Standard deviation to which the logits of each image are scaled."""
    alpha: Fraction = 0.9
    """Weight of the loss with the teacher's probabilities, 0 to 1. The weight of the loss with the label is
    1 - alpha."""
    use_target_as_gt: bool = False
    """Use the class that the teacher predicts instead of the label."""


class DistillationDISTLoss(LogitPairLoss):
    """Correlation between the softmax probabilities of both models (DIST, Huang et al. 2022)."""

    beta: NonNegative = 1.0
    """Weight of the correlation over the classes, computed for each image."""
    gamma: NonNegative = 1.0
    """Weight of the correlation over the images of a batch, computed for each class."""


def distillation_problems(arch: Section, loss: Loss) -> Iterator[InitErrorDetails]:
    """Yields conflicts of the model with losses that use several models."""
    models = arch if isinstance(arch, DistillationModel) else None
    specs: list[tuple[tuple[str | int, ...], LossSpec]] = [
        (("Loss", split, position, spec.kind), spec)
        for split in ("Train", "Eval")
        for position, spec in enumerate(getattr(loss, split))
    ]
    for where, spec in specs:
        if not isinstance(spec, DistillationLossSpec):
            continue
        names = spec.names
        if models is None:
            yield problem("needs several models; expected Arch.name: DistillationModel", *where)
        elif missing := [name for name in names if name not in models.members]:
            known = ", ".join(models.members)
            yield problem(f"Arch.models has no model {missing[0]!r}; expected {known}", *where)
        elif text := _layer_problem(spec, models):
            yield problem(text, *where)
        elif where[1] == "Eval" and (isinstance(spec, ModelPairLoss) or set(names) != {models.student}):
            text = f"only {models.student!r} is evaluated; expected a loss or metric of only this model"
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
    """Returns a description of the problem with the layers of a loss; None if they are valid."""
    try:
        needed = list(spec.layers(arch))
    except ValueError as error:
        return str(error)
    for name, layer in needed:
        patterns = arch.members[name].return_patterns
        if layer not in patterns:
            known = ", ".join(patterns) or "nothing"
            return (
                f"needs layer {layer!r} of {name}, but its return_patterns has {known}; add the layer to "
                "return_patterns"
            )
    return None
