"""How DALI does each transform, on the CPU or a GPU: specs become nodes of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import singledispatch
from itertools import islice
from typing import Any, Literal

from numpy.typing import NDArray
from nvidia.dali import fn, types

from ppcls.config.transform import Transform
from ppcls.data.decisions import count_decisions
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
        decided: Nodes of what `ppcls.data.decisions.decide` says of the images, on the CPU.
        decoder: More arguments of DALI's image decoders.
    """

    device: Device
    threads: int = 1
    decided: tuple[Node, ...] = ()
    decoder: Mapping[str, Any] = field(default_factory=dict)


def lower_chain(ops: Sequence[Op], encoded: Node, decided: Sequence[Node], place: Place) -> Node:
    """Builds the graph of a whole chain.

    Args:
        ops: The chain, fused or not.
        encoded: Node of the files' bytes, on the CPU.
        decided: Nodes of all ops' decisions, one after the other, as `decide_chain` gives them.
        place: Device, threads and decoder options.

    Returns:
        Node of the images, on the place's device.
    """
    node, waiting = encoded, iter(decided)
    for op in ops:
        own = tuple(islice(waiting, count_decisions(op.spec)))
        node = lower(op.spec, node, replace(place, decided=own))
    return node


@singledispatch
def lower(spec: Transform, node: Node, place: Place) -> Node:
    """Adds one transform to the graph; ``node`` is the files' bytes for decoders, else images."""
    raise NotImplementedError(f"dali_ops knows no {spec.kind}")


def _decode_options(spec: DecodeImage, place: Place) -> dict[str, Any]:
    return {
        "device": "mixed" if place.device == "gpu" else "cpu",
        "output_type": types.RGB if spec.to_rgb else types.BGR,
        **place.decoder,
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


def _window(place: Place) -> dict[str, Node]:
    start, size = place.decided
    return {"start": start, "shape": size, "axis_names": "HW"}


@lower.register
def _(spec: RandCropImage, node: Any, place: Place) -> Node:
    return _resize(spec, fn.slice(node, **_window(place)), place)


@lower.register
def _(spec: DecodeRandCrop, node: Any, place: Place) -> Node:
    cut = fn.decoders.image_slice(node, **_window(place), **_decode_options(spec.decode, place))
    return _resize(spec.crop, cut, place)


@lower.register
def _(spec: RandFlipImage, node: Any, place: Place) -> Node:
    (mirrored,) = place.decided
    return fn.flip(
        node,
        horizontal=mirrored if spec.flip_code in (1, -1) else 0,
        vertical=mirrored if spec.flip_code in (0, -1) else 0,
    )


def _normalize(spec: NormalizeImage, node: Node, **more: Any) -> Node:
    # (pixel * scale - mean) / std with the scale moved into mean and std
    return fn.crop_mirror_normalize(
        node,
        dtype=types.FLOAT16 if spec.output_fp16 else types.FLOAT,
        pad_output=spec.channel_num is not None and spec.channel_num > len(spec.mean),
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
        (options["mirror"],) = place.decided
    return _normalize(spec.normalize, node, **options)


@lower.register
def _(spec: ToCHWImage, node: Any, place: Place) -> Node:
    return fn.transpose(node, perm=[2, 0, 1])
