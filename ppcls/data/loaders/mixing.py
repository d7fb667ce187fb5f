"""Mixes the images and labels of any loader's batches, on their device (Mixup and CutMix).

Each image is mixed with a partner: rows ``2k`` and ``2k + 1`` of the global batch are partners. Both rows are
always on the same rank, so the result does not depend on the number of ranks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.nn import functional as F

from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.sampling.order import Cursor
from ppcls.data.transforms.base import Layout
from ppcls.data.transforms.batch import DRAWS, BatchTransform, Mix, Size
from ppcls.data.transforms.specs.rng import step_fractions


def decide_mix(spec: BatchTransform, seed: int, cursor: Cursor, size: Size) -> Mix:
    """Returns the random parameters for mixing the images of a step.

    After the last epoch of the transform, these are the parameters that keep the images and labels.

    Args:
        spec: Mixup, CutMix, or a choice between them.
        seed: Seed of the run.
        cursor: Position of the step.
        size: Height and width of the images in pixels.
    """
    if not spec.mixes_in(cursor.epoch):
        return Mix()
    return spec.decide(step_fractions(seed, cursor.epoch, cursor.step, DRAWS).tolist(), size)


class MixedLoader:
    """Implements `ppcls.data.loaders.batch.Loader` by mixing pairs of images of another loader.

    Labels become class probabilities, [B, classes], also in epochs without mixing, because a captured CUDA
    graph needs equal shapes and dtypes. A row whose partner is padding is not mixed.

    Args:
        loader: Yields the batches. Its order must keep pairs of rows together.
        spec: Transform that mixes the batches.
        classes: Number of classes.
        layout: Layout of the images.

    Raises:
        ValueError: The order of ``loader`` does not keep pairs of rows together.
    """

    def __init__(self, loader: Loader, spec: BatchTransform, classes: int, layout: Layout) -> None:
        if loader.order.group % 2:
            raise ValueError(f"expected an order with an even group, got group {loader.order.group}")
        self.loader = loader
        self._spec = spec
        self._classes = classes
        self._layout = layout
        self.index = loader.index
        self.order = loader.order
        self.quarantine = loader.quarantine

    def __len__(self) -> int:
        """Returns the number of batches per epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the current position to the end of the epoch."""
        state = self.loader.state_dict()
        cursor = Cursor(int(state["epoch"]), int(state["step"]))
        for batch in self.loader:
            yield self._mix(batch, cursor)
            cursor = cursor.next(len(self.order))

    def release(self) -> None:
        """Frees threads and memory of the underlying loader."""
        self.loader.release()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned. See `Order.restore` for errors."""
        self.loader.load_state_dict(state)

    def _mix(self, batch: Batch, cursor: Cursor) -> Batch:
        axes = slice(2, 4) if self._layout == "CHW" else slice(1, 3)
        height, width = batch.image.shape[axes]
        mix = decide_mix(self._spec, self.order.seed, cursor, (height, width))
        rows = batch.valid - batch.valid % 2
        return replace(
            batch,
            image=mix_images(batch.image, mix, rows, self._layout),
            label=mix_labels(batch.label, mix, rows, self._classes),
        )


def mix_labels(label: paddle.Tensor, mix: Mix, rows: int, classes: int) -> paddle.Tensor:
    """Mixes the labels of pairs of rows.

    Args:
        label: Labels, [B] int64, or class probabilities, [B, classes] float32.
        mix: Parameters of the mixing.
        rows: Number of rows to mix, starting with the first one. Must be even.
        classes: Number of classes.

    Returns:
        Class probabilities, [B, classes] float32. Rows after the first ``rows`` ones are not mixed.
    """
    shares = F.one_hot(label, classes) if label.ndim == 1 else label.clone()
    if _on_cpu(shares):
        pairs = _as_array(shares)[:rows].reshape(rows // 2, 2, classes)
        pairs[:] = mix.kept * pairs + (1.0 - mix.kept) * pairs[:, ::-1]
        return shares
    return paddle.lerp(_partners(shares, rows), shares, mix.kept)


def mix_images(image: paddle.Tensor, mix: Mix, rows: int, layout: Layout) -> paddle.Tensor:
    """Mixes pairs of images. May change ``image`` in place.

    Args:
        image: Images, [B, ...] in ``layout``.
        mix: Parameters of the mixing.
        rows: Number of rows to mix, starting with the first one. Must be even.
        layout: Layout of the images.

    Returns:
        The mixed images, in the shape of ``image``. Rows after the first ``rows`` ones are unchanged.
    """
    if mix.kept == 1.0 or not rows:
        return image
    if _on_cpu(image):
        mix_in_place(_as_array(image)[:rows], mix, layout)
        return image
    if mix.window is None:
        return paddle.lerp(_partners(image, rows), image, mix.kept)
    window = (slice(None), *mix.window.slices(layout))
    image[window] = _partners(image[window], rows)
    return image


def _on_cpu(tensor: paddle.Tensor) -> bool:
    """Returns whether a tensor is on the CPU.

    There, NumPy and OpenCV are at least 20 times as fast as Paddle.
    """
    return bool(tensor.place.is_cpu_place())


def _partners(tensor: paddle.Tensor, rows: int) -> paddle.Tensor:
    """Returns a tensor with the first ``rows`` rows replaced by their partners."""
    if rows < len(tensor):  # a slice is a copy, so this slices only if necessary
        return paddle.concat([_partners(tensor[:rows], rows), tensor[rows:]])
    shape = list(tensor.shape[1:])
    return tensor.reshape([rows // 2, 2, *shape]).flip(1).reshape([rows, *shape])


def _as_array(tensor: paddle.Tensor) -> NDArray[Any]:
    """Returns an array that shares the memory of a CPU tensor, float32 or float16. ``numpy()`` would copy."""
    dtype = np.float32 if tensor.dtype == paddle.float32 else np.float16
    memory = (ctypes.c_byte * int(tensor.size * np.dtype(dtype).itemsize)).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory).view(dtype).reshape(tensor.shape)


def mix_in_place(images: NDArray[Any], mix: Mix, layout: Layout) -> None:
    """Mixes pairs of images in place.

    Args:
        images: Images, [2N, ...] in ``layout``, float32 or float16, N > 0.
        mix: Parameters of the mixing.
        layout: Layout of the images.
    """
    if mix.window is not None:
        window = mix.window.slices(layout)
        for one, other in images.reshape(-1, 2, *images.shape[1:]):
            one[window], other[window] = other[window].copy(), one[window].copy()
        return
    # Processes one pair at a time, so that the pair stays in the CPU's cache. With k = mix.kept, the first
    # call computes one = k * one + (1 - k) * other. The second call uses this result and computes other = (1
    # - s) * other + s * one with s = (1 - k) / k. Each image is reshaped to one row, because OpenCV is slow
    # on columns.
    for pair in images.reshape(len(images) // 2, 2, 1, -1):
        one, other = pair.astype(np.float32, copy=False)
        cv2.accumulateWeighted(other, one, 1.0 - mix.kept)
        cv2.accumulateWeighted(one, other, (1.0 - mix.kept) / mix.kept)
        if pair.dtype != np.float32:
            pair[:] = one, other
