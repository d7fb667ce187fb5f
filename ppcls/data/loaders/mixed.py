"""Mixes the batches of any loader, on the device where they are."""

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

from ppcls.config.sections.transform import BatchTransform, Layout
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.loaders.mixing import Mix, Window, decide_mix
from ppcls.data.sampling.order import Cursor


class MixedLoader:
    """A `ppcls.data.loaders.batch.Loader` over another one, whose images it mixes by pairs.

    Labels become shares of classes; of several labels, each is mixed. A row without a partner, the other
    being padding, stays as it is.

    Args:
        loader: Gives the batches; its order must keep pairs of rows together.
        spec: How to mix them.
        classes: Number of classes.
        layout: Of an image.
    """

    def __init__(self, loader: Loader, spec: BatchTransform, classes: int, layout: Layout) -> None:
        if loader.order.group % 2:
            raise ValueError(f"partners must be on one rank, and the order's group is {loader.order.group}")
        self.loader, self._spec, self._classes, self._layout = loader, spec, classes, layout
        self.index, self.order, self.quarantine = loader.index, loader.order, loader.quarantine

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the present position to the end of the epoch."""
        state = self.loader.state_dict()
        cursor = Cursor(int(state["epoch"]), int(state["step"]))
        for batch in self.loader:
            yield self._mixed(batch, cursor)
            cursor = cursor.next(len(self.order))

    def release(self) -> None:
        """Lets the other loader go of what it holds."""
        self.loader.release()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch that was yielded."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state_dict` gave."""
        self.loader.load_state_dict(state)

    def _mixed(self, batch: Batch, cursor: Cursor) -> Batch:
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
    """Mixes labels, [B] int64 or [B, classes] float32, to the latter; the first ``rows`` are pairs."""
    shares = F.one_hot(label, classes) if label.ndim == 1 else label.clone()
    if _on_cpu(shares):
        pairs = _array(shares)[:rows].reshape(rows // 2, 2, classes)
        pairs[:] = mix.kept * pairs + (1.0 - mix.kept) * pairs[:, ::-1]
        return shares
    return paddle.lerp(_partners(shares, rows), shares, mix.kept)


def mix_images(image: paddle.Tensor, mix: Mix, rows: int, layout: Layout) -> paddle.Tensor:
    """Mixes images, [B, ...] in ``layout``; the first ``rows`` are pairs. May change ``image``."""
    if mix.kept == 1.0 or not rows:
        return image
    if _on_cpu(image):
        mix_in_place(_array(image)[:rows], mix, layout)
        return image
    if mix.window is None:
        return paddle.lerp(_partners(image, rows), image, mix.kept)
    cut = (slice(None), *_slices(mix.window, layout))
    image[cut] = _partners(image[cut], rows)
    return image


def _on_cpu(tensor: paddle.Tensor) -> bool:
    """Whether numpy and OpenCV do better: there Paddle's operators take twenty times as long, or more."""
    return bool(tensor.place.is_cpu_place())


def _partners(each: paddle.Tensor, rows: int) -> paddle.Tensor:
    """Returns every row's partner; behind the first ``rows``, the row itself."""
    rest = list(each.shape[1:])
    if rows < len(each):  # a slice is a copy: only where it must be
        return paddle.concat([_partners(each[:rows], rows), each[rows:]])
    return each.reshape([rows // 2, 2, *rest]).flip(1).reshape([rows, *rest])


def _slices(window: Window, layout: Layout) -> tuple[slice, ...]:
    spatial = slice(window.top, window.bottom), slice(window.left, window.right)
    return (slice(None), *spatial) if layout == "CHW" else (*spatial, slice(None))


def _array(tensor: paddle.Tensor) -> NDArray[Any]:
    """Returns a tensor's own memory on the CPU, float32 or float16: Paddle's ``numpy()`` copies."""
    dtype = np.float32 if tensor.dtype == paddle.float32 else np.float16
    memory = (ctypes.c_byte * int(tensor.size * np.dtype(dtype).itemsize)).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory).view(dtype).reshape(tensor.shape)


def mix_in_place(images: NDArray[Any], mix: Mix, layout: Layout) -> None:
    """Mixes pairs of images, [2N, ...] float32 or float16, N > 0."""
    if mix.window is not None:
        cut = _slices(mix.window, layout)
        for one, other in images.reshape(-1, 2, *images.shape[1:]):
            one[cut], other[cut] = other[cut].copy(), one[cut].copy()
        return
    # A pair at a time, in the processor's cache: with k kept k * one + (1 - k) * other, and from that the
    # other one, (1 - s) * other + s * one with s = (1 - k) / k. One row an image: OpenCV is slow on columns.
    for pair in images.reshape(len(images) // 2, 2, 1, -1):
        one, other = pair.astype(np.float32, copy=False)
        cv2.accumulateWeighted(other, one, 1.0 - mix.kept)
        cv2.accumulateWeighted(one, other, (1.0 - mix.kept) / mix.kept)
        if pair.dtype != np.float32:
            pair[:] = one, other
