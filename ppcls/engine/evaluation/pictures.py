"""The pictures of a run's report: training images as the model sees them, and samples of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.config.schema import Config
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.index.read import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.transforms.numpy_ops import DecodeError, apply
from ppcls.data.transforms.specs import NormalizeImage
from ppcls.engine.core.hooks import StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step
from ppcls.report.confusion import class_name
from ppcls.report.thumbnail import Picture, PictureSource

SHOWN = 16
_NAMED = 3  # classes of a mixed label


class RunPictures(PictureSource):
    """Keeps the first images of each epoch's first batch, and reads samples that were evaluated.

    Args:
        config: The whole config; it trains.
        evaluated: The samples of the evaluation; None where there is none.
        names: Of the classes, by label; may be empty.
    """

    def __init__(self, config: Config, evaluated: Index | None, names: Sequence[str]) -> None:
        train, evaluation = config.DataLoader.Train, config.DataLoader.evaluated.get("Eval")
        assert train is not None  # by prepare
        self._chain = train.dataset.transform_ops
        self._decoder = evaluation.dataset.transform_ops[0] if evaluation is not None else None
        self._layout, self._index, self._names = config.Arch.data_format, evaluated, names
        self._epoch: int | None = None
        self._kept: tuple[Tensor, Tensor] | None = None
        self._pictures: list[Picture] = []

    def watch(self, step: Step) -> Step:
        """Returns ``step``, which now also keeps images; the host does not wait for them."""

        def watched(state: TrainState, batch: Batch, phases: StepHooks) -> Tensor:
            if state.epoch != self._epoch and batch.valid:
                self._epoch, rows = state.epoch, min(SHOWN, batch.valid)
                # Copies: the loader and a recorded step use a batch's memory again.
                self._kept = batch.image[:rows].clone(), batch.label[:rows].clone()
            return step(state, batch, phases)

        return watched

    def augmented(self) -> list[Picture]:
        """Returns the images that were kept last."""
        if self._kept is not None:
            images, labels = (np.asarray(each.numpy()) for each in self._kept)
            if self._layout == "NCHW":
                images = images.transpose(0, 2, 3, 1)
            self._kept = None
            self._pictures = [
                Picture(unnormalized(image, self._chain), self._describe(label))
                for image, label in zip(images, labels, strict=True)
            ]
        return self._pictures

    def evaluated(self, position: int) -> Picture | None:
        """Returns a sample as it is stored; None where it can't be read any more."""
        if self._index is None or self._decoder is None:
            return None
        try:
            pixels = apply(self._decoder, self._index.read(position), ())
        except DecodeError:
            return None
        rgb = self._decoder.after(ImageState()).rgb
        return Picture(_for_the_eye(pixels, str(pixels.dtype), rgb), "", self._index.name(position))

    def _describe(self, label: NDArray[Any]) -> str:
        if label.ndim == 0:
            return class_name(self._names, int(label))
        largest = np.argsort(-label, kind="stable")[:_NAMED]
        shares = [(class_name(self._names, int(each)), float(label[each])) for each in largest]
        return " + ".join(f"{share:.2f} {name}" for name, share in shares if share > 0)


def unnormalized(image: NDArray[Any], chain: Sequence[Transform]) -> NDArray[np.uint8]:
    """Returns an image that went through ``chain`` as pixels again.

    Args:
        image: [H, W, C], any floating dtype.
        chain: Its transforms, up to the batch.

    Returns:
        [H, W, C] uint8, RGB where there are three channels or more; as bright as before NormalizeImage.
    """
    state, image = ImageState(), image.astype(np.float32)
    dtype: str = "float32"
    for spec in chain:
        if isinstance(spec, NormalizeImage):
            dtype, channels = state.dtype, state.channels
            mean, std = (np.array(each, np.float32) for each in (spec.mean, spec.std))
            image = (image[:, :, :channels] * std + mean) / spec.scale
        state = spec.after(state)
    return _for_the_eye(image, dtype, state.rgb)


def _for_the_eye(pixels: NDArray[Any], dtype: str, rgb: bool) -> NDArray[np.uint8]:
    """Returns [H, W, C] uint8 of pixels that were of ``dtype``; float32 from its lowest to its highest."""
    values: NDArray[Any] = np.nan_to_num(pixels.astype(np.float32), posinf=0.0, neginf=0.0)
    if dtype == "uint16":
        values = values / 257
    elif dtype == "float32":
        low, high = float(values.min()), float(values.max())
        values = (values - low) * (255.0 / (high - low) if high > low else 0.0)
    shown: NDArray[np.uint8] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return shown if rgb or shown.shape[2] < 3 else shown[:, :, 2::-1]
