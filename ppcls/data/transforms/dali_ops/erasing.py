"""Rectangles, holes, grids and patches by DALI."""

from __future__ import annotations

from typing import Any

from nvidia.dali import fn, types

from ppcls.data.transforms.dali_ops.graph import Node, Place, lower, numpy_on_cpu
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing, noise_bank


def _rectangle(place: Place) -> dict[str, Any]:
    return {"anchor": place.decided[0], "shape": place.decided[1], "axis_names": "HW"}


def _erase(node: Node, place: Place, **fill: Any) -> Node:
    if place.device == "cpu":
        return fn.erase(node, **_rectangle(place), **fill)
    # On a GPU it knows no float16.
    return fn.cast_like(fn.erase(fn.cast(node, dtype=types.FLOAT), **_rectangle(place), **fill), node)


@lower.register
def _(spec: RandomErasing, node: Any, place: Place) -> Node:
    if spec.mode == "pixel":
        return _erase_to_noise(spec, node, place)
    fill = list(spec.mean) if spec.mode == "const" else place.decided[2]
    return _erase(node, place, fill_value=fill)


@numpy_on_cpu
def _erase_to_noise(spec: RandomErasing, node: Node, place: Place) -> Node:
    *_, begin, sides = place.decided
    bank = types.Constant(noise_bank(), device=place.device, layout="HWC")
    noise = fn.slice(bank, start=begin, shape=sides, axis_names="HW", out_of_bounds_policy="wrap")
    inside = noise - fn.erase(noise, **_rectangle(place))
    outside = fn.erase(fn.cast(node, dtype=types.FLOAT), **_rectangle(place))
    return fn.cast_like(outside + inside, node)


@lower.register
def _(spec: Cutout, node: Any, place: Place) -> Node:
    return _erase(node, place, fill_value=list(spec.fill_value))


@lower.register
def _(spec: HideAndSeek, node: Any, place: Place) -> Node:
    return _erase(node, place, fill_value=[0])


@lower.register
def _(spec: GridMask, node: Any, place: Place) -> Node:
    tile, share, angle, shift_x, shift_y = place.decided
    rest = fn.grid_mask(node, tile=tile, ratio=share, angle=angle, shift_x=shift_x, shift_y=shift_y)
    return rest if spec.mode else node - rest
