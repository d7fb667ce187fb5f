"""Implements geometric, photometric and erasing transforms with DALI.

On a CPU, most of them call the NumPy backend, which is faster than DALI's operators.
"""

from __future__ import annotations

from typing import Any

from nvidia.dali import fn, types

from ppcls.data.transforms.dali_ops.graph import LoweringContext, Node, lower, numpy_on_cpu
from ppcls.data.transforms.specs.blur import BlurImage
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing, noise_bank
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation
from ppcls.data.transforms.specs.photometric import ColorMap, GaussianBlur

_INTERPOLATION = {"nearest": types.INTERP_NN, "bilinear": types.INTERP_LINEAR}
_OUT_OF_BOUNDS = {"constant": "constant", "edge": "edge", "reflect": "reflect_101"}


@lower.register
@numpy_on_cpu
def pad_image(spec: Pad, node: Any, context: LoweringContext) -> Node:
    left, top, _, _ = spec.padding
    (sides,) = context.decisions
    return fn.slice(
        node,
        start=[-top, -left],
        shape=sides,
        axis_names="HW",
        out_of_bounds_policy=_OUT_OF_BOUNDS[spec.padding_mode],
        fill_values=list(spec.fill),
    )


@lower.register
@numpy_on_cpu
def crop_random_window(spec: RandomCropImage, node: Any, context: LoweringContext) -> Node:
    (start,) = context.decisions
    return fn.slice(node, start=start, shape=spec.size[::-1], axis_names="HW")


@lower.register
@numpy_on_cpu
def rotate_image(spec: RandomRotation, node: Any, context: LoweringContext) -> Node:
    (angle,) = context.decisions
    interpolation = _INTERPOLATION[spec.interpolation]
    return _rotate(node, angle=angle, interp_type=interpolation, keep_size=True, fill_value=spec.fill)


@lower.register
@numpy_on_cpu
def rotate_by_quarter_turns(spec: RandomRot90, node: Any, context: LoweringContext) -> Node:
    # Without keep_size, the canvas rotates too. Each pixel centre is mapped to another pixel centre, so
    # nearest interpolation is exact.
    (angle,) = context.decisions
    return _rotate(node, angle=angle, interp_type=types.INTERP_NN)


def _rotate(node: Node, **options: Any) -> Node:
    # DALI's operator supports only uint8 and float32.
    return fn.cast_like(fn.rotate(fn.cast(node, dtype=types.FLOAT), **options), node)


@lower.register
@numpy_on_cpu
def map_colors(spec: ColorMap, node: Any, context: LoweringContext) -> Node:
    matrix, offset = context.decisions
    return fn.coord_transform(node, M=matrix, T=offset, dtype=types.UINT8)


@lower.register
@numpy_on_cpu
def blur_image(spec: GaussianBlur, node: Any, context: LoweringContext) -> Node:
    (sigma,) = context.decisions
    return fn.gaussian_blur(node, sigma=sigma, window_size=spec.kernel_size)


@lower.register
@numpy_on_cpu
def blur_by_kernel(spec: BlurImage, node: Any, context: LoweringContext) -> Node:
    _, kernel = context.decisions
    operator = fn.experimental.filter  # type: ignore[attr-defined]
    return operator(node, kernel.gpu() if context.device == "gpu" else kernel)


def _rectangle(context: LoweringContext) -> dict[str, Any]:
    return {"anchor": context.decisions[0], "shape": context.decisions[1], "axis_names": "HW"}


def _erase(node: Node, context: LoweringContext, **fill: Any) -> Node:
    if context.device == "cpu":
        return fn.erase(node, **_rectangle(context), **fill)
    # On a GPU, DALI's operator does not support float16.
    return fn.cast_like(fn.erase(fn.cast(node, dtype=types.FLOAT), **_rectangle(context), **fill), node)


@lower.register
def erase_rectangle(spec: RandomErasing, node: Any, context: LoweringContext) -> Node:
    if spec.mode == "pixel":
        return _erase_to_noise(spec, node, context)
    fill = list(spec.mean) if spec.mode == "const" else context.decisions[2]
    return _erase(node, context, fill_value=fill)


@numpy_on_cpu
def _erase_to_noise(spec: RandomErasing, node: Node, context: LoweringContext) -> Node:
    *_, begin, sides = context.decisions
    bank = types.Constant(noise_bank(), device=context.device, layout="HWC")
    noise = fn.slice(bank, start=begin, shape=sides, axis_names="HW", out_of_bounds_policy="wrap")
    inside = noise - fn.erase(noise, **_rectangle(context))
    outside = fn.erase(fn.cast(node, dtype=types.FLOAT), **_rectangle(context))
    return fn.cast_like(outside + inside, node)


@lower.register
def cut_out_holes(spec: Cutout, node: Any, context: LoweringContext) -> Node:
    fill = context.decisions[2] if spec.fill_value is None else list(spec.fill_value)
    return _erase(node, context, fill_value=fill)


@lower.register
def hide_patches(spec: HideAndSeek, node: Any, context: LoweringContext) -> Node:
    return _erase(node, context, fill_value=[0])


@lower.register
def mask_grid(spec: GridMask, node: Any, context: LoweringContext) -> Node:
    tile, share, angle, shift_x, shift_y = context.decisions
    bars = fn.grid_mask(node, tile=tile, ratio=share, angle=angle, shift_x=shift_x, shift_y=shift_y)
    return bars if spec.mode else node - bars
