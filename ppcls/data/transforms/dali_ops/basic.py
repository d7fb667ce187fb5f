"""Implements decoding, resizing, cropping, flipping and normalizing with DALI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from ppcls.data.transforms.dali_ops.graph import LoweringContext, Node, by_numpy, lower
from ppcls.data.transforms.numpy_ops.basic import resize
from ppcls.data.transforms.numpy_ops.chain import apply
from ppcls.data.transforms.specs.basic import (
    CropImage,
    DecodeImage,
    DecodeNumpy,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.decisions import count_decisions
from ppcls.data.transforms.specs.fuse import (
    CropFlipNormalize,
    DecodeCropFlipNormalize,
    DecodeRandCrop,
    VariableSize,
)

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}
_DTYPES = {"uint8": types.UINT8, "uint16": types.UINT16, "float32": types.FLOAT}


def _decoder_options(spec: DecodeImage, context: LoweringContext) -> dict[str, Any]:
    if spec.channels == 3:
        output_type = types.RGB if spec.to_rgb else types.BGR
    else:
        output_type = types.GRAY if spec.channels == 1 else types.ANY_DATA
    return {
        "device": context.decoder_device,
        "output_type": output_type,
        "dtype": _DTYPES[spec.dtype],
        **context.decoder,
    }


@lower.register
def decode_image(spec: DecodeImage, node: Any, context: LoweringContext) -> Node:
    if context.channels_in_memory:
        images = node.gpu() if context.device == "gpu" else node
        stored = types.GRAY if context.channels_in_memory == 1 else types.RGB
        decoded = types.RGB if spec.to_rgb else types.BGR
        if stored == decoded:
            return images
        return fn.color_space_conversion(images, image_type=stored, output_type=decoded)
    return context.to_device(fn.decoders.image(node, **_decoder_options(spec, context)))


@lower.register
def decode_numpy(spec: DecodeNumpy, node: Any, context: LoweringContext) -> Node:
    # The values of the array are at the end of the file.
    shape, *_ = context.decisions
    length = shape[0] * shape[1] * (spec.channels * np.dtype(spec.dtype).itemsize)
    begin = fn.cast(node.shape(device="cpu")[0], dtype=types.INT32) - length
    values = fn.slice(node, start=fn.reshape(begin, shape=[1]), axes=[0])
    images = fn.reinterpret(values, shape=shape, dtype=_DTYPES[spec.dtype], layout="HWC")
    return images.gpu() if context.device == "gpu" else images


def _resize(spec: ResizeImage | RandCropImage, images: Node, context: LoweringContext) -> Node:
    if context.calls_numpy and not spec.antialias and spec.interpolation == "bilinear":
        # OpenCV needs a quarter of the time of DALI's operator.
        if context.size is not None:
            return by_numpy(lambda image, size: resize(spec, image, size), images, context, context.size)
        return by_numpy(lambda image: resize(spec, image), images, context)
    if context.size is not None:
        size: dict[str, Any] = {"resize_x": context.size[0], "resize_y": context.size[1]}
    elif spec.size is None:
        assert isinstance(spec, ResizeImage)
        size = {"resize_shorter": spec.resize_short}
    else:
        size = {"resize_x": spec.size[0], "resize_y": spec.size[1]}
    return fn.resize(
        images,
        interp_type=_interpolation(spec, context),
        antialias=spec.antialias,
        # Scales the whole image to the rounded size, like the NumPy backend, instead of a slightly smaller
        # window.
        subpixel_scale=False,
        **size,
    )


def _interpolation(spec: ResizeImage | RandCropImage, context: LoweringContext) -> Any:
    if spec.interpolation != "random":
        return _INTERPOLATION[spec.interpolation]
    bilinear = int(types.INTERP_LINEAR)
    bicubic = int(types.INTERP_CUBIC)
    number = bilinear + (bicubic - bilinear) * context.decisions[2]
    return fn.reinterpret(fn.cast(number, dtype=types.INT32), dtype=types.INTERP_TYPE)


@lower.register
def resize_image(spec: ResizeImage, node: Any, context: LoweringContext) -> Node:
    return _resize(spec, node, context)


@lower.register
def lower_sized(spec: VariableSize, node: Any, context: LoweringContext) -> Node:
    *decisions, size = context.decisions
    return lower(spec.part, node, replace(context, decisions=tuple(decisions), size=size))


@lower.register
def crop_image(spec: CropImage, node: Any, context: LoweringContext) -> Node:
    # By default, DALI rounds the margin to the nearest integer. The NumPy backend rounds it down.
    return fn.crop(node, crop_w=spec.size[0], crop_h=spec.size[1], rounding="truncate")


def _window(context: LoweringContext) -> dict[str, Node]:
    start, size, *_ = context.decisions
    return {"start": start, "shape": size, "axis_names": "HW"}


@lower.register
def rand_crop_image(spec: RandCropImage, node: Any, context: LoweringContext) -> Node:
    return _resize(spec, fn.slice(node, **_window(context)), context)


def _decode_window(spec: DecodeRandCrop, node: Node, context: LoweringContext) -> Node:
    """Adds the decoded window. Its decisions follow those of the decoder, see `_of_crop`."""
    if not spec.decode.decodes_images or context.channels_in_memory:
        return fn.slice(lower(spec.decode, node, context), **_window(_of_crop(spec, context)))
    options = {**_window(context), **_decoder_options(cast(DecodeImage, spec.decode), context)}
    return context.to_device(fn.decoders.image_slice(node, **options))


def _of_crop(spec: DecodeRandCrop, context: LoweringContext) -> LoweringContext:
    """Returns the context with the decisions from the crop on."""
    return replace(context, decisions=context.decisions[count_decisions(spec.decode) :])


@lower.register
def decode_rand_crop(spec: DecodeRandCrop, node: Any, context: LoweringContext) -> Node:
    return _resize(spec.crop, _decode_window(spec, node, context), _of_crop(spec, context))


@lower.register
def flip_image(spec: RandFlipImage, node: Any, context: LoweringContext) -> Node:
    (flipped,) = context.decisions
    return fn.flip(
        node,
        horizontal=flipped if spec.flip_code in (1, -1) else 0,
        vertical=flipped if spec.flip_code in (0, -1) else 0,
    )


def _normalize(spec: NormalizeImage, node: Node, **options: Any) -> Node:
    # Computes (pixel * scale - mean) / std, with the scale included in mean and std.
    return fn.crop_mirror_normalize(
        node,
        dtype=types.FLOAT16 if spec.output_fp16 else types.FLOAT,
        pad_output=spec.channel_num is not None and spec.channel_num > len(spec.mean),
        mean=[value / spec.scale for value in spec.mean],
        std=[value / spec.scale for value in spec.std],
        **options,
    )


@lower.register
def normalize_image(spec: NormalizeImage, node: Any, context: LoweringContext) -> Node:
    return _normalize(spec, node, output_layout="HWC")


@lower.register
def crop_flip_normalize(spec: CropFlipNormalize, node: Any, context: LoweringContext) -> Node:
    options: dict[str, Any] = {"output_layout": "CHW" if spec.to_chw else "HWC"}
    if spec.crop is not None:
        options |= {"crop_w": spec.crop.size[0], "crop_h": spec.crop.size[1], "rounding": "truncate"}
    if spec.flip is not None:
        (options["mirror"],) = context.decisions
    return _normalize(spec.normalize, node, **options)


@lower.register
def decode_crop_flip_normalize(spec: DecodeCropFlipNormalize, node: Any, context: LoweringContext) -> Node:
    # Only on the CPU: if OpenCV creates the planes, fn.normalize needs half the time of
    # crop_mirror_normalize.
    flipped = context.decisions[-1]
    sizes = () if context.size is None else (context.size,)

    def planes(image: NDArray[Any], flipped: NDArray[Any], *size: NDArray[Any]) -> NDArray[Any]:
        image = apply(spec.flip, resize(spec.crop, image, *size), (flipped,))
        result = np.empty([image.shape[2], *image.shape[:2]], image.dtype)
        cv2.split(image, list(result))  # writes into the planes of the result
        return result

    normalize = spec.normalize
    window = _decode_window(spec, node, context)
    return fn.normalize(
        by_numpy(planes, window, context, flipped, *sizes, layout="CHW"),
        axes=[1, 2],
        mean=_per_plane([value / normalize.scale for value in normalize.mean]),
        stddev=_per_plane(normalize.std),
        scale=normalize.scale,
    )


def _per_plane(values: Sequence[float]) -> NDArray[np.float32]:
    """Returns one or three values as [3, 1, 1]. A single value is repeated."""
    return np.resize(np.asarray(values, np.float32), (3, 1, 1))


@lower.register
def to_chw(spec: ToCHWImage, node: Any, context: LoweringContext) -> Node:
    return fn.transpose(node, perm=[2, 0, 1])
