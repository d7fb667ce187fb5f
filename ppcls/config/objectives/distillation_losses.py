"""Losses and metrics of several models, of ``Arch.name: DistillationModel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_core import InitErrorDetails

from ppcls.config.base.fields import Decay, Fraction, NonNegative, Number, Positive, Section, problem
from ppcls.config.objectives.distillation import STUDENT, DistillationModel
from ppcls.config.objectives.multi_label import MultiLabelLoss
from ppcls.config.sections.objective import CELoss, Labels, Loss, LossSpec, Metric, TopkAcc


class DistillationLossSpec(LossSpec):
    """A loss of some of ``Arch.models``."""

    multi_model: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models that it is about."""
        raise NotImplementedError(f"{self.kind} names no models")

    @property
    def learners(self) -> tuple[str, ...]:
        """Of the models that learn by it."""
        return self.names

    def layers(self, arch: DistillationModel) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """Yields whose layers' outputs it is of, and which: ``("Student", "blocks[2]")``."""
        yield from ()

    @property
    def has_weights(self) -> bool:
        """Whether it has layers of its own, that learn."""
        return False


class PerModelLoss(DistillationLossSpec):
    """A loss of each of some models."""

    key: Literal["logits", "output"] | None = Field(
        None, description="read for PaddleClas: losses are of the logits"
    )
    model_names: tuple[str, ...] = Field(min_length=1, description="whose loss is added up")

    @property
    def names(self) -> tuple[str, ...]:
        """``model_names``."""
        return self.model_names


class ModelPairLoss(DistillationLossSpec):
    """A loss of pairs of models."""

    mutual: ClassVar[bool] = False  # whether both of a pair learn
    model_name_pairs: tuple[tuple[str, str], ...] = Field(
        min_length=1, description="each [who learns, from whom]; their losses are added up"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Those of all pairs."""
        return tuple(name for pair in self.model_name_pairs for name in pair)

    @property
    def learners(self) -> tuple[str, ...]:
        """The first of each pair, unless it is said that both learn."""
        return self.names if self.mutual else tuple(one for one, _ in self.model_name_pairs)


class LogitPairLoss(ModelPairLoss):
    """A loss of pairs of logits."""

    key: Literal["logits", "output"] | None = Field(
        None, description="read for PaddleClas: losses are of the logits"
    )


class DistillationGTCELoss(PerModelLoss):
    """Cross-entropy of models with the labels, as ``CELoss``."""

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = Field(None, description="label smoothing")

    @property
    def loss(self) -> CELoss:
        """What it is of each model."""
        return CELoss(epsilon=self.epsilon)


class DistillationMultiLabelLoss(PerModelLoss, MultiLabelLoss):
    """``MultiLabelLoss`` of models."""

    @property
    def loss(self) -> MultiLabelLoss:
        """What it is of each model."""
        return MultiLabelLoss(epsilon=self.epsilon, size_sum=self.size_sum, weight_ratio=self.weight_ratio)


class DistillationCELoss(LogitPairLoss):
    """Cross-entropy with the other model's softmax."""

    epsilon: Decay | None = Field(None, description="smoothing of that softmax")


class DistillationKLDivLoss(LogitPairLoss):
    """Divergence from the other model's softmax, at a temperature (Hinton et al. 2015)."""

    temperature: Positive = Field(4.0, description="logits are divided by it; higher is softer")


class DistillationDMLLoss(LogitPairLoss):
    """Divergence in both directions: both learn, if neither is frozen (Zhang et al. 2018)."""

    mutual: ClassVar[bool] = True
    act: Literal["softmax", "sigmoid"] = "softmax"
    weight_ratio: bool = Field(False, description="weigh labels as MultiLabelLoss does")
    sum_across_class_dim: bool = Field(False, description="multiply by the number of classes")


class DistillationDKDLoss(LogitPairLoss):
    """Divergence, that of the label's class and that among the others apart (Zhao et al. 2022)."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    alpha: Number = Field(1.0, description="weight of the label's class against the others")
    beta: Number = Field(1.0, description="weight of the others among each other")
    use_target_as_gt: bool = Field(
        False, description="take the other model's best class for the label (PaddleClas's own name)"
    )


class DistillationWSLLoss(LogitPairLoss):
    """Weighted soft labels (Zhou et al. 2021): an image counts the more, the worse the learner is at it."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 2.0
    use_target_as_gt: bool = Field(False, description="as that of DistillationDKDLoss")


class DistillationSKDLoss(LogitPairLoss):
    """Spherical distillation (Guo et al. 2020): of logits of one length, and the label's part beside it."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    multiplier: Positive = Field(2.0, description="standard deviation of each image's logits")
    alpha: Fraction = Field(0.9, description="share of the other model's softmax; the label has the rest")
    use_target_as_gt: bool = Field(False, description="as that of DistillationDKDLoss")


class DistillationDISTLoss(LogitPairLoss):
    """Correlation of both models' softmax, image by image and class by class (Huang et al. 2022)."""

    beta: NonNegative = Field(1.0, description="weight of the relations among classes of an image")
    gamma: NonNegative = Field(1.0, description="weight of the relations among images of a class")


class DistillationTopkAcc(TopkAcc):
    """``TopkAcc`` of one of the models; in evaluation that is the student."""

    multi_model: ClassVar[bool] = True
    model_key: str = Field(description="name of the model")

    @property
    def names(self) -> tuple[str, ...]:
        """As those of `TopkAcc`; of others than the student with their name."""
        plain = super().names
        return plain if self.model_key == STUDENT else tuple(f"{self.model_key}_{each}" for each in plain)


def distillation_problems(arch: Section, loss: Loss, metric: Metric) -> Iterator[InitErrorDetails]:
    """Yields what losses and metrics of several models don't find in the model."""
    found = arch if isinstance(arch, DistillationModel) else None
    places = [
        ((section, split, position, spec.kind), spec)
        for section, specs in (("Loss", loss), ("Metric", metric))
        for split in ("Train", "Eval")
        for position, spec in enumerate(getattr(specs, split))
    ]
    for where, spec in places:
        if not isinstance(spec, (DistillationLossSpec, DistillationTopkAcc)):
            continue
        names = spec.names if isinstance(spec, DistillationLossSpec) else (spec.model_key,)
        if found is None:
            yield problem("is of several models; expected Arch.name: DistillationModel", *where)
        elif missing := [name for name in names if name not in found.members]:
            known = ", ".join(found.members)
            yield problem(f"there is no model {missing[0]!r} in Arch.models; expected {known}", *where)
        elif unknown := _unknown_layers(spec, found):
            yield problem(unknown, *where)
        elif where[1] == "Eval" and (isinstance(spec, ModelPairLoss) or set(names) != {found.student}):
            yield problem(
                f"evaluation is of {found.student!r} alone; expected a loss or metric of it", *where
            )
    if found is None:
        return
    taught = {name for spec in loss.Train if isinstance(spec, DistillationLossSpec) for name in spec.learners}
    if any(not isinstance(each, DistillationLossSpec) for each in loss.Train):
        taught.add(found.student)
    for name in (found.student, *found.peers):
        if name not in taught:
            text = f"{name!r} learns, and no loss teaches it; name it in one as who learns, or freeze it"
            yield problem(text, "Loss", "Train")


def _unknown_layers(spec: LossSpec | DistillationTopkAcc, arch: DistillationModel) -> str | None:
    """Returns what is wrong with the layers that a loss is of; None if nothing is."""
    if not isinstance(spec, DistillationLossSpec):
        return None
    try:
        wanted = list(spec.layers(arch))
    except ValueError as error:
        return str(error)
    for name, layer in wanted:
        kept = arch.members[name].return_patterns
        if layer not in kept:
            known = ", ".join(kept) or "nothing"
            return f"is of {name}'s {layer!r}, and return_patterns of that model has {known}; add it there"
    return None
