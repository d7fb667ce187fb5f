"""Colours and blur by DALI on a GPU."""

from __future__ import annotations

from typing import Any

from nvidia.dali import fn, types

from ppcls.data.transforms.dali_ops.graph import Node, Place, lower, numpy_on_cpu
from ppcls.data.transforms.specs.photometric import ColorMap, GaussianBlur


@lower.register
@numpy_on_cpu
def _(spec: ColorMap, node: Any, place: Place) -> Node:
    matrix, offset = place.decided
    return fn.coord_transform(node, M=matrix, T=offset, dtype=types.UINT8)


@lower.register
@numpy_on_cpu
def _(spec: GaussianBlur, node: Any, place: Place) -> Node:
    (sigma,) = place.decided
    return fn.gaussian_blur(node, sigma=sigma, window_size=spec.kernel_size)
