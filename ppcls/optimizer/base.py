"""The base classes of optimizers, and rules for parameters whose names match a pattern.

Decisions:
- Built-in optimizers and users' optimizers have the same base classes. An optimizer is one class in one file,
  whose ``build`` receives what all optimizers of its base class need.
- Weight decay that is part of the gradient and weight decay that is separate from it are two base classes,
  because Paddle's optimizers receive the first as a regularizer of each parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.choices import Tagged
from ppcls.config.base.component import Component
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Count, NonNegative, Positive
from ppcls.config.base.problems import error_at, expected, problem
from ppcls.config.base.section import Section
from ppcls.optimizer.schedules import Schedule
from ppcls.registry import OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from paddle.optimizer import Optimizer as PaddleOptimizer


def _read_patterns(value: Any) -> Any:
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, (list, tuple)) or not patterns:
        raise expected("a pattern such as 'blocks.*', or a list of them", value)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.strip() or pattern != pattern.strip():
            raise expected("a pattern such as 'blocks.*'", pattern)
    return patterns


Patterns = Annotated[tuple[str, ...], BeforeValidator(_read_patterns)]


class NameRule(Section):
    """Factors for parameters whose names match a pattern. If several rules match, all their factors apply."""

    pattern: Patterns
    """One pattern, or a list of patterns, such as `fc.*` or `*.bias`. A pattern must match the whole name of
    a parameter: `*` matches any text, `?` one character, `[01]` one of the characters in brackets. The
    pattern `classifier` matches the last layer of any model."""
    lr_mult: Positive = 1.0
    """Factor of the learning rate of these parameters."""
    decay_mult: NonNegative = 1.0
    """Factor of the weight decay of these parameters."""

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if not {"lr_mult", "decay_mult"} & self.model_fields_set:
            raise ValueError("expected lr_mult or decay_mult; without them the rule has no effect")
        return self


class L2(Section):
    """Coupled L2 regularization. It adds ``coeff * parameter`` to the gradient after clipping."""

    name: Literal["L2"]
    """Kind of regularization. Only `L2` is supported."""
    coeff: NonNegative
    """Weight decay: factor of the penalty `coeff / 2 * |parameter|^2` in the loss."""


class Optimizer(Component, registry=OPTIMIZERS):
    """Keys of all optimizers.

    Attributes:
        coupled: Whether the weight decay is part of the gradient.
    """

    coupled: ClassVar[bool]
    key_hints: ClassVar[Mapping[str, str]] = {
        "learning_rate": "set lr.learning_rate, a key of the schedule",
        "sam": "write sam_rho",
    }
    ignored: ClassVar[Mapping[str, str]] = {"clip_grad": "clip_norm or clip_value clips gradients"}
    lr: Annotated[Schedule, Tagged(SCHEDULES)]
    """Learning rate and its schedule."""
    no_weight_decay_name: str | None = None
    """Substrings separated by spaces, such as `pos_embed .bias`. A parameter whose name contains one of them
    has no weight decay. Default: no such parameters."""
    one_dim_param_no_weight_decay: bool = False
    """Apply no weight decay to one-dimensional parameters: biases, and weights of normalization layers."""
    clip_norm: Positive | None = None
    """Maximum of the L2 norm over all gradients. Larger gradients are scaled down to this norm. Default: no
    limit."""
    clip_value: Positive | None = None
    """Maximum absolute value of each gradient element. Elements are clipped to `[-clip_value, clip_value]`.
    Default: no limit."""
    sam_rho: Positive | None = None
    """Radius of sharpness-aware minimization (SAM, [Foret et al. 2021](https://arxiv.org/abs/2010.01412)),
    such as 0.05: the largest loss within this distance of the weights is minimized. Each batch then has two
    forward and backward passes, so updates take about twice as long. Default: one pass."""
    sam_first_epoch: Count = 1
    """First epoch whose batches have two passes; earlier epochs have one. SAM in the last 25 of 200 epochs
    was nearly as accurate as in all epochs for [Zhou et al. 2025](https://arxiv.org/abs/2410.10373)."""
    multi_precision: bool | None = None
    """Accepted for compatibility with PaddleClas; has no effect. `AMP.level: O2` always keeps float32 master
    weights."""
    freeze: Patterns | None = None
    """Name patterns of parameters that are not trained, such as `blocks.*`; default: none. If weight and bias
    of a BatchNorm layer are frozen, the layer uses its running statistics and does not update them."""
    train_only: Patterns | None = None
    """Name patterns of the parameters to train, such as `classifier`. All other parameters are frozen.
    Default: all parameters are trained."""
    by_name: tuple[NameRule, ...] = ()
    """Factors of the learning rate and the weight decay of parameters with certain names."""

    @property
    def freezes(self) -> bool:
        """Whether a part of the parameters is not trained."""
        return self.freeze is not None or self.train_only is not None

    @property
    def decay(self) -> float:
        """Weight decay; 0 for none."""
        raise NotImplementedError(f"{self.kind} does not define decay")

    @property
    def block_decay(self) -> float | None:
        """Ratio of the learning rates of a block and the next block; None for the same rate in all blocks."""
        return None

    def exempts(self, name: str, flat: bool) -> bool:
        """Returns whether a parameter has no weight decay.

        Args:
            name: Name of the parameter in the model.
            flat: Whether the parameter has one dimension.
        """
        if flat and self.one_dim_param_no_weight_decay:
            return True
        return any(part in name for part in (self.no_weight_decay_name or "").split())

    def build(self, **common: Any) -> PaddleOptimizer:
        """Returns Paddle's optimizer.

        Args:
            **common: ``learning_rate``, ``parameters`` and ``grad_clip``, the arguments of Paddle's
                optimizers, and the weight decay; see the base classes.
        """
        raise NotImplementedError(f"{self.kind} does not define build")

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:  # noqa: ARG002
        """Yields a conflict with the precision."""
        if facts.amp_level == "O2" and self.multi_precision is False:
            text = (
                "expected True, got False: AMP.level O2 always keeps float32 master weights; remove this key"
            )
            yield problem(text, "multi_precision")

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields a second pass that no update of the run has."""
        yield from super().warnings(facts, part)
        if self.sam_rho is None:
            return
        if facts.fits_head:
            yield "sam_rho has no effect, because LinearHead computes no gradients"
        elif self.sam_first_epoch > facts.epochs:
            yield (
                f"sam_rho has no effect, because sam_first_epoch ({self.sam_first_epoch}) is after the last "
                f"epoch (Global.epochs {facts.epochs})"
            )

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.sam_first_epoch != 1 and self.sam_rho is None:
            text = "it has no effect without sam_rho; set sam_rho, such as 0.05, or remove this key"
            raise error_at(text, "sam_first_epoch")
        for one, other in (("clip_norm", "clip_value"), ("freeze", "train_only")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"{one} and {other} exclude each other; set only one of them")
        for position, rule in enumerate(self.by_name):
            if rule.decay_mult != 1 and not self.decay:  # a config that was written by a run contains 1
                text = "the optimizer has no weight decay; remove this key, or set a weight decay"
                raise error_at(text, "by_name", position, "decay_mult")
        return self


class CoupledOptimizer(Optimizer, abstract=True):
    """An optimizer whose weight decay is part of the gradient.

    The arguments of ``build`` include ``weight_decay``, which Paddle's optimizers accept.
    """

    coupled: ClassVar[bool] = True
    regularizer: L2 | None = None
    """L2 regularization, such as `{name: L2, coeff: 1e-4}`; default: none."""
    weight_decay: NonNegative | None = None
    """Alias of `regularizer.coeff`; default: no weight decay. `regularizer` takes precedence."""

    @property
    def decay(self) -> float:
        """Weight decay from ``regularizer`` or ``weight_decay``; 0 for none."""
        return (self.weight_decay or 0.0) if self.regularizer is None else self.regularizer.coeff

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields a key that ``regularizer`` overrides."""
        yield from super().warnings(facts, part)
        if self.regularizer is not None and self.weight_decay is not None:
            yield "weight_decay has no effect; Optimizer.regularizer takes precedence"


class DecoupledOptimizer(Optimizer, abstract=True):
    """An optimizer whose weight decay is separate from the gradient.

    The arguments of ``build`` include ``decay``, the weight decay of each parameter by Paddle's tensor name.
    """

    coupled: ClassVar[bool] = False
    key_hints: ClassVar[Mapping[str, str]] = {
        **Optimizer.key_hints,
        "regularizer": "write weight_decay",
    }
    weight_decay: NonNegative = 0.01
    """Weight decay. Each update subtracts `learning rate * weight_decay * parameter`."""

    @property
    def decay(self) -> float:
        """Weight decay: ``weight_decay``."""
        return self.weight_decay
