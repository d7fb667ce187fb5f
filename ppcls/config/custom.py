"""Base classes of a user's losses, metrics, optimizers and transforms, and their registration.

A module of the user defines subclasses with `register`, and ``Global.import_modules`` names the module. It is
imported before the config is checked, and must not import Paddle itself: import it in the functions.
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
    """A user's loss. Its fields are its keys in YAML."""

    def build(self) -> Callable[[Any, Any], Any]:
        """Returns a function of logits [B, C] and labels to their mean loss, a float32 scalar tensor.

        Labels are [B] int64, or [B, C] float32 if images are mixed or have several labels.
        """
        raise NotImplementedError


class CustomMetric(MetricSpec):
    """A user's metric of evaluation. It sees the images of all ranks at once.

    Its name in reports is the name of the class, unless it overrides ``names``.
    """

    labels: ClassVar[Any] = "any"
    whole_dataset: ClassVar[bool] = True

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns one value per name.

        Args:
            scores: Logits [N, C] float32.
            labels: [N] for one label per image, [N, C] for several.
        """
        raise NotImplementedError


class CustomOptimizer(CoupledSpec):
    """A user's optimizer."""

    def build(self, **common: Any) -> Any:
        """Returns a `paddle.optimizer.Optimizer`.

        Args:
            **common: ``learning_rate``, ``parameters``, ``grad_clip`` and ``weight_decay``, which Paddle's
                optimizers accept.
        """
        raise NotImplementedError


def register(component: Component) -> Component:
    """Makes a subclass of one of the classes above known by its name in YAML; use it as a decorator.

    Raises:
        TypeError: The class is no subclass of them.
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
        f"{component.__name__}: expected a CustomLoss, CustomMetric, CustomOptimizer or CustomTransform"
    )


def register_architecture(name: str, builder: str) -> None:
    """Makes an architecture known by its name in YAML.

    Args:
        name: Value of ``Arch.name``.
        builder: ``module:function``, imported when the model is built. The function is called with
            ``class_num``, ``data_format`` and ``input_image_channel``, and returns a `paddle.nn.Layer` that
            maps images to logits [B, class_num].

    Raises:
        ValueError: The name is already registered.
    """
    ARCHITECTURES.register(name, builder)
