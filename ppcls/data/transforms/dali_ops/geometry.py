"""Borders, windows and turns by DALI on a GPU."""

from __future__ import annotations

from typing import Any

from nvidia.dali import fn, types

from ppcls.data.transforms.dali_ops.graph import Node, Place, lower, numpy_on_cpu
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation

_INTERPOLATION = {"nearest": types.INTERP_NN, "bilinear": types.INTERP_LINEAR}
_BEYOND = {"constant": "constant", "edge": "edge", "reflect": "reflect_101"}


@lower.register
@numpy_on_cpu
def _(spec: Pad, node: Any, place: Place) -> Node:
    left, top, _, _ = spec.padding
    (sides,) = place.decided
    return fn.slice(
        node,
        start=[-top, -left],
        shape=sides,
        axis_names="HW",
        out_of_bounds_policy=_BEYOND[spec.padding_mode],
        fill_values=list(spec.fill),
    )


@lower.register
@numpy_on_cpu
def _(spec: RandomCropImage, node: Any, place: Place) -> Node:
    (start,) = place.decided
    return fn.slice(node, start=start, shape=spec.size[::-1], axis_names="HW")


@lower.register
@numpy_on_cpu
def _(spec: RandomRotation, node: Any, place: Place) -> Node:
    (angle,) = place.decided
    interpolation = _INTERPOLATION[spec.interpolation]
    return _rotate(node, angle=angle, interp_type=interpolation, keep_size=True, fill_value=spec.fill)


@lower.register
@numpy_on_cpu
def _(spec: RandomRot90, node: Any, place: Place) -> Node:
    # Without keep_size the canvas turns too; each pixel's centre falls on one, so nearest is exact.
    (angle,) = place.decided
    return _rotate(node, angle=angle, interp_type=types.INTERP_NN)


def _rotate(node: Node, **options: Any) -> Node:
    # DALI's operator knows 8 bits and float32 only
    return fn.cast_like(fn.rotate(fn.cast(node, dtype=types.FLOAT), **options), node)
