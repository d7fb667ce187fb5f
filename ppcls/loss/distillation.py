"""Losses that compare the logits of several models, with ``Arch.name: DistillationModel``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from pydantic import Field
from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Decay, Fraction, NonNegative, Number, Positive
from ppcls.config.base.problems import problem
from ppcls.loss.base import ClassStatistics, Criterion, Labels, LogitsLoss, Loss
from ppcls.loss.classification import CELoss
from ppcls.loss.multi_label import MultiLabelLoss
from ppcls.outputs import get_logits

if TYPE_CHECKING:
    from paddle import Tensor, nn

    from ppcls.outputs import Outputs

# A function of the logits of a student, [B, C], of the logits of another model, [B, C], and of labels.
PairLoss: TypeAlias = "Callable[[Tensor, Tensor, Tensor], Tensor]"


class DistillationLoss(Loss, abstract=True):
    """Base class of losses that use models of ``Arch.models``."""

    multi_model: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models that the loss uses."""
        raise NotImplementedError(f"{self.kind} does not name its models")

    def learners(self, student: str) -> tuple[str, ...]:
        """Returns the names of the models that receive gradients; see `Loss.learners`."""
        return self.names

    def uses_only(self, student: str) -> bool:
        """Returns whether the loss uses only the student, and can therefore be computed in evaluation."""
        return set(self.names) == {student}

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts with the models, with their layers, and with evaluation."""
        yield from super().problems(facts, part)
        if not facts.models:
            yield problem("needs several models; expected Arch.name: DistillationModel")
        elif missing := [name for name in self.names if name not in facts.models]:
            known = ", ".join(facts.models)
            yield problem(f"Arch.models has no model {missing[0]!r}; expected {known}")
        elif text := self._layer_problem(facts):
            yield problem(text)
        elif part == "Eval" and not self.uses_only(facts.student):
            yield problem(f"only {facts.student!r} is evaluated; expected a loss of only this model")

    def _layer_problem(self, facts: RunFacts) -> str | None:
        """Returns the problem with the layers that the loss uses; None if they are valid."""
        try:
            needed = list(self.layers(facts.models))
        except ValueError as error:
            return str(error)
        for name, layer in needed:
            patterns = facts.models[name].layers
            if layer not in patterns:
                known = ", ".join(patterns) or "nothing"
                return (
                    f"needs layer {layer!r} of {name}, but its return_patterns has {known}; add the layer to "
                    "return_patterns"
                )
        return None


class PerModelLoss(DistillationLoss, abstract=True):
    """Base class of losses that are computed separately for each of several models and then summed."""

    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect. The loss always uses the logits."""
    model_names: tuple[str, ...] = Field(min_length=1)
    """Names of the models whose losses are summed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models that the loss uses: ``model_names``."""
        return self.model_names

    @property
    def terms(self) -> int:
        """Number of models whose losses are added."""
        return len(self.model_names)

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the sum of the losses of all models; see `Loss.build_term`."""
        loss = self.build(data)

        def term(outputs: Outputs, label: Tensor) -> Tensor:
            # In evaluation, the student is the only model, so the outputs are its logits.
            logits = (
                outputs[name] if isinstance(outputs, dict) and name in outputs else get_logits(outputs)
                for name in self.model_names
            )
            return sum(loss(output, label) for output in logits)

        return term


class ModelPairLoss(DistillationLoss, abstract=True):
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
    def terms(self) -> int:
        """Number of pairs whose losses are added."""
        return len(self.model_name_pairs)

    def learners(self, student: str) -> tuple[str, ...]:
        """Returns the first model of each pair, or both if `mutual`; see `Loss.learners`."""
        return self.names if self.mutual else tuple(one for one, _ in self.model_name_pairs)

    def uses_only(self, student: str) -> bool:
        """Returns False: a pair has two models, and only the student is evaluated."""
        return False


class LogitPairLoss(ModelPairLoss, abstract=True):
    """Base class of losses that compare the logits of a pair of models."""

    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect. The loss always uses the logits."""

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the sum of the losses of all pairs; see `Loss.build_term`."""
        loss: PairLoss = self.build(data)
        return lambda outputs, label: sum(
            loss(outputs[one], outputs[other], self.select_target(outputs[other], label))
            for one, other in self.model_name_pairs
        )

    def select_target(self, other: Tensor, label: Tensor) -> Tensor:
        """Returns the labels that the loss uses: those of the data set.

        Args:
            other: Logits of the teacher, [B, C].
            label: Labels of the data set.
        """
        return label


class TargetedPairLoss(LogitPairLoss, abstract=True):
    """Base class of losses of a pair of models that also use one label per image."""

    labels: ClassVar[Labels] = "one"
    use_target_as_gt: bool = False
    """Use the class that the teacher predicts instead of the label."""

    def select_target(self, other: Tensor, label: Tensor) -> Tensor:
        """Returns the classes that the teacher predicts, [B] int64, or the labels of the data set."""
        return other.detach().argmax(axis=-1) if self.use_target_as_gt else label


class DistillationGTCELoss(PerModelLoss):
    """``CELoss`` of each model: its cross-entropy with the labels."""

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target; default: 0."""

    @property
    def differs_for_mixed_labels(self) -> bool:
        """True without label smoothing."""
        return not self.epsilon

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the cross-entropy of one model; see `Loss.build`."""
        return CELoss(epsilon=self.epsilon).build(data)


class DistillationMultiLabelLoss(PerModelLoss, MultiLabelLoss):
    """``MultiLabelLoss`` of each model."""


class DistillationCELoss(LogitPairLoss):
    """Cross-entropy of the learner's and the teacher's softmax probabilities."""

    epsilon: Decay | None = None
    """Smoothing: share of the uniform distribution in the teacher's probabilities; default: 0."""

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of labels; see `Loss.build`."""
        from ppcls.loss.functional.distillation import soft_cross_entropy

        smoothing = self.epsilon or 0.0
        return lambda student, other, _: soft_cross_entropy(student, other, smoothing)


class DistillationKLDivLoss(LogitPairLoss):
    """Kullback-Leibler divergence of the softmax probabilities at a temperature (Hinton et al. 2015)."""

    temperature: Positive = 4.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of labels; see `Loss.build`."""
        from ppcls.loss.functional.distillation import softened_divergence

        return lambda student, other, _: softened_divergence(student, other, self.temperature)


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

    @property
    def needs_shares(self) -> bool:
        """Whether the loss needs the share of images that have each class."""
        return self.weight_ratio

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of labels; see `Loss.build`."""
        from ppcls.loss.functional.classification import label_weights, per_class
        from ppcls.loss.functional.distillation import mutual_divergence

        share = per_class(data.share) if self.weight_ratio else None

        def loss(student: Tensor, other: Tensor, label: Tensor) -> Tensor:
            weights = None if share is None else label_weights(label, share)
            return mutual_divergence(student, other, self.act, weights, self.sum_across_class_dim)

        return loss


class DistillationDKDLoss(TargetedPairLoss):
    """Decoupled knowledge distillation (Zhao et al. 2022).

    The loss is the weighted sum of two divergences between the predictions of the models. The first compares
    two probabilities: of the label's class, and of all other classes together. The second compares the
    probabilities among the other classes.
    """

    temperature: Positive = 1.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""
    alpha: Number = 1.0
    """Weight of the first divergence: the label's class against all other classes."""
    beta: Number = 1.0
    """Weight of the second divergence: the probabilities among the other classes."""

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of targets; see `Loss.build`."""
        from ppcls.loss.functional.distillation import decoupled_divergence

        return partial(decoupled_divergence, temperature=self.temperature, alpha=self.alpha, beta=self.beta)


class DistillationWSLLoss(TargetedPairLoss):
    """Weighted soft labels (Zhou et al. 2021): the weight of an image increases with the learner's error."""

    temperature: Positive = 2.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of targets; see `Loss.build`."""
        from ppcls.loss.functional.distillation import weighted_soft_labels

        return partial(weighted_soft_labels, temperature=self.temperature)


class DistillationSKDLoss(TargetedPairLoss):
    """Spherical knowledge distillation of normalized logits (Guo et al. 2020), plus a loss with the label."""

    temperature: Positive = 1.0
    """Temperature: divisor of the logits. Higher values give softer probabilities."""
    multiplier: Positive = 2.0
    """Standard deviation to which the logits of each image are scaled."""
    alpha: Fraction = 0.9
    """Weight of the loss with the teacher's probabilities, 0 to 1. The weight of the loss with the label is
    1 - alpha."""

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of targets; see `Loss.build`."""
        from ppcls.loss.functional.distillation import spherical

        return partial(spherical, temperature=self.temperature, length=self.multiplier, share=self.alpha)


class DistillationDISTLoss(LogitPairLoss):
    """Correlation between the softmax probabilities of both models (DIST, Huang et al. 2022)."""

    beta: NonNegative = 1.0
    """Weight of the correlation over the classes, computed for each image."""
    gamma: NonNegative = 1.0
    """Weight of the correlation over the images of a batch, computed for each class."""

    def build(self, data: ClassStatistics) -> PairLoss:
        """Returns a function of the logits of both models and of labels; see `Loss.build`."""
        from ppcls.loss.functional.distillation import correlation_distance

        return lambda student, other, _: correlation_distance(student, other, self.beta, self.gamma)
