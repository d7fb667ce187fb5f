"""What DALI's reader learns from the headers of a batch, and refuses by them before anything is decoded.

DALI's decoders must not see all that numpy_ops refuses: as of 2.4 they garble TIFFs of separate planes, and
write beyond their buffer where a grey JPEG has to give other than 1 or 3 channels.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types

from ppcls.config.sections.transform import Transform
from ppcls.data.images.decode import decode
from ppcls.data.images.header import check_header, check_pixel_count, read_header
from ppcls.data.images.npy import read_npy_header
from ppcls.data.transforms.specs import DecodeImage
from ppcls.data.transforms.specs.arrays import DecodeNumpy

_JPEG_BEGIN, _JPEG_END = np.array([0xFF, 0xD8], np.uint8), np.array([0xFF, 0xD9], np.uint8)
_TIFF_BEGINNINGS = np.frombuffer(b"IM", np.uint8)  # of no other format that DALI knows

Node = Any  # a DataNode of a graph under construction
Tensors = Any  # a DALI tensor list on the CPU


@singledispatch
def peek(decoder: Transform, files: Node) -> tuple[Node, ...]:
    """Returns nodes of what `admit` wants to know of each file, given the node of their bytes."""
    raise NotImplementedError(f"dali_headers knows no {decoder.kind}")


@singledispatch
def admit(decoder: Transform, files: Tensors, *peeked: Tensors, on_gpu: bool) -> NDArray[np.int64]:
    """Returns the images' sides, where `decoder` takes all of them.

    Args:
        decoder: The chain's first transform.
        files: [B] encoded images.
        *peeked: What `peek` gave.
        on_gpu: Whether a GPU will decode, which forgives more than a CPU.

    Returns:
        [B, 2] int64, heights and widths as the decoder will give them, turned by EXIF.

    Raises:
        DecodeError: An image is refused by its header, or is a JPEG that was cut off.
    """
    raise NotImplementedError(f"dali_headers knows no {decoder.kind}")


@peek.register
def _(decoder: DecodeImage, files: Any) -> tuple[Node, ...]:
    return fn.peek_image_shape(files, image_type=types.ANY_DATA), files[:2], files[-2:]


@admit.register
def _(decoder: DecodeImage, files: Any, *peeked: Tensors, on_gpu: bool) -> NDArray[np.int64]:
    """DALI's look at a header suffices for colours, but in a TIFF there may be anything."""
    shapes, beginnings, endings = (np.array(each.as_tensor()) for each in peeked)
    if on_gpu:
        # A GPU fills up what a JPEG lacks. One without its end marker is cut off, or has more behind it.
        suspect = (beginnings == _JPEG_BEGIN).all(1) & (endings != _JPEG_END).any(1)
        for row in np.flatnonzero(suspect).tolist():
            decode(decoder, np.asarray(files[row]).tobytes())
    # What DALI would decode counts, whatever else a file says of its size.
    for height, width in shapes[shapes[:, 0] * shapes[:, 1] > decoder.max_pixels, :2].tolist():
        check_pixel_count(decoder, height, width)
    doubtful = np.ones(len(shapes), bool)
    if decoder.channels == 3:
        doubtful = (shapes[:, 2] > 4) | np.isin(beginnings[:, 0], _TIFF_BEGINNINGS)
    for row in np.flatnonzero(doubtful).tolist():
        check_header(decoder, read_header(np.asarray(files[row])))
    return shapes[:, :2].astype(np.int64)


@peek.register
def _(decoder: DecodeNumpy, files: Any) -> tuple[Node, ...]:
    return ()


@admit.register
def _(decoder: DecodeNumpy, files: Any, *peeked: Tensors, on_gpu: bool) -> NDArray[np.int64]:
    headers = [read_npy_header(decoder, np.asarray(files[row])) for row in range(len(files))]
    return np.array(headers, np.int64)[:, :2]
