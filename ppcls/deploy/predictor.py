"""Predicts classes or embeddings of images with trained or exported models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ppcls.config.base.overrides import Overrides, read_overrides
from ppcls.config.base.problems import show
from ppcls.data.transforms.numpy_ops import run, run_on_pixels
from ppcls.deploy.models.description import DESCRIPTION, ModelDescription
from ppcls.deploy.models.engine import Engine, choose_engine
from ppcls.deploy.models.openvino import OpenVinoModel
from ppcls.deploy.models.programs.onnx_file import check_onnx
from ppcls.deploy.models.programs.openvino_file import check_openvino
from ppcls.deploy.models.slices import SLICE, SlicedModel
from ppcls.deploy.models.source import ModelSource, find_source, source_of_config
from ppcls.engine.autotune.record import choose_inference
from ppcls.errors import UserError
from ppcls.files.urls import naming_addresses
from ppcls.postprocess.results import Classification, Embedding, Prediction
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.runtime.hardware import usable_cores
from ppcls.runtime.start import Runtime, start
from ppcls.storage.models import model_path

if TYPE_CHECKING:
    from ppcls.deploy.models.onnx import OnnxModel

Array = NDArray[Any]
Image = bytes | memoryview | Array
_NO_DRAWS = np.zeros(0, np.float32)


class InferenceModel(Protocol):
    """A loaded model.

    Attributes:
        engine: Name of the engine that runs the model, with its version, device and precision.
    """

    engine: str

    def run(self, images: Any) -> Array:
        """Returns probabilities, or embeddings of length 1.

        Args:
            images: Prepared images [B, C, H, W] or [B, H, W, C], float32 or float16, as a NumPy array or as a
                Paddle tensor on the model's device. A model that prepares images itself expects uint8.

        Returns:
            Probabilities [B, class_num] or embeddings [B, D], float32. If the rule for the answer unknown
            needs a score that the model returns, it is a further column.
        """


@runtime_checkable
class JoiningModel(Protocol):
    """An `InferenceModel` that joins images in the memory from which its device copies fastest."""

    def join(self, images: Sequence[Array]) -> Array:
        """Returns a batch [B, ...] of prepared images of the same shape. It is valid until the next call."""


class Predictor:
    """A model with preprocessing and postprocessing. Only `prepare` can be called by several threads at once.

    Args:
        model: Config, source of a model, or any path that `ppcls.deploy.models.source.find_source` accepts
            without trust, such as a checkpoint
            folder, the output folder of a run, or a folder written by ``ppcls export``.
        topk: Number of classes per image; by default the model's ``Infer.PostProcess.topk``.
        batch_size: Number of images per batch; by default the config's ``Infer.batch_size``.
        device: Device to run on; by default the config's ``Global.device``. The default for an exported model
            is a GPU if there is one.
        overrides: Settings ``key=value``, or a mapping of keys to values, that change the config. For an
            exported model, they can change ``Global`` and ``Infer``.
        runtime: Device and cores to use; None to choose them here.

    Attributes:
        source: Files and settings of the model.
        description: Preparation of the model's input, and meaning of its output.
        batch_size: Number of images per batch.
        model: Loaded model.
        cores: Number of CPU cores that prepare images.
        chain: Operations that prepare the input.

    Raises:
        UserError: The model does not exist or cannot be loaded, or an argument is not valid for it.
    """

    @naming_addresses()
    def __init__(
        self,
        model: str | Path | Config | ModelSource,
        *,
        topk: int | None = None,
        batch_size: int | None = None,
        device: Literal["auto", "gpu", "cpu"] | None = None,
        overrides: Overrides = (),
        runtime: Runtime | None = None,
    ) -> None:
        settings = {
            "Infer.PostProcess.topk": topk,
            "Infer.batch_size": batch_size,
            "Global.device": device,
        }
        arguments = {key: value for key, value in settings.items() if value is not None}
        changes = [*read_overrides(overrides), *read_overrides(arguments)]
        if isinstance(model, Config):
            config = load_config(model.model_dump(mode="json"), changes) if changes else model
            self.source = source_of_config(config)
        else:
            self.source = (
                model if isinstance(model, ModelSource) else find_source(model_path(str(model)), changes)
            )
        self.batch_size = self.source.infer.batch_size
        if self.source.description.postprocess is None and topk is not None:
            raise UserError(f"{self.source.file}: the model returns embeddings, not classes; remove topk")
        self.model, self.description, self.cores = _load(self.source, runtime)
        self.chain = self.description.chain()

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the classes, [class_num]; None if they are unknown."""
        return self.description.names

    @property
    def embeds(self) -> bool:
        """Whether the model returns embeddings. Otherwise, it returns classes."""
        return self.description.postprocess is None

    @naming_addresses()
    def predict(self, images: Sequence[Image], topk: int | None = None) -> list[Classification]:
        """Returns the classes of each image, in order.

        Args:
            images: Bytes of image files, or RGB pixels [H, W, 3] uint8.
            topk: See `interpret`.

        Raises:
            ValueError: An image cannot be decoded, or is an invalid array. The message contains its index.
            UserError: A score is not finite, or the model returns embeddings.
        """
        self._require_classes()
        return cast(list[Classification], self._predict(images, topk))

    @naming_addresses()
    def try_predict(
        self, images: Sequence[Image], topk: int | None = None
    ) -> list[Classification | ValueError]:
        """Returns the classes of each image, in order, or the error of an image that cannot be decoded.

        Args:
            images: See `predict`.
            topk: See `interpret`.

        Raises:
            UserError: See `predict`.
        """
        self._require_classes()
        return cast("list[Classification | ValueError]", list(self._try_all(images, topk)))

    @naming_addresses()
    def embed(self, images: Sequence[Image]) -> list[Embedding]:
        """Returns the embedding of each image, in order.

        Args:
            images: See `predict`.

        Raises:
            ValueError: See `predict`.
            UserError: A value is not finite, or the model returns classes.
        """
        if not self.embeds:
            raise UserError(f"{self.source.file}: the model returns classes, not embeddings; call predict")
        return cast(list[Embedding], self._predict(images))

    def prepare(self, image: Image) -> Array:
        """Returns the input of the model for one image, [C, H, W] or [H, W, C] float32.

        For a model that prepares or normalizes images itself, it is the image's pixels, [H, W, 3] uint8.

        Raises:
            ValueError: The image cannot be decoded, or is an array other than [H, W, 3] uint8.
        """
        if isinstance(image, np.ndarray):
            return run_on_pixels(self.chain, image)
        if not isinstance(image, (bytes, bytearray, memoryview)):
            raise ValueError(
                "expected the bytes of an image file, such as Path('photo.jpg').read_bytes(), or an array of "
                f"RGB pixels [height, width, 3] of uint8, got {show(image)}"
            )
        return run(self.chain, image, _NO_DRAWS)

    def run(self, prepared: Sequence[Array], model: InferenceModel | None = None) -> list[Array]:
        """Returns the outputs of the model for a batch, one row per prepared image.

        Args:
            prepared: Outputs of `prepare`.
            model: Loaded model to use instead of ``self.model``.

        Raises:
            UserError: An output is not finite, or the model does not match its description.
        """
        model = model or self.model
        outputs: dict[int, Array] = {}
        shapes = [image.shape for image in prepared]
        for shape in dict.fromkeys(shapes):  # several shapes only for a model that prepares images itself
            rows = [row for row, other in enumerate(shapes) if other == shape]
            batch = join([prepared[row] for row in rows], model)
            outputs |= zip(rows, self.check_outputs(model.run(batch)), strict=True)
        return [outputs[row] for row in range(len(prepared))]

    def check_outputs(self, outputs: Array) -> Array:
        """Checks the outputs of the model, and returns them.

        Raises:
            UserError: An output is not finite, or the shape of the outputs differs from the description.
        """
        self.check_shape(outputs)
        if not np.isfinite(outputs).all():
            outputs_name = "embeddings" if self.embeds else "scores"
            raise UserError(
                f"{self.source.file}: the model returns NaN or infinite {outputs_name}: either its weights "
                "contain NaN, or a computation overflows"
            )
        return self.description.normalize(outputs)

    def check_shape(self, outputs: Array) -> None:
        """Checks the shape of the model's outputs.

        Raises:
            UserError: The shape differs from the description.
        """
        width = self.description.output_width
        if outputs.ndim != 2 or width not in (-1, outputs.shape[1]):
            raise UserError(
                f"{self.source.file}: expected outputs of shape {[-1, width]}, as {DESCRIPTION} describes, "
                f"got {list(outputs.shape)}; export the model again"
            )

    def interpret(self, output: Array, topk: int | None = None) -> Prediction:
        """Returns the prediction for one row of the model's outputs.

        Args:
            output: Row of the outputs of the model; see `InferenceModel.run`.
            topk: Number of classes; None for the model's number. If the model chooses several classes by a
                threshold, this is the maximum number.
        """
        postprocess = self.description.postprocess
        if postprocess is None:
            return Embedding(output)
        rule = self.description.Rejection
        score = None
        if rule is not None and rule.needs_output:
            score = float(output[-1])
            output = output[:-1]
        prediction = postprocess.interpret(output, self.names, topk)
        if rule is not None and isinstance(prediction, Classification):
            known = rule.score_of(output, score)
            unknown = known < rule.limit_of(output)
            prediction = replace(prediction, unknown=unknown, known_score=known)
        return prediction

    def _require_classes(self) -> None:
        if self.embeds:
            raise UserError(f"{self.source.file}: the model returns embeddings, not classes; call embed")

    def _predict(self, images: Sequence[Image], topk: int | None = None) -> list[Prediction]:
        if isinstance(images, (str, bytes, bytearray, memoryview, PurePath)):
            raise ValueError(f"expected a list of images, got {show(images)}; put the image into a list")
        predictions: list[Prediction] = []
        for index, result in enumerate(self._try_all(images, topk)):
            if isinstance(result, ValueError):
                raise ValueError(f"images[{index}]: {result}")
            predictions.append(result)
        return predictions

    def _try_all(self, images: Sequence[Image], topk: int | None = None) -> Iterator[Prediction | ValueError]:
        """Yields the prediction of each image, or the error of an image that cannot be decoded."""
        prepared = iter(self._prepare_all(images))
        while batch := list(islice(prepared, self.batch_size)):
            readable = [image for image in batch if not isinstance(image, ValueError)]
            outputs = iter(self.run(readable) if readable else ())
            for image in batch:
                yield image if isinstance(image, ValueError) else self.interpret(next(outputs), topk)

    def _prepare_all(self, images: Sequence[Image]) -> Iterator[Array | ValueError]:
        """Yields the inputs of the model, which one thread per core prepares, or errors of images."""

        def prepare(index: int) -> Array | ValueError:
            try:
                return self.prepare(images[index])
            except ValueError as error:
                return error

        if len(images) == 1:
            yield prepare(0)
            return
        with ThreadPoolExecutor(self.cores) as pool:
            yield from pool.map(prepare, range(len(images)))


def join(images: Sequence[Array], model: InferenceModel) -> Array:
    """Returns a batch [B, ...] of prepared images of the same shape, which is valid until the next call.

    Args:
        images: Outputs of `Predictor.prepare`.
        model: Model that receives the batch.
    """
    return model.join(images) if isinstance(model, JoiningModel) else np.stack(images)


def _load(source: ModelSource, runtime: Runtime | None) -> tuple[InferenceModel, ModelDescription, int]:
    """Loads a model, and returns it with its description and the number of cores for preparing images."""
    engine = choose_engine(source)
    if engine != "paddle":
        cores = usable_cores() if runtime is None else runtime.cores
        threads = source.run.cpu_threads or cores
        exported = _load_exported(source, engine, threads)
        if threads == 1 or not exported.on_cpu:
            return exported, source.description, cores
        per_core = _load_exported(source, engine, threads, streams=threads)
        return SlicedModel(exported, per_core, threads), source.description, cores
    runtime = runtime or start(source.run)
    if source.config is not None:
        config = source.config
        from ppcls.arch.fuse import InferenceLayers
        from ppcls.deploy.models.trained import TrainedModel, load_network
        from ppcls.engine.core.precision import build_precision

        precision = build_precision(config.AMP, runtime.device)
        kernels, data_format = choose_inference(config.Global)
        layers = InferenceLayers.choose(config.Arch, kernels, runtime.device, precision.name, data_format)
        network = load_network(layers.arch, config.Loss.Train, source.file)
        layers.apply(network, constant=True)
        description = source.description_on(runtime.device)
        trained = TrainedModel(network, precision, source.run, description, source.file, runtime)
        return trained, description, runtime.cores
    if source.builds_network:
        from ppcls.deploy.models.exported_network import load_exported_network

        description = source.description_on(runtime.device)
        built = load_exported_network(source.file, description, source.run, runtime)
        return built, description, runtime.cores
    from ppcls.deploy.models.paddle_inference import PaddleInferenceModel

    model = PaddleInferenceModel(source.file, source.description, runtime, trust=source.trust)
    return model, source.description, runtime.cores


def _load_exported(
    source: ModelSource, engine: Engine, threads: int, streams: int = 1
) -> OnnxModel | OpenVinoModel:
    """Loads a model whose `run` can be called by ``streams`` threads, which share ``threads`` CPU threads."""
    if not source.trust:
        (check_onnx if source.file.suffix == ".onnx" else check_openvino)(source.file)
    if engine == "openvino":
        batch = -1 if streams == 1 else SLICE
        return OpenVinoModel(source.file, source.description, threads, streams, batch)
    from ppcls.deploy.models.onnx import OnnxModel

    device = "tensorrt" if engine == "tensorrt" else source.run.device
    return OnnxModel(source.file, source.description, device, threads // streams)
