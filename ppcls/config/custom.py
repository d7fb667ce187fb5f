"""Base classes and registration of users' own losses, metrics, optimizers and transforms.

A user's module defines subclasses with the decorator `register`. ``Global.import_modules`` lists the module.
The module is imported before the config is checked, so it must import Paddle inside its functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from numpy.typing import NDArray

from ppcls.config.base.fields import Spec
from ppcls.config.sections.objective import LossSpec, MetricSpec
from ppcls.config.sections.optimizer import CoupledSpec
from ppcls.config.sections.transform import CustomTransform as CustomTransform
from ppcls.registry import ARCHITECTURES, LOSSES, METRICS, OPTIMIZERS, TRANSFORMS

Component = TypeVar("Component", bound=type[Spec])


class CustomLoss(LossSpec):
    """Base class of users' losses. The fields of a subclass are its keys in YAML."""

    def build(self) -> Callable[[Any, Any], Any]:
        """Returns a function that computes the mean loss.

        Its arguments are the logits, [B, C], and the labels, [B] int64, or [B, C] float32 if images are mixed
        or have several labels. It returns a float32 scalar tensor.
        """
        raise NotImplementedError


class CustomMetric(MetricSpec):
    """Base class of users' evaluation metrics, which are computed on the images of all ranks at once.

    Reports use the name of the class, or the result of ``names`` if the class overrides it.
    """

    labels: ClassVar[Any] = "any"
    whole_dataset: ClassVar[bool] = True

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns one value for each of ``names``.

        Args:
            scores: Logits, [N, C] float32.
            labels: Labels, [N] for one label per image, [N, C] for several.
        """
        raise NotImplementedError


class CustomOptimizer(CoupledSpec):
    """Base class of users' optimizers. The fields of a subclass are its keys in YAML."""

    def build(self, **common: Any) -> Any:
        """Returns a `paddle.optimizer.Optimizer`.

        Args:
            **common: Arguments of Paddle's optimizers: ``learning_rate``, ``parameters``, ``grad_clip`` and
                ``weight_decay``.
        """
        raise NotImplementedError


def register(component: Component) -> Component:
    """Registers a user's class, so that YAML can select it by its name. Use it as a decorator.

    Raises:
        TypeError: The class is not a subclass of a base class of this module.
        ValueError: The name is already registered.
    """
    for base, registry in (
        (CustomLoss, LOSSES),
        (CustomMetric, METRICS),
        (CustomOptimizer, OPTIMIZERS),
        (CustomTransform, TRANSFORMS),
    ):
        if issubclass(component, base):
            registry.register(component.__name__, component)
            return component
    raise TypeError(
        f"{component.__name__}: expected a subclass of CustomLoss, CustomMetric, CustomOptimizer or "
        "CustomTransform"
    )


def register_architecture(name: str, builder: str) -> None:
    """Registers an architecture, so that YAML can select it by its name.

    Args:
        name: Value of ``Arch.name`` that selects the architecture.
        builder: ``module:function`` to import when the model is built. The function gets the arguments
            ``class_num``, ``data_format`` and ``input_image_channel``, and returns a `paddle.nn.Layer` that
            computes the logits, [B, class_num], of images.

    Raises:
        ValueError: The name is already registered.
    """
    ARCHITECTURES.register(name, builder)
