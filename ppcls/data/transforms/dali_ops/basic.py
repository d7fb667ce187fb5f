"""Decoding, resizing, cropping, mirroring and normalizing by DALI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from ppcls.data.sampling.input_size import VariableSize
from ppcls.data.transforms.dali_ops.graph import Node, Place, by_numpy, lower
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.numpy_ops.basic import resize
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.fuse import CropFlipNormalize, DecodeCropFlipNormalize, DecodeRandCrop

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}


def _decode_options(spec: DecodeImage, place: Place) -> dict[str, Any]:
    if spec.channels == 3:
        kind = types.RGB if spec.to_rgb else types.BGR
    else:
        kind = types.GRAY if spec.channels == 1 else types.ANY_DATA
    return {
        "device": place.decoder_device,
        "output_type": kind,
        "dtype": types.UINT16 if spec.dtype == "uint16" else types.UINT8,
        **place.decoder,
    }


@lower.register
def _(spec: DecodeImage, node: Any, place: Place) -> Node:
    return place.moved(fn.decoders.image(node, **_decode_options(spec, place)))


def _resize(spec: ResizeImage | RandCropImage, images: Node, place: Place) -> Node:
    if place.calls_numpy and not spec.antialias and spec.interpolation == "bilinear":
        # OpenCV takes a quarter of the time of DALI's operator
        if place.size is not None:
            return by_numpy(lambda image, size: resize(spec, image, size), images, place, place.size)
        return by_numpy(lambda image: resize(spec, image), images, place)
    if place.size is not None:
        size: dict[str, Any] = {"resize_x": place.size[0], "resize_y": place.size[1]}
    elif spec.size is None:
        assert isinstance(spec, ResizeImage)
        size = {"resize_shorter": spec.resize_short}
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


@lower.register
def _(spec: ResizeImage, node: Any, place: Place) -> Node:
    return _resize(spec, node, place)


@lower.register
def _(spec: VariableSize, node: Any, place: Place) -> Node:
    *decided, size = place.decided
    return lower(spec.part, node, replace(place, decided=tuple(decided), size=size))


@lower.register
def _(spec: CropImage, node: Any, place: Place) -> Node:
    # DALI rounds the margin by default; numpy_ops floors it.
    return fn.crop(node, crop_w=spec.size[0], crop_h=spec.size[1], rounding="truncate")


def _window(place: Place) -> dict[str, Node]:
    start, size, *_ = place.decided
    return {"start": start, "shape": size, "axis_names": "HW"}


@lower.register
def _(spec: RandCropImage, node: Any, place: Place) -> Node:
    return _resize(spec, fn.slice(node, **_window(place)), place)


@lower.register
def _(spec: DecodeRandCrop, node: Any, place: Place) -> Node:
    return _resize(spec.crop, _decode_window(spec, node, place), place)


def _decode_window(spec: DecodeRandCrop, node: Node, place: Place) -> Node:
    return place.moved(fn.decoders.image_slice(node, **_window(place), **_decode_options(spec.decode, place)))


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
def _(spec: DecodeCropFlipNormalize, node: Any, place: Place) -> Node:
    """On a CPU only: with planes from OpenCV, fn.normalize takes half the time of crop_mirror_normalize."""
    mirrored, sizes = place.decided[-1], () if place.size is None else (place.size,)

    def planes(image: NDArray[Any], mirrored: NDArray[Any], *size: NDArray[Any]) -> NDArray[Any]:
        image = apply(spec.flip, resize(spec.crop, image, *size), (mirrored,))
        done = np.empty([image.shape[2], *image.shape[:2]], image.dtype)
        cv2.split(image, list(done))  # into the planes of `done`
        return done

    normalize, cut = spec.normalize, _decode_window(spec, node, place)
    return fn.normalize(
        by_numpy(planes, cut, place, mirrored, *sizes, layout="CHW"),
        axes=[1, 2],
        mean=_per_plane([value / normalize.scale for value in normalize.mean]),
        stddev=_per_plane(normalize.std),
        scale=normalize.scale,
    )


def _per_plane(values: Sequence[float]) -> NDArray[np.float32]:
    """Returns one value a plane, [3, 1, 1], of three or of one for all."""
    return np.resize(np.asarray(values, np.float32), (3, 1, 1))


@lower.register
def _(spec: ToCHWImage, node: Any, place: Place) -> Node:
    return fn.transpose(node, perm=[2, 0, 1])
