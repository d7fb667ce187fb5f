"""Collects inputs of a run's report: transformed training images, evaluated images, weight histograms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from typing_extensions import override

from ppcls.data.index.protocol import Index, sample_name
from ppcls.data.loaders.batch import Batch
from ppcls.data.section import DataLoader
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.numpy_ops import DecodeError, apply
from ppcls.data.transforms.specs import NormalizeImage
from ppcls.engine.core.observers import StepObserver
from ppcls.engine.core.state import TrainState
from ppcls.report.confusion import class_name
from ppcls.report.record import Histogram
from ppcls.report.thumbnail import AuditPart, Picture, PictureSource

if TYPE_CHECKING:  # `heat_map` imports this module
    from ppcls.engine.evaluation.heat_map import HeatMaps

SHOWN = 16  # number of images of a batch that a report shows
_NAMED = 3  # largest number of classes in the caption of an image with a mixed label
_BINS = 40  # of a histogram of weights


class TurnLock(AbstractContextManager[None]):
    """A lock that threads get in the order in which they ask for it.

    If a thread releases a usual lock and asks for it again at once, it gets it before a thread that waits. So
    heat maps, one after the other, left the check of labels almost no time: 64 images in 16 seconds.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._next = Lock()  # held by the thread that waits for the other lock; the rest wait for this one

    @override
    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    @override
    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ReportImages(PictureSource, StepObserver):
    """Keeps the first training images of each epoch, and reads evaluated images.

    Args:
        splits: Section ``DataLoader`` of the config. It must have ``Train``.
        layout: Layout of the model's input, ``NCHW`` or ``NHWC``.
        evaluated: Index of the evaluated samples; None without evaluation.
        names: Class names in order of label; may be empty.
        heat_maps: Function that returns the heat maps of the best model, or None without a best model.
        audit: Function that audits the images, given a number of seconds and a lock, which it holds while a
            model computes. It may return None.

    Attributes:
        left: Function that returns the number of seconds for heat maps and the audit.
    """

    def __init__(
        self,
        splits: DataLoader,
        layout: str,
        evaluated: Index | None,
        names: Sequence[str],
        heat_maps: Callable[[], HeatMaps | None] = lambda: None,
        audit: Callable[[float, AbstractContextManager[object]], AuditPart | None] = lambda _s, _lock: None,
    ) -> None:
        assert splits.Train is not None
        evaluation = splits.evaluated.get("Eval")
        self._chain = splits.Train.dataset.transform_ops
        self._decoder = evaluation.dataset.transform_ops[0] if evaluation is not None else None
        self._layout = layout
        self._index = evaluated
        self._names = names
        self._heat_maps = cache(heat_maps)
        self._audit = audit
        self.left: Callable[[], float] = lambda: math.inf
        self._lock = TurnLock()
        self._epoch: int | None = None
        self._kept: tuple[Tensor, Tensor] | None = None
        self._pictures: list[Picture] = []

    @override
    def on_batch(self, state: TrainState, batch: Batch) -> None:
        """Keeps the images of the first batch of an epoch. The host does not wait for the device."""
        if state.epoch != self._epoch and batch.valid:
            self._epoch = state.epoch
            rows = min(SHOWN, batch.valid)
            # The images are copied, because the loader and a CUDA graph reuse the memory of a batch.
            self._kept = batch.image[:rows].clone(), batch.label[:rows].clone()

    def augmented(self) -> list[Picture]:
        """Returns the first images of the latest trained epoch, after all transforms."""
        if self._kept is not None:
            images, labels = (np.asarray(tensor.numpy()) for tensor in self._kept)
            if self._layout == "NCHW":
                images = images.transpose(0, 2, 3, 1)
            self._kept = None
            self._pictures = [
                Picture(unnormalize(image, self._chain), self._describe(label))
                for image, label in zip(images, labels, strict=True)
            ]
        return self._pictures

    def evaluated(self, position: int) -> Picture | None:
        """Returns an evaluated image without transforms; None if it can't be read.

        Args:
            position: Position of the image in the evaluated data set.
        """
        if self._index is None or self._decoder is None:
            return None
        try:
            pixels = apply(self._decoder, self._index.read(position), ())
        except DecodeError:
            return None
        rgb = self._decoder.after(ImageState()).rgb
        return Picture(to_uint8(pixels, str(pixels.dtype), rgb), "", self.name(position))

    def name(self, position: int) -> str:
        """Returns the path of a sample of the evaluated data set."""
        return super().name(position) if self._index is None else sample_name(self._index, position)

    @property
    def seconds_left(self) -> float:
        """Number of seconds for heat maps and the audit; negative if there is no time."""
        return self.left()

    def audit(self, seconds: float) -> AuditPart | None:
        """Returns problems of images and labels, found within ``seconds``; None without audit."""
        try:
            return self._audit(seconds, self._lock)
        except (MemoryError, RuntimeError) as error:  # a RuntimeError if there is no memory for a thread
            return AuditPart(f"The images were not compared: {error or 'there is not enough memory'}.", ())

    def explained(self, position: int, class_id: int) -> Picture | None:
        """Returns an evaluated image blended with the heat map of a class.

        Returns None without a best model, or if the image can't be read.

        Args:
            position: Position of the image in the evaluated data set.
            class_id: Class whose heat map is shown.

        Raises:
            UserError: The best model does not support heat maps.
        """
        with self._lock:
            maps = self._heat_maps()
            if self._index is None or maps is None:
                return None
            try:
                pixels = maps.overlay(self._index.read(position), class_id)
            except DecodeError:
                return None
        return Picture(pixels, "", self.name(position))

    def _describe(self, label: NDArray[Any]) -> str:
        if label.ndim == 0:
            return class_name(self._names, int(label))
        largest = np.argsort(-label, kind="stable")[:_NAMED]
        shares = [(class_name(self._names, int(i)), float(label[i])) for i in largest]
        return " + ".join(f"{share:.2f} {name}" for name, share in shares if share > 0)


def unnormalize(image: NDArray[Any], chain: Sequence[Transform]) -> NDArray[np.uint8]:
    """Returns the pixels of a transformed image, without its normalization.

    Args:
        image: Transformed image, [H, W, C], of any floating-point dtype.
        chain: Transforms of the image.

    Returns:
        [H, W, C] uint8, RGB if there are three or more channels.
    """
    state = ImageState()
    image = image.astype(np.float32)
    dtype: str = "float32"
    for spec in chain:
        if isinstance(spec, NormalizeImage):
            dtype = state.dtype
            channels = state.channels
            mean, std = (np.array(values, np.float32) for values in (spec.mean, spec.std))
            image = (image[:, :, :channels] * std + mean) / spec.scale
        state = spec.after(state)
    return to_uint8(image, dtype, state.rgb)


def to_uint8(pixels: NDArray[Any], dtype: str, rgb: bool) -> NDArray[np.uint8]:
    """Converts pixels to [H, W, C] uint8, in the order RGB if there are three or more channels.

    Values of float32 images are scaled, so that the lowest value becomes 0 and the highest 255.

    Args:
        pixels: Pixels, [H, W, C].
        dtype: Dtype that defines the range of the values: ``uint8``, ``uint16`` or ``float32``.
        rgb: Whether the channels are in the order RGB; otherwise BGR.
    """
    values: NDArray[Any] = np.nan_to_num(pixels.astype(np.float32), posinf=0.0, neginf=0.0)
    if dtype == "uint16":
        values = values / 257
    elif dtype == "float32":
        low = float(values.min())
        high = float(values.max())
        values = (values - low) * (255.0 / (high - low) if high > low else 0.0)
    shown: NDArray[np.uint8] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return shown if rgb or shown.shape[2] < 3 else shown[:, :, 2::-1]


@paddle.no_grad()  # type: ignore[untyped-decorator]
def weight_histograms(model: nn.Layer) -> dict[str, Histogram]:
    """Computes histograms of the trainable parameters on the device, and returns them, keyed by name.

    Parameters with non-finite values are omitted.
    """
    histograms = {}
    for name, weight in model.named_parameters():
        if weight.stop_gradient:  # frozen, or BatchNorm statistics, which Paddle lists as parameters
            continue
        values = weight.astype("float32").flatten()
        low, high, total = paddle.stack([values.min(), values.max(), values.sum()]).tolist()
        if not math.isfinite(total):  # min() and max() of Paddle 2.6 ignore NaN
            continue
        if low == high:
            low = low - 0.5
            high = high + 0.5
        bins = ((values - low) * (_BINS / (high - low))).clip(0, _BINS)  # Paddle 2.6 needs integer limits
        counts = paddle.histogram(bins, bins=_BINS, min=0, max=_BINS)
        histograms[name] = Histogram(np.asarray(counts.numpy(), np.int64), np.linspace(low, high, _BINS + 1))
    return histograms
