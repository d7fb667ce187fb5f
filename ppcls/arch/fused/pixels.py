"""Normalization of 8-bit pixels by a table.

A pixel has only 256 values, so the normalized numbers of each channel fit into a table. Paddle needs an
operator for each step, and all but the first one read and write images in float32: for 128 images of 224 px,
seven operators moved 760 MB, and the table needs 58 MB.
"""

from __future__ import annotations

import ctypes

import paddle
from paddle import Tensor

from ppcls.arch.fused.cuda import address, contiguous, kernels, with_zeros

VALUES = 256  # of an 8-bit pixel
_THREADS = 256  # threads per block; the same number as THREADS in pixels.cu
_PIXELS = 4  # pixels per thread
_BLOCKS_PER_MULTIPROCESSOR = 8
_CHANNELS = (3, 4)
_WIDER = (4, 8)
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


def widen(x: Tensor, channels: int) -> Tensor:
    """Appends channels of zeros to images. Paddle's concatenation takes 12 times as long on an H200.

    Args:
        x: [B, H, W, C] on the GPU.
        channels: Number of channels of the result.

    Returns:
        [B, H, W, ``channels``].
    """
    pairs, odd = divmod(x.size // 3, 2)
    if x.shape[-1] != 3 or channels not in _WIDER or x.dtype not in _DTYPES or odd or not x.stop_gradient:
        return with_zeros(x, 3, channels - x.shape[-1])
    y = paddle.empty([*x.shape[:3], channels], x.dtype)
    program = kernels("pixels.cu", x.dtype, f"CHANNELS={channels}")
    blocks = min(-(-pairs // _THREADS), 2 * _BLOCKS_PER_MULTIPROCESSOR * program.multiprocessors)
    program.launch(
        "widen", (blocks, 1), (_THREADS, 1), address(contiguous(x)), address(y), ctypes.c_int(pairs)
    )
    return y
