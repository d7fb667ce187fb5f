"""Computes the features of the images of a data set with a trained classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.arch.section import Arch
from ppcls.config.base.overrides import Override
from ppcls.data.index.protocol import Index
from ppcls.data.section import Split
from ppcls.data.transforms.base import Transform
from ppcls.deploy.models.source import find_source
from ppcls.engine.autotune.autotune import choose_cpu_kernels
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.runtime.paddle_import import choose_threads
from ppcls.runtime.start import start

_BATCH = 32


@dataclass(frozen=True)
class ImageModel:
    """A trained classifier that computes features of images.

    Attributes:
        config: Config of the model.
        arch: Section ``Arch`` of the config.
        weights: File or folder of the weights.
    """

    config: Config
    arch: Arch
    weights: Path

    @property
    def transforms(self) -> Sequence[Transform]:
        """Transforms that prepare an image, as in a loader."""
        assert self.config.Infer is not None  # checked by find_image_model
        return [op for op in self.config.Infer.transforms if op.kind != "ToCHWImage"]


def find_image_model(path: str, overrides: Sequence[Override] = (), *, trust: bool = False) -> ImageModel:
    """Returns a model, without loading Paddle or the weights.

    Args:
        path: Name of an architecture with published weights, or a checkpoint or output folder of a run.
        overrides: Settings that change the config of the model.
        trust: Whether the model may import modules that its config names.

    Raises:
        UserError: There is no such model, or it is not a trained classifier.
    """
    source = find_source(Path(path), overrides, trust=trust)
    config = source.config
    if config is None or not isinstance(config.Arch, Arch) or config.Infer is None:
        kind = "an exported model" if config is None else f"{config.Arch.name} without a section Infer"
        raise UserError(
            f"{path}: expected a trained classifier, such as EfficientNet_lite0 or the output folder of "
            f"a run, found {kind}"
        )
    return ImageModel(config, config.Arch, source.file)


def compute_image_features(
    index: Index, model: ImageModel, folder: Path, after_batch: Callable[[int], None] = lambda _images: None
) -> NDArray[np.float32]:
    """Returns the features of images, [N, D] float32; NaN for images that can't be read.

    Loads Paddle. Features are stored in the cache of the linear head.

    Args:
        index: The images.
        model: The model.
        folder: Folder in which ``bad_images.txt`` lists the images that can't be read.
        after_batch: Function that is called with the number of finished images.

    Raises:
        UserError: The weights can't be read, or the model has no features.
    """
    threads = choose_threads(model.config.Global.cpu_threads)
    runtime = start(model.config.Global.model_copy(update={"cpu_threads": threads}))
    from ppcls.arch.fuse import fuse
    from ppcls.deploy.models.trained import load_network
    from ppcls.engine.core.precision import build_precision
    from ppcls.engine.head.features import FeatureModel, ImageSource, compute_features

    config = model.config
    way = (
        choose_cpu_kernels(config.Global, config.Global, config.Arch, config.AMP)
        if runtime.device == "cpu"
        else None
    )
    arch = model.arch if way is None else model.arch.with_data_format("NHWC")
    network = load_network(arch, config.Loss.Train, model.weights)
    network.eval()
    if way is not None:
        fuse(network, "cpu")
    precision = build_precision(model.config.AMP, runtime.device)
    precision.prepare(network, None)
    split = Split.model_validate(
        {
            "dataset": {
                "name": "ImageFolderDataset",
                "image_root": str(index.source),
                "transform_ops": [{op.kind: op.model_dump(mode="json")} for op in model.transforms],
                "on_error": "skip",
            },
            "sampler": {"name": "DistributedBatchSampler", "batch_size": _BATCH},
        }
    )
    settings = model.config.Global.model_copy(update={"output_dir": str(folder)})
    source = ImageSource(split, index, runtime, settings, arch)
    return compute_features(source, FeatureModel(network, precision), after_batch=after_batch).rows
