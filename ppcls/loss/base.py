"""The base class of losses, and what they may know about the training data when they are built.

Decisions:
- A loss has two parts. ``build`` returns its formula, a function of tensors. ``build_term`` connects the
  formula to the outputs of the model. Most losses, and all losses of users, only need ``build``.
- ``build`` imports Paddle and the formulas inside the function, because a config is checked without Paddle.
- Statistics of the classes are NumPy arrays. A loss converts what it needs to tensors.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic_core import InitErrorDetails

from ppcls.config.base.component import Component
from ppcls.config.base.facts import ModelFacts, RunFacts
from ppcls.config.base.fields import Number
from ppcls.config.base.problems import problem
from ppcls.outputs import BACKBONE, FEATURES, LOGITS, get_logits
from ppcls.registry import LOSSES

if TYPE_CHECKING:
    from paddle import Tensor, nn

    from ppcls.outputs import Outputs

Labels = Literal["one", "several", "any"]  # number of labels that an image may have
# A function of the model's outputs and of labels, [B] int64 or [B, C] float32. It returns a float32 scalar.
Criterion: TypeAlias = "Callable[[Outputs, Tensor], Tensor]"
# A function of logits, [B, C], and labels.
LogitsLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Numbers of training images, per class and in total.

    Attributes:
        positives: Number of images that have each class, [C]. An image with several classes counts for each
            of them.
        images: Number of all images.
    """

    positives: NDArray[np.float64]
    images: int


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Statistics of the classes in a data set, for losses that use them.

    Attributes:
        share: Share of images that have each class, [C] float32; None if images have a single label.
        counts: Number of training images per class; None if no loss needs the numbers.
    """

    share: NDArray[np.float32] | None = None
    counts: ClassCounts | None = None


class Loss(Component, registry=LOSSES):
    """Base class of losses. The fields of a subclass are its keys in YAML.

    Attributes:
        labels: Number of labels per image that the loss accepts.
        multi_model: Whether the loss needs several models, as in ``Arch.name: DistillationModel``.
        has_weights: Whether the loss has trainable layers, which `build_layer` builds.
    """

    labels: ClassVar[Labels] = "any"
    multi_model: ClassVar[bool] = False
    has_weights: ClassVar[bool] = False
    weight: Number = 1.0
    """Factor of this loss in the sum of all losses."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model outputs that the loss uses: ``logits``, ``features`` or ``backbone``."""
        return (LOGITS,)

    @property
    def on_embeddings(self) -> bool:
        """Whether the loss compares embeddings only. Its labels may then be any numbers."""
        return LOGITS not in self.outputs

    @property
    def needs_counts(self) -> bool:
        """Whether the loss needs the number of training images per class."""
        return False

    @property
    def weightings(self) -> tuple[str, ...]:
        """Settings that give classes different weights, or adjust logits to their frequencies, as text."""
        return ()

    @property
    def needs_shares(self) -> bool:
        """Whether the loss needs the share of images that have each class. Its key is ``weight_ratio``."""
        return False

    @property
    def differs_for_mixed_labels(self) -> bool:
        """Whether PaddleClas computes another loss from labels that Mixup or CutMix mixes: see `compat`."""
        return False

    @property
    def sums_over_images(self) -> bool:
        """Whether PaddleClas also sums the loss over the images of a batch: see `compat`."""
        return False

    @property
    def terms(self) -> int:
        """Number of models or of pairs of models whose losses are added."""
        return 1

    def learners(self, student: str) -> tuple[str, ...]:
        """Returns the names of the models of a `DistillationModel` that receive gradients.

        Args:
            student: Name of the model that is evaluated.
        """
        return (student,)

    def layers(self, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
        """Yields model and layer of each layer output that the loss uses, as ``("Student", "blocks[2]")``.

        Args:
            models: The models of a `DistillationModel`, by name.

        Raises:
            ValueError: The models do not fit the loss.
        """
        yield from ()

    def build(self, data: ClassStatistics) -> Callable[..., Any]:
        """Returns the formula of the loss, without its weight.

        The formula is a function of the tensors in ``outputs`` and of labels. By default, these are the
        logits, [B, C] of any floating dtype, and the labels, [B] int64, or [B, C] float32 if images are mixed
        or have several labels. The result is a float32 scalar, the mean over the batch.

        Args:
            data: Statistics of the classes.

        Raises:
            ValueError: The loss needs statistics that ``data`` does not contain.
        """
        raise NotImplementedError(f"{self.kind} has no method build()")

    def build_layer(self, models: Mapping[str, ModelFacts]) -> nn.Layer:
        """Returns the trainable layers of the loss.

        Args:
            models: The models of a `DistillationModel`, by name; empty for other models.
        """
        raise NotImplementedError(f"{self.kind} has no trainable layers")

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the loss as a function of the model's outputs and of labels, without its weight.

        Args:
            data: Statistics of the classes.
            name: Name of the sublayer of ``model`` that contains the trainable layers of the loss.
            model: The model that is trained; None if the loss has no trainable layers.
        """
        formula = self._build_formula(data)
        names = self.outputs

        def term(outputs: Outputs, label: Tensor) -> Tensor:
            tensors = (get_logits(outputs) if name == LOGITS else outputs[name] for name in names)
            return formula(*tensors, label)

        return term

    def _build_formula(self, data: ClassStatistics) -> Callable[..., Any]:
        """Returns the result of `build`, which had no argument in the former class ``CustomLoss``."""
        if inspect.signature(self.build).parameters:
            return self.build(data)
        text = f"{self.kind}.build() without an argument is deprecated; add an argument `data`"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.build()  # type: ignore[call-arg]

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts with the labels of the data sets and with the outputs of the model."""
        for place, labels in facts.labels.items():
            if place.partition(".")[0] != part:
                continue
            if self.labels not in ("any", labels):
                yield problem(
                    f"needs images with {self.labels} label{'s' * (self.labels == 'several')}, but "
                    f"DataLoader.{place}.dataset is {facts.datasets[place]}; "
                    f"expected {_list_losses_for(labels)}"
                )
            if self.needs_shares and place not in facts.label_shares:
                yield problem(
                    "needs the share of positives of each class; use MultiLabelDataset, and set "
                    f"DataLoader.{part}.dataset.label_ratio: True",
                    "weight_ratio",
                )
        if not facts.embeds and {FEATURES, BACKBONE} & set(self.outputs):
            yield problem("needs embeddings; expected Arch.name: RecModel")
        # In retrieval, labels are identities, and the evaluation ignores losses of classes.
        is_computed = part == "Train" or not facts.retrieval
        if not facts.has_classes and not self.on_embeddings and is_computed:
            yield problem("needs classes; add a Head to Arch")


def _list_losses_for(labels: Labels) -> str:
    """Returns the names of all losses of a single model that accept this number of labels."""
    names = [
        name for name in LOSSES if LOSSES[name].labels in (labels, "any") and not LOSSES[name].multi_model
    ]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def layer_name(position: int) -> str:
    """Returns the name of the sublayer with the trainable layers of the loss at a position of ``Loss.Train``.

    Checkpoints contain these names, so they must not change.
    """
    return f"loss{position}"


def learned_losses(losses: Sequence[Loss]) -> dict[str, Loss]:
    """Returns the losses that have trainable layers, by the names of these layers."""
    return {layer_name(position): loss for position, loss in enumerate(losses) if loss.has_weights}
