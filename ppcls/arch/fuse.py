"""Makes a model use the fused kernels of its device."""

from __future__ import annotations

from typing import Literal

from paddle import nn

from ppcls.arch.fused import layers
from ppcls.arch.onednn import layers as cpu_layers
from ppcls.arch.onednn.library import library


def fuse(model: nn.Layer, device: Literal["cpu", "gpu"]) -> int:
    """Makes a model use the fused kernels of a device, in place.

    Returns:
        Number of layers that were changed.

    Raises:
        KernelsUnavailableError: This machine lacks a library, or its GPU is not supported.
    """
    if device == "cpu":
        library()
        return cpu_layers.fuse(model)
    layers.check_available()
    return layers.fuse(model)
