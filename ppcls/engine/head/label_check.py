"""Checks the labels of a run's images for its report, with the features of the best model.

Decisions:

- The features are those of the model that the run trained, because it is the only one at hand for certain. A
  model that was trained long enough to memorize wrong labels hides them, so ``ppcls dataset audit`` with a
  pretrained model finds more. The grey copies of the images are joined to the features: they remember no
  label.
- Predictions are held out: a head is fitted on the other images, as in the command.
- A run with a linear head has stored the features of its training images. They are used, so all of these
  images are checked. Other images are checked as long as there is time.
- The thread holds a lock for each batch, because heat maps use Paddle at the same time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import nn

from ppcls.audit.neighbours import project
from ppcls.audit.run_part import CheckedLabels, ImageSet
from ppcls.data.images.header import DecodeError
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import plan_chain
from ppcls.engine.core.precision import Precision
from ppcls.engine.head.cache import KEY_SIZE, FeatureCache
from ppcls.engine.head.features import FeatureModel, describe_images, feature_folder
from ppcls.engine.head.solve import HeadSamples, predict_out_of_fold
from ppcls.errors import UserError, counted

Floats = NDArray[np.float32]
_BATCH = 32
_FOLDS = 3
_STRENGTH = 1e-2  # for 1,797 digits, 0.001 to 0.1 found the same wrong labels; a search takes much longer
_SEED = 0
_LEAST = 50  # images, below which held-out predictions say little
_FEATURE_SHARE = 0.7  # of the time; the rest is for fitting
_FIT_SHARE = 0.3  # of the time, as processor time, so that other programs do not waste the features
_NO_DRAWS = np.zeros(0, np.float32)


class LabelCheck:
    """Computes features and held-out predictions of images within a given time.

    Args:
        load: Function that returns the best model, or None without one.
        transforms: Transforms of the evaluation.
        layout: Layout of the model's input, ``NCHW`` or ``NHWC``.
        precision: Precision of the run.
        stored: Whether the run has stored the features of its images.
    """

    def __init__(
        self,
        load: Callable[[], nn.Layer | None],
        transforms: Sequence[Transform],
        layout: str,
        precision: Precision,
        *,
        stored: bool = False,
    ) -> None:
        self._stored = stored
        self._load = load
        self._transforms = transforms
        self._layout = layout
        self._precision = precision

    def __call__(
        self, images: ImageSet, seconds: float, lock: AbstractContextManager[object]
    ) -> CheckedLabels | str:
        """Returns features and predictions of the first images, or the reason why there are none.

        Args:
            images: The images, in random order.
            seconds: Time after which the check ends.
            lock: Lock that is held while a model computes.
        """
        start = time.monotonic()
        if len(images) < _LEAST:
            return f"fewer than {_LEAST} images can be read"
        if random := [spec.kind for spec in self._transforms if spec.draws]:
            return f"the transforms of the evaluation are random: {', '.join(random)}"
        try:
            with lock:
                model = self._load()
                if model is None:
                    return "there is no best model"
                features = FeatureModel(model, self._precision)
            rows = self._features(images, features, start + _FEATURE_SHARE * seconds, lock)
        except UserError as error:  # the model has no features
            return str(error)
        known = np.flatnonzero(np.isfinite(rows).all(axis=1))
        if len(known) < _LEAST:
            return (
                f"the features of only {counted(len(known), 'image was', 'images were')} computed within the "
                "time"
            )
        joined = np.concatenate([project(rows[known]), images.copies[known]], axis=1)
        vectors = np.full((len(rows), joined.shape[1]), np.nan, np.float32)
        vectors[known] = joined
        return CheckedLabels(vectors, self._predict(vectors, known, images, _FIT_SHARE * seconds))

    def _features(
        self, images: ImageSet, model: FeatureModel, end: float, lock: AbstractContextManager[object]
    ) -> Floats:
        """Returns the features of the first images, [M, D]; NaN for an image without features."""
        layout: Literal["CHW", "HWC"] = "CHW" if self._layout == "NCHW" else "HWC"
        chain = plan_chain(self._transforms, layout)
        folder = None
        if self._stored:
            with lock:
                folder = feature_folder(model, describe_images(self._transforms, layout))
        cache = FeatureCache(folder)
        known: dict[int, Floats] = {}
        finished = 0
        # After the end, only stored features are added.
        while finished < len(images) and (not finished or len(cache) or time.monotonic() < end):
            inputs = {}
            for position in range(finished, min(finished + _BATCH, len(images))):
                try:
                    content = images.index.read(position)
                    key = hashlib.blake2b(content, digest_size=KEY_SIZE).digest() if len(cache) else b""
                    if (row := cache.get(key)) is not None:
                        known[position] = row
                    elif not known or time.monotonic() < end:
                        inputs[position] = run(chain, content, _NO_DRAWS)
                except DecodeError:
                    continue  # its row is NaN
            finished = min(finished + _BATCH, len(images))
            if inputs:
                batch = np.stack(list(inputs.values())).astype(np.float32)
                with lock:
                    known |= zip(inputs, model.compute_batch(paddle.to_tensor(batch)), strict=True)
        rows = np.full((finished, len(next(iter(known.values()), ())) or 1), np.nan, np.float32)
        for position, row in known.items():
            rows[position] = row
        return rows

    def _predict(
        self, vectors: Floats, known: NDArray[np.int64], images: ImageSet, seconds: float
    ) -> Floats | None:
        """Returns held-out probabilities, [M, classes]; None if the time is over or there is one class."""
        end = time.thread_time() + seconds
        labels = images.index.labels[: len(vectors)]
        if len(np.unique(labels[known])) < 2:
            return None

        def check() -> None:
            if time.thread_time() > end:
                raise TimeoutError

        samples = HeadSamples(vectors[known], known, np.ones(len(known), np.bool_), labels, images.classes)
        try:
            return predict_out_of_fold(samples, _FOLDS, _SEED, _STRENGTH, check)
        except TimeoutError:
            return None
