"""Base classes and registration of users' own losses, transforms and architectures.

A user's module defines subclasses. ``Global.import_modules`` lists the module. The module is imported before
the config is checked, so it must import Paddle inside its functions only.

Users' parts have the same base classes as built-in ones, for example `ppcls.metric.base.DatasetMetric`, whose
subclasses register themselves. The former names of these base classes stay as aliases; see `_MOVED`.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any, TypeVar

from ppcls.config.base.component import Component
from ppcls.config.base.section import Spec
from ppcls.registry import ARCHITECTURES

Registered = TypeVar("Registered", bound=type[Spec])
# Base classes that have another name and module now.
_MOVED = {
    "CustomLoss": ("ppcls.loss", "Loss"),
    "CustomMetric": ("ppcls.metric.base", "DatasetMetric"),
    "CustomOptimizer": ("ppcls.optimizer.base", "CoupledOptimizer"),
    "CustomTransform": ("ppcls.data.transforms.base", "CustomTransform"),
}


def __getattr__(name: str) -> Any:
    """Returns a base class by its former name, with a `DeprecationWarning`."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _MOVED[name]
    text = f"{__name__}.{name} is deprecated; use {module}.{attribute}, whose subclasses need no @register"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(module), attribute)


def register(component: Registered) -> Registered:
    """Registers a user's class, so that YAML can select it by its name. Use it as a decorator.

    Subclasses of `Component` register themselves, so they need no decorator.

    Raises:
        TypeError: The class is not a subclass of a base class of components.
        ValueError: The name is already registered.
    """
    if issubclass(component, Component):
        text = f"@register is deprecated for {component.__name__}, which registers itself; remove it"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return component
    raise TypeError(
        f"{component.__name__}: expected a subclass of Loss, DatasetMetric, CoupledOptimizer or "
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
