"""Computes the features of images: the inputs of a model's last linear layers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.section import Arch
from ppcls.data.build import LoadingSettings, Samples, build_ordered, layout_of
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Loader
from ppcls.data.sampling.epoch_samplers import ListSampler
from ppcls.data.sampling.order import Order
from ppcls.data.section import Split
from ppcls.data.transforms.base import Transform
from ppcls.engine.core.precision import Precision
from ppcls.engine.evaluation.forward import EvalForward
from ppcls.engine.head.cache import FeatureCache, hash_arrays, hash_contents
from ppcls.errors import UserError
from ppcls.optimizer.name_rules import classifier_layers
from ppcls.runtime.start import Runtime
from ppcls.zoo import cache_folder

Floats = NDArray[np.float32]
_SAVE_SECONDS = 60.0  # between two writes of the cache
_FOLDER = "features"


@dataclass(frozen=True)
class ImageSource:
    """Images and how they are loaded.

    Attributes:
        split: Data set with its transforms.
        index: The samples of the data set.
        runtime: Device and cores.
        run: Output folder, seed and choice of the loader.
        arch: Section of the model, with the layout of a batch.
        shuffled: Whether features are computed in random order, so that the first ones belong to all classes.
    """

    split: Split
    index: Index
    runtime: Runtime
    run: LoadingSettings
    arch: Arch
    shuffled: bool = False

    def loader(self, positions: Sequence[int], view: int) -> Loader:
        """Returns a loader of some images.

        Args:
            positions: Positions of the images in the index, at least one.
            view: Number of the view, which selects the random numbers of the transforms.
        """
        order = Order(
            ListSampler(tuple(positions)), batch_size=self.split.sampler.rows(1), seed=self.run.seed
        )
        samples = Samples(self.index, order, None)
        loader = build_ordered(self.split, "Train", self.runtime, self.run, layout_of(self.arch), samples)
        loader.load_state_dict({**loader.state_dict(), "epoch": view, "step": 0})
        return loader

    def describe(self, view: int) -> dict[str, Any]:
        """Returns plain data that identifies the preparation of a view of the images."""
        seed = self.run.seed if view else 0
        return describe_images(self.split.dataset.transform_ops, layout_of(self.arch), view, seed)


def describe_images(
    transforms: Sequence[Transform], layout: str, view: int = 0, seed: int = 0
) -> dict[str, Any]:
    """Returns plain data that identifies the preparation of images.

    Args:
        transforms: Transforms of the images.
        layout: Layout of the model's input.
        view: Number of the view; 0 for transforms that are not random.
        seed: Seed of the transforms.
    """
    chain = [op.model_dump(mode="json") | {"kind": op.kind} for op in transforms]
    return {"transforms": chain, "layout": layout, "view": view, "seed": seed}


class FeatureModel:
    """A model whose features are read: the inputs of its last linear layers, in order.

    Distilled models have two such layers. Their inputs are joined.

    Args:
        model: The model.
        precision: Precision of the forward pass.

    Attributes:
        layers: The last linear layers.

    Raises:
        UserError: The model does not end with linear layers.
    """

    def __init__(self, model: nn.Layer, precision: Precision) -> None:
        self.model = model
        self.precision = precision
        names = classifier_layers(model)
        sublayers = dict(model.named_sublayers())
        self.layers = {name: sublayers[name] for name in names}
        for name, layer in self.layers.items():
            if not isinstance(layer, nn.Linear):
                raise UserError(
                    f"a linear head replaces a linear layer at the end of a model, but {name} is a "
                    f"{type(layer).__name__}; choose another architecture, or train without --head"
                )

    def fingerprint(self, about: object) -> str:
        """Returns a hash of the weights that compute the features, and of plain data."""
        prefixes = tuple(f"{name}." for name in self.layers)
        weights = {
            name: tensor.astype("float32").numpy()
            for name, tensor in self.model.state_dict().items()
            if not name.startswith(prefixes)
        }
        version = (type(self.model).__name__, self.precision.name, paddle.__version__)
        return hash_arrays(weights, [about, version])

    def compute(self, loader: Loader) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Yields positions [B] and features [B, D] of the batches of a loader.

        Raises:
            UserError: The inputs of the last layers are not one vector per image, or are not finite.
        """
        training = self.model.training
        self.model.eval()
        with self._captured() as inputs, paddle.no_grad():

            def forward(model: nn.Layer, image: Tensor) -> Tensor:
                inputs.clear()
                model(image)
                return paddle.concat([self._checked(inputs, name) for name in self.layers], axis=1)

            for batch, features in EvalForward(self.model, self.precision, forward).outputs(loader):
                assert batch.positions is not None
                assert isinstance(features, Tensor)
                rows = features.astype("float32").numpy()
                if not np.isfinite(rows).all():
                    raise UserError("the features of the model are NaN or infinite; use other weights")
                yield batch.positions[: batch.valid], rows
        if training:
            self.model.train()

    def compute_batch(self, images: Tensor) -> Floats:
        """Returns the features of images in float32, [B, D]. Puts the model into evaluation mode.

        Raises:
            UserError: The inputs of the last layers are not one vector per image.
        """
        self.model.eval()
        with self._captured() as inputs, paddle.no_grad():
            self.model(images)
            rows = paddle.concat([self._checked(inputs, name) for name in self.layers], axis=1)
        return np.asarray(rows.astype("float32").numpy())

    def _checked(self, inputs: Mapping[str, Tensor], name: str) -> Tensor:
        if name not in inputs or len(inputs[name].shape) != 2:
            shape = "no input" if name not in inputs else f"an input of shape {inputs[name].shape}"
            raise UserError(
                f"a linear head needs one vector of features per image, but layer {name} got {shape}; choose "
                "another architecture, or train without --head"
            )
        return inputs[name]

    @contextmanager
    def _captured(self) -> Iterator[dict[str, Tensor]]:
        """Captures the inputs of the last layers within the block, by the name of the layer."""
        inputs: dict[str, Tensor] = {}

        def capture(name: str) -> Callable[[nn.Layer, tuple[Tensor, ...]], None]:
            def hook(_layer: nn.Layer, arguments: tuple[Tensor, ...]) -> None:
                inputs[name] = arguments[0]

            return hook

        handles = [layer.register_forward_pre_hook(capture(name)) for name, layer in self.layers.items()]
        try:
            yield inputs
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class Features:
    """Features of one view of images.

    Attributes:
        rows: Features, [N, D] float32; NaN for images that were skipped, or not reached within the time.
        computed: Number of images whose features were computed; the others come from the cache.
    """

    rows: Floats
    computed: int


def compute_features(
    source: ImageSource,
    model: FeatureModel,
    view: int = 0,
    *,
    cached: bool = True,
    hashes: Mapping[int, bytes] | None = None,
    after_batch: Callable[[int], object] = lambda _images: None,
) -> Features:
    """Returns the features of one view of all images.

    Args:
        source: The images.
        model: The model.
        view: Number of the view; see `ImageSource.loader`.
        cached: Whether to use and write the cache.
        hashes: Hashes of the contents of the images, if they are known; see `hash_contents`.
        after_batch: Function that is called with the number of finished images, at first with those of the
            cache. The computation ends if it returns False, or raises an exception. Finished features are
            then stored.

    Raises:
        UserError: An image can't be read, or the model does not fit.
    """
    folder: Path | None = None
    keys: Mapping[int, bytes] = {}
    if cached:
        folder = feature_folder(model, source.describe(view))
        keys = hash_contents(source.index) if hashes is None else hashes
    cache = FeatureCache(folder)
    known = {position: row for position, key in keys.items() if (row := cache.get(key)) is not None}
    missing = [position for position in range(len(source.index)) if position not in known]
    if source.shuffled:
        missing = np.random.default_rng(source.run.seed).permutation(missing).tolist()
    after_batch(len(known))
    computed = 0
    try:
        if missing:
            saved = time.monotonic()
            loader = source.loader(missing, view)
            try:
                for positions, rows in model.compute(loader):
                    known |= zip(positions.tolist(), rows, strict=True)
                    cache.add([keys.get(position) for position in positions.tolist()], rows)
                    if time.monotonic() - saved > _SAVE_SECONDS:
                        _save(cache)
                        saved = time.monotonic()
                    computed += len(positions)
                    if after_batch(len(positions)) is False:
                        break
            finally:
                loader.release()
    finally:
        _save(cache)
    if not known:
        raise UserError(f"{source.index.source}: no image could be read")
    width = len(next(iter(known.values())))
    result = np.full((len(source.index), width), np.nan, np.float32)
    for position, row in known.items():
        result[position] = row
    return Features(result, computed)


def feature_folder(model: FeatureModel, about: object) -> Path:
    """Returns the folder of stored features, by the weights and the preparation of the images."""
    return cache_folder(_FOLDER) / model.fingerprint(about)


def _save(cache: FeatureCache) -> None:
    try:
        cache.save()
    except OSError as error:
        place = error.filename or cache_folder(_FOLDER)
        raise UserError(
            f"{place}: can't store features: {error.strerror}; set PPCLS_HOME to a writable folder, or "
            "LinearHead.cache=False"
        ) from None
