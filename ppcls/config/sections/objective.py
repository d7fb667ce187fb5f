"""What is trained for and what is measured: the items of ``Loss`` and ``Metric`` in YAML."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from ppcls.config.base.fields import Count, Decay, Number, Spec

Labels = Literal["one", "several", "any"]  # that an image may have


class LossSpec(Spec):
    """A loss.

    Attributes:
        weight: Factor of this loss in the sum of losses.
    """

    labels: ClassVar[Labels] = "any"
    of_models: ClassVar[bool] = False  # whether it is of several models, of `Arch.name: DistillationModel`
    whole: ClassVar[bool] = False  # see MetricSpec
    of_identities: ClassVar[bool] = False  # whether it takes labels that the model has no class for
    weight: Number = 1.0


class MetricSpec(Spec):
    """A metric."""

    labels: ClassVar[Labels] = "one"
    of_models: ClassVar[bool] = False
    lower_is_better: ClassVar[bool] = False
    whole: ClassVar[bool] = False  # whether it is of all samples at once, so nothing to tell while training

    @property
    def names(self) -> tuple[str, ...]:
        """Of its numbers."""
        return (self.kind,)


class CELoss(LossSpec):
    """Mean cross-entropy of the softmax.

    Attributes:
        epsilon: Label smoothing (Szegedy et al. 2016, section 7): the share of the uniform distribution in
            the target.
    """

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None


class BCELoss(LossSpec):
    """Mean binary cross-entropy of each class's sigmoid; a class is there or is not (Wightman et al. 2021).

    Attributes:
        epsilon: Label smoothing.
        target_threshold: A class whose share of the smoothed label is above it counts as there: of mixed
            images both classes may.
    """

    epsilon: Decay | None = None
    target_threshold: Decay = 0.2


class TopkAcc(MetricSpec):
    """Share of samples whose label is among the ``k`` highest logits, for each ``k`` of ``topk``."""

    topk: tuple[Count, ...] = (1, 5)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as ``("top1", "top5")``."""
        return tuple(f"top{k}" for k in self.topk)

    @field_validator("topk", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("topk")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError(f"topk must be one or more distinct integers, got {list(value)}")
        return value
