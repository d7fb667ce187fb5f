"""Lines in the log about layers that the fused kernels leave to Paddle.

Without them, nobody would notice which part of a network is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from paddle import nn

from ppcls.arch.kernels.geometry import (
    find_convolution_problem,
    find_max_pooling_problem,
    find_mean_problem,
    find_norm_problem,
    find_square_problem,
)
from ppcls.arch.kernels.paddle_layers import normalized_axes
from ppcls.files import print_error


def find_layer_norm_problem(layer: nn.LayerNorm) -> str | None:
    """Returns why a fused kernel can't replace a layer norm; None if its shapes and dtypes decide."""
    if layer.weight is None or layer.bias is None:
        return "the kernels need a layer norm with learned factors"
    if normalized_axes(layer) != 1:
        return "the kernels normalize over the last axis only"
    if not getattr(layer, "channels_last", True):  # an attribute of `ChannelNorm`
        return "the kernels need images in NHWC"
    return None


# What has a kernel, and why a layer of this class may have none.
_PROBLEMS: dict[type[nn.Layer], Callable[[Any], str | None]] = {
    nn.Conv2D: find_convolution_problem,
    nn.BatchNorm2D: find_norm_problem,
    nn.MaxPool2D: find_max_pooling_problem,
    nn.AvgPool2D: find_square_problem,
    nn.AdaptiveAvgPool2D: find_mean_problem,
    nn.LayerNorm: find_layer_norm_problem,
    nn.Linear: lambda _: None,
}
# Classes of Paddle that compute nothing with weights of their own.
_CONTAINERS = (nn.Layer, nn.Sequential, nn.LayerList, nn.LayerDict, nn.ParameterList)


def report_unchanged(model: nn.Layer, kinds: Collection[type[nn.Layer]] = _PROBLEMS) -> None:
    """Prints one line for each class of layers that was not fused, and each reason.

    These are layers of a kind that has kernels, and other layers of Paddle with weights. Activations have no
    line: those that matter are fused with the layer before them.

    Args:
        model: Model whose other layers have been fused.
        kinds: Classes of layers that have kernels; by default those on GPUs.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for name, layer in model.named_sublayers(include_self=True):
        if "forward" not in vars(layer) and (problem := _find_problem(layer, kinds)) is not None:
            names.setdefault((type(layer).__name__, problem), []).append(name or "the network")
    for (kind, problem), layers in names.items():
        others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        report(f"{layers[0]} ({kind}){others}", problem)


def _find_problem(layer: nn.Layer, kinds: Collection[type[nn.Layer]]) -> str | None:
    """Returns why a layer was not fused; None if nothing of its kind is."""
    for kind in kinds:
        if isinstance(layer, kind):
            subclass = f"a subclass of {kind.__name__} may compute something else"
            return _PROBLEMS[kind](layer) or subclass
    weights = layer.parameters(include_sublayers=False)
    paddles = next(base for base in type(layer).__mro__ if base.__module__.startswith("paddle."))
    if weights and paddles not in _CONTAINERS:
        return f"there is no kernel for {paddles.__name__}"
    return None


@cache  # once per reason
def report(part: str, problem: str, substitute: str = "Paddle's operators") -> None:
    """Prints which part of a network the kernels do not compute, once in a process.

    Args:
        part: The layer or layers, and what distinguishes them.
        problem: Why the kernels can't compute it.
        substitute: What computes it.
    """
    print_error(f"fused kernels: {part}: {substitute}, because {problem}")
