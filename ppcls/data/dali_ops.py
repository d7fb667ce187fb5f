"""How DALI does each transform, on the CPU or a GPU: specs become nodes of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from ppcls.config.transform import Transform
from ppcls.data.fuse import CropFlipNormalize, DecodeRandCrop
from ppcls.data.numpy_ops import resize
from ppcls.data.transforms import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.window import random_windows

Array = NDArray[Any]
Node = Any  # a DataNode of a graph under construction
Device = Literal["cpu", "gpu"]

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}


@dataclass(frozen=True)
class Place:
    """Where an op stands in the graph.

    Attributes:
        device: Where pixels are.
        threads: CPU threads for what is not done by DALI's own.
        draws: The samples' uniform numbers, [count_draws(ops)] float32, on the CPU.
        slot: The op's first number among them.
    """

    device: Device
    threads: int
    draws: Node
    slot: int


def lower_chain(ops: Sequence[Op], encoded: Node, draws: Node, device: Device, threads: int = 1) -> Node:
    """Builds the graph of a whole chain.

    Args:
        ops: The chain, fused or not.
        encoded: Node of the files' bytes, on the CPU.
        draws: Node of the samples' uniform numbers, [count_draws(ops)] float32, on the CPU; None where
            the chain draws none.
        device: Where to work on pixels.
        threads: CPU threads for what is not done by DALI's own.

    Returns:
        Node of the images, on ``device``.
    """
    node = encoded
    for op in ops:
        node = lower(op.spec, node, Place(device, threads, draws, op.slot))
    return node


@singledispatch
def lower(spec: Transform, node: Node, place: Place) -> Node:
    """Adds one transform to the graph; ``node`` is the files' bytes for decoders, else images."""
    raise NotImplementedError(f"dali_ops knows no {spec.kind}")


def _decode_options(spec: DecodeImage, place: Place) -> dict[str, Any]:
    return {
        "device": "mixed" if place.device == "gpu" else "cpu",
        "output_type": types.RGB if spec.to_rgb else types.BGR,
    }


@lower.register
def _(spec: DecodeImage, node: Any, place: Place) -> Node:
    return fn.decoders.image(node, **_decode_options(spec, place))


def _resize(spec: ResizeImage | RandCropImage, images: Node, place: Place) -> Node:
    if place.device == "cpu" and not spec.antialias and spec.interpolation == "bilinear":
        return _resize_by_opencv(spec, images, place.threads)
    if spec.size is None:
        assert isinstance(spec, ResizeImage)
        size: dict[str, Any] = {"resize_shorter": spec.resize_short}
    else:
        size = {"resize_x": spec.size[0], "resize_y": spec.size[1]}
    return fn.resize(
        images,
        interp_type=_INTERPOLATION[spec.interpolation],
        antialias=spec.antialias,
        # The whole image fills the rounded size, as in numpy_ops, rather than a slightly smaller window.
        subpixel_scale=False,
        **size,
    )


def _resize_by_opencv(spec: ResizeImage | RandCropImage, images: Node, threads: int) -> Node:
    """Resizes on the CPU by numpy_ops: its pixels exactly, in a quarter of the time DALI's operator takes.

    OpenCV works without Python's lock, so threads share a batch.
    """
    pool = ThreadPoolExecutor(max_workers=threads)

    def part(images: list[Array]) -> list[Array]:
        return [resize(spec, image) for image in images]

    def whole(batch: list[Array]) -> list[Array]:
        resized = list(batch)
        parts = pool.map(part, [batch[begin::threads] for begin in range(threads)])
        for begin, done in enumerate(parts):
            resized[begin::threads] = done
        return resized

    return fn.python_function(images, function=whole, batch_processing=True, output_layouts="HWC")


@lower.register
def _(spec: ResizeImage, node: Any, place: Place) -> Node:
    return _resize(spec, node, place)


@lower.register
def _(spec: CropImage, node: Any, place: Place) -> Node:
    # DALI rounds the margin by default; numpy_ops floors it.
    return fn.crop(node, crop_w=spec.size[0], crop_h=spec.size[1], rounding="truncate")


def _window(spec: RandCropImage, shape: Node, place: Place) -> dict[str, Node]:
    """Computes windows by one Python call a batch; DALI's arithmetic takes thirty operators for it."""

    def cut(shapes: list[Array], draws: list[Array]) -> tuple[list[Array], list[Array]]:
        own = slice(place.slot, place.slot + spec.draws)
        windows = random_windows(spec, np.stack(shapes)[:, :2], np.stack(draws)[:, own])
        return list(windows[:, :2]), list(windows[:, 2:])

    nodes: Any = fn.python_function(shape, place.draws, function=cut, batch_processing=True, num_outputs=2)
    start, size = nodes
    return {"start": start, "shape": size, "axis_names": "HW"}


@lower.register
def _(spec: RandCropImage, node: Any, place: Place) -> Node:
    cut = fn.slice(node, **_window(spec, node.shape(device="cpu"), place))
    return _resize(spec, cut, place)


@lower.register
def _(spec: DecodeRandCrop, node: Any, place: Place) -> Node:
    window = _window(spec.crop, fn.peek_image_shape(node), place)
    cut = fn.decoders.image_slice(node, **window, **_decode_options(spec.decode, place))
    return _resize(spec.crop, cut, place)


def _coin(place: Place) -> Node:
    return fn.cast(place.draws[place.slot] < 0.5, dtype=types.INT32)


@lower.register
def _(spec: RandFlipImage, node: Any, place: Place) -> Node:
    coin = _coin(place)
    zero = coin * 0
    return fn.flip(
        node,
        horizontal=coin if spec.flip_code in (1, -1) else zero,
        vertical=coin if spec.flip_code in (0, -1) else zero,
    )


def _normalize(spec: NormalizeImage, node: Node, **more: Any) -> Node:
    # (pixel * scale - mean) / std with the scale moved into mean and std
    return fn.crop_mirror_normalize(
        node,
        dtype=types.FLOAT,
        mean=[value / spec.scale for value in spec.mean],
        std=[value / spec.scale for value in spec.std],
        **more,
    )


@lower.register
def _(spec: NormalizeImage, node: Any, place: Place) -> Node:
    return _normalize(spec, node, output_layout="HWC")


@lower.register
def _(spec: CropFlipNormalize, node: Any, place: Place) -> Node:
    options: dict[str, Any] = {"output_layout": "CHW" if spec.to_chw else "HWC"}
    if spec.crop is not None:
        options |= {"crop_w": spec.crop.size[0], "crop_h": spec.crop.size[1], "rounding": "truncate"}
    if spec.flip is not None:
        options["mirror"] = _coin(place)
    return _normalize(spec.normalize, node, **options)


@lower.register
def _(spec: ToCHWImage, node: Any, place: Place) -> Node:
    return fn.transpose(node, perm=[2, 0, 1])
