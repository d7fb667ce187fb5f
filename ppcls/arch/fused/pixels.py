"""Normalization of 8-bit pixels by a table.

A pixel has only 256 values, so the normalized numbers of each channel fit into a table. Paddle needs an
operator for each step, and all but the first one read and write images in float32: for 128 images of 224 px,
seven operators moved 760 MB, and the table needs 58 MB.
"""

from __future__ import annotations

import ctypes

import paddle
from paddle import Tensor

from ppcls.arch.fused.cuda import address, contiguous, kernels

VALUES = 256  # of an 8-bit pixel
_THREADS = 256  # threads per block; the same number as THREADS in pixels.cu
_PIXELS = 4  # pixels per thread
_BLOCKS_PER_MULTIPROCESSOR = 8
_CHANNELS = (3, 4)
_DTYPES = (paddle.float16, paddle.bfloat16)


def supports(pixels: Tensor, table: Tensor) -> bool:
    """Returns whether the kernel can be used. See `look_up` for the arguments."""
    whole = pixels.size % (3 * _PIXELS) == 0
    return pixels.shape[-1] == 3 and whole and table.shape[0] in _CHANNELS and table.dtype in _DTYPES


def look_up(pixels: Tensor, table: Tensor, *, reverse: bool) -> Tensor:
    """Returns the numbers of pixels.

    Args:
        pixels: [B, H, W, 3] uint8 on the GPU. The number of pixels must be a multiple of 4.
        table: [C, 256] float16 or bfloat16, for 3 or 4 channels of the output. The fourth one is that of the
            value 0.
        reverse: Whether channel c of the output is that of channel ``2 - c`` of the pixels.

    Returns:
        [B, H, W, C], in the dtype of the table.
    """
    channels = table.shape[0]
    y = paddle.empty([*pixels.shape[:3], channels], table.dtype)
    groups = pixels.size // (3 * _PIXELS)
    program = kernels("pixels.cu", table.dtype, f"CHANNELS={channels}")
    blocks = min(-(-groups // _THREADS), _BLOCKS_PER_MULTIPROCESSOR * program.multiprocessors)
    operands = map(address, (contiguous(pixels), contiguous(table), y))
    program.launch(
        "look_up", (blocks, 1), (_THREADS, 1), *operands, ctypes.c_int(groups), ctypes.c_int(reverse)
    )
    return y
