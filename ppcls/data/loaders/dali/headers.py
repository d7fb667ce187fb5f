"""Checks the image headers of a batch before DALI decodes it, and rejects unsupported images.

DALI's decoders must not receive an image that the NumPy backend rejects. DALI 2.4 returns wrong pixels for
TIFFs with separate planes. It writes beyond its buffer if it decodes a grey JPEG to a number of channels
other than 1 or 3.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from ppcls.data.images.decode import decode
from ppcls.data.images.header import (
    MAX_SCANS,
    DecodeError,
    Header,
    check_header,
    check_pixel_count,
    check_size,
)
from ppcls.data.images.jpeg import MIN_SCAN_BYTES, check_frame, count_scans, find_gpu_obstacle
from ppcls.data.images.npy import read_npy_header
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs.basic import DecodeImage, DecodeNumpy

_JPEG_BEGIN = np.array([0xFF, 0xD8], np.uint8)
_JPEG_END = np.array([0xFF, 0xD9], np.uint8)
_WEBP_BEGIN = b"R"[0]  # DALI decodes all kinds of WebP to the pixels of the reference

Node = Any  # DataNode of a DALI graph under construction
Tensors = Any  # DALI tensor list on the CPU


@singledispatch
def peek(decoder: Transform, files: Node) -> tuple[Node, ...]:
    """Adds DALI nodes that compute the inputs of `admit`, and returns them.

    Args:
        decoder: First transform of the chain, which decodes an image.
        files: Node of the encoded images.
    """
    raise NotImplementedError(f"DALI's reader does not support {decoder.kind}")


@singledispatch
def admit(decoder: Transform, files: Tensors, *peeked: Tensors, on_gpu: bool) -> NDArray[np.int64]:
    """Checks that the decoder accepts all images of a batch, and returns their heights and widths.

    Args:
        decoder: First transform of the chain, which decodes an image.
        files: [B] encoded images.
        *peeked: Outputs of the nodes that `peek` returned.
        on_gpu: Whether a GPU decodes the images. The GPU's decoder accepts some damaged images that the CPU's
            decoder rejects, so such images need additional checks.

    Returns:
        [B, 2] int64, heights and widths of the decoded images, after applying the EXIF orientation.

    Raises:
        DecodeError: The decoder does not support an image, or a JPEG is truncated.
    """
    raise NotImplementedError(f"DALI's reader does not support {decoder.kind}")


@peek.register
def peek_image(decoder: DecodeImage, files: Any) -> tuple[Node, ...]:
    """Adds nodes for the image shapes, the first two bytes and the last two bytes of each file."""
    return fn.peek_image_shape(files, image_type=types.ANY_DATA), files[:2], files[-2:]


@admit.register
def admit_images(decoder: DecodeImage, files: Any, *peeked: Tensors, on_gpu: bool) -> NDArray[np.int64]:
    """Checks the shapes that DALI read, and complete headers where the shapes do not suffice.

    For grey and RGB JPEGs that are decoded to three channels, only the frame header is read in addition,
    which takes about 10 us. For WebPs that are decoded to three channels, the shapes suffice. Complete
    headers are read for all other images, because DALI decodes some kinds to wrong pixels without an error,
    for PNGs, whose chunks may claim gigabytes, and for JPEGs with too many scans.
    """
    shapes, first_bytes, last_bytes = (np.array(tensors.as_tensor()) for tensors in peeked)
    sizes = _check_sizes(files)
    if on_gpu:
        # The GPU's decoder fills the missing part of a truncated JPEG. A JPEG whose last bytes are not the
        # end marker is truncated or has data after the marker. Decoding it on the CPU shows which.
        suspect = (first_bytes == _JPEG_BEGIN).all(1) & (last_bytes != _JPEG_END).any(1)
        for row in np.flatnonzero(suspect).tolist():
            decode(decoder, np.asarray(files[row]).tobytes())
        for row in np.flatnonzero((first_bytes == _JPEG_BEGIN).all(1)).tolist():
            if (kind := find_gpu_obstacle(np.asarray(files[row]).data)) is not None:
                raise _wrong_on_gpu(kind)
    # A file may contain several sizes. The limit applies to the size that DALI would decode.
    for height, width in shapes[shapes[:, 0] * shapes[:, 1] > decoder.max_pixels, :2].tolist():
        check_pixel_count(decoder, height, width)
    unsure = np.ones(len(shapes), bool)
    if decoder.channels == 3:
        plain_jpeg = (first_bytes == _JPEG_BEGIN).all(1) & (shapes[:, 2] <= 3)
        for row in np.flatnonzero(plain_jpeg).tolist():
            check_frame(np.asarray(files[row]).data)
        unsure = ~(plain_jpeg | (first_bytes[:, 0] == _WEBP_BEGIN))
    # Counts scans only in files that are large enough for too many. Counting is faster than reading a header.
    room = shapes[:, 0] * shapes[:, 1] * (sizes // MIN_SCAN_BYTES) > MAX_SCANS * decoder.max_pixels
    for row in np.flatnonzero(room & (first_bytes == _JPEG_BEGIN).all(1)).tolist():
        unsure[row] |= count_scans(np.asarray(files[row])) > MAX_SCANS
    for row in np.flatnonzero(unsure).tolist():
        header = read_header(np.asarray(files[row]))
        check_header(decoder, header)
        if on_gpu and _is_wrong_on_gpu(header):
            raise _wrong_on_gpu(f"{header.format} with a palette of {header.bits} bits")
    return shapes[:, :2].astype(np.int64)


def _is_wrong_on_gpu(header: Header) -> bool:
    """Returns whether DALI decodes this kind to other pixels on a GPU (DALI 2.4 on an H200)."""
    return header.format == "PNG" and header.colours == "palette" and header.bits < 8


def _wrong_on_gpu(kind: str) -> DecodeError:
    return DecodeError(
        f"DALI decodes a {kind} to wrong colours on a GPU; decode on the CPU with "
        "DataLoader.Train.loader.dali.decode_on=cpu (and the same for other splits), or convert the image"
    )


@peek.register
def peek_array(decoder: DecodeNumpy, files: Any) -> tuple[Node, ...]:
    """Returns no nodes, because `admit_arrays` reads the headers itself."""
    return ()


@admit.register
def admit_arrays(decoder: DecodeNumpy, files: Any, *peeked: Tensors, on_gpu: bool) -> NDArray[np.int64]:
    """Reads and checks the header of each array."""
    _check_sizes(files)
    headers = [read_npy_header(decoder, np.asarray(files[row])) for row in range(len(files))]
    return np.array(headers, np.int64)[:, :2]


def _check_sizes(files: Tensors) -> NDArray[np.int64]:
    """Checks that no file is too large, and returns the size of each file in bytes, [B] int64."""
    sizes = np.array([size for (size,) in files.shape()], np.int64)
    check_size(int(sizes.max()))
    return sizes
