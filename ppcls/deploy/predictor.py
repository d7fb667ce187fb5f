"""Images to classes or embeddings, by any model: trained, exported for Paddle Inference, or ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ppcls.config.base.fields import show
from ppcls.config.load import apply_override, validate
from ppcls.config.schema import Config
from ppcls.data.transforms.numpy_ops import run, run_on_pixels
from ppcls.deploy.models.choose import choose
from ppcls.deploy.models.source import Source, configured, find_source
from ppcls.deploy.results import Answer, Embedding, Result
from ppcls.errors import UserError
from ppcls.runtime.hardware import usable_cores
from ppcls.runtime.start import Runtime, start

Array = NDArray[Any]
Image = bytes | memoryview | Array
_NO_DRAWS = np.zeros(0, np.float32)


class Model(Protocol):
    """What predicts."""

    def run(self, images: Any) -> Array:
        """Maps images to probabilities, or to embeddings of length 1.

        Args:
            images: [B, C, H, W] or [B, H, W, C], float32 or float16: a numpy array, or a tensor of Paddle's
                on the model's device.

        Returns:
            [B, class_num] float32, or [B, D].
        """


class Predictor:
    """A model with all that turns images into answers; for one caller at a time, but for `prepare`.

    Args:
        model: A checkpoint folder, a run's output folder (its best model), a folder that ``tools/export.py``
            wrote or an ``.onnx`` file in it, the YAML file of a config; or a config.
        topk: Classes of each image; by default as the model says.
        batch_size: Images that are predicted at once; by default as the config says.
        device: By default as the config says; of an exported model, a GPU where there is one.
        overrides: ``path=value`` each, of the config; for an exported model of ``Global`` and ``Infer``.
        runtime: Device and cores, where they are settled already.

    Attributes:
        source: Where the model is from.
        description: How its input is made, and what its output means.
        batch_size: Images that are predicted at once.
        model: What predicts.
        cores: CPU cores to prepare images with.
        chain: The transforms that make the input.

    Raises:
        UserError: There is no such model, it can't be loaded, or an argument does not suit it.
    """

    def __init__(
        self,
        model: str | Path | Config | Source,
        *,
        topk: int | None = None,
        batch_size: int | None = None,
        device: Literal["auto", "gpu", "cpu"] | None = None,
        overrides: Sequence[str] = (),
        runtime: Runtime | None = None,
    ) -> None:
        asked = [
            ("Infer.PostProcess.topk", topk),
            ("Infer.batch_size", batch_size),
            ("Global.device", device),
        ]
        overrides = [*overrides, *(f"{key}={value}" for key, value in asked if value is not None)]
        self.source = _find(model, overrides)
        self.description, self.batch_size = self.source.description, self.source.infer.batch_size
        if self.embeds and topk is not None:
            raise UserError(f"{self.source.file}: the model gives embeddings, no classes; remove topk")
        self.model, self.cores = _load(self.source, runtime)
        self.chain = self.description.chain()

    @property
    def names(self) -> tuple[str, ...] | None:
        """[class_num] names of all classes; None where nobody named them."""
        return self.description.names

    @property
    def embeds(self) -> bool:
        """Whether the model gives embeddings; else classes."""
        return self.description.told is None

    def predict(self, images: Sequence[Image]) -> list[Result]:
        """Returns the classes of each image, in their order.

        Args:
            images: The bytes of an image file each, or RGB pixels [H, W, 3] uint8.

        Raises:
            ValueError: One can't be decoded or is no such array; it is named by its place, from 0.
            UserError: A score is not finite, or the model gives embeddings.
        """
        if self.embeds:
            raise UserError(f"{self.source.file}: the model gives embeddings, no classes; call embed")
        return cast(list[Result], self._answer_all(images))

    def embed(self, images: Sequence[Image]) -> list[Embedding]:
        """Returns the embedding of each image, in their order; the arguments are those of `predict`.

        Raises:
            ValueError: As of `predict`.
            UserError: A number is not finite, or the model gives classes.
        """
        if not self.embeds:
            raise UserError(f"{self.source.file}: the model gives classes, no embeddings; call predict")
        return cast(list[Embedding], self._answer_all(images))

    def prepare(self, image: Image) -> Array:
        """Returns the model's input for one image: [C, H, W] or [H, W, C] float32. Any thread may call it.

        For a model that prepares images itself, these are the image's own pixels, [H, W, 3] uint8.

        Raises:
            ValueError: It can't be decoded, or is no array [H, W, 3] of uint8.
        """
        if isinstance(image, np.ndarray):
            return run_on_pixels(self.chain, image)
        if not isinstance(image, (bytes, bytearray, memoryview)):
            raise ValueError(
                "expected the bytes of an image file, such as Path('photo.jpg').read_bytes(), or an array of "
                f"RGB pixels [height, width, 3] of uint8, got {show(image)}"
            )
        return run(self.chain, image, _NO_DRAWS)

    def answer(self, prepared: Sequence[Array]) -> list[Answer]:
        """Returns one answer for each image that `prepare` made, of one batch.

        Raises:
            UserError: A number is not finite.
        """
        found: dict[int, Answer] = {}
        shapes = [each.shape for each in prepared]
        for shape in dict.fromkeys(shapes):  # one, but for models that prepare images themselves
            rows = [row for row, each in enumerate(shapes) if each == shape]
            outputs = self.model.run(np.stack([prepared[row] for row in rows]))
            found |= zip(rows, self.answers(outputs), strict=True)
        return [found[row] for row in range(len(prepared))]

    def answers(self, outputs: Array) -> list[Answer]:
        """Maps what the model gave, probabilities [B, class_num] or embeddings [B, D], to answers.

        Raises:
            UserError: A number is not finite.
        """
        if not np.isfinite(outputs).all():
            what = "embeddings" if self.embeds else "scores"
            raise UserError(
                f"{self.source.file}: the model's {what} are not finite; "
                "its weights overflow or are not numbers"
            )
        told, names = self.description.told, self.names
        if told is None:
            return [Embedding(each) for each in outputs]
        chosen = [choose(told, each) for each in outputs]
        return [
            Result(
                tuple(row.tolist()),
                tuple(names[each] for each in row) if names is not None else None,
                tuple(of[row].tolist()),
            )
            for row, of in zip(chosen, outputs, strict=True)
        ]

    def _answer_all(self, images: Sequence[Image]) -> list[Answer]:
        if isinstance(images, (str, bytes, bytearray, memoryview, PurePath)):
            raise ValueError(f"expected a list of images, got {show(images)}; put the image into a list")
        answers: list[Answer] = []
        waiting = iter(self._prepared(images))
        while batch := list(islice(waiting, self.batch_size)):
            answers += self.answer(batch)
        return answers

    def _prepared(self, images: Sequence[Image]) -> Iterator[Array]:
        """Yields the model's inputs, made by as many threads as there are cores."""

        def prepare(position: int) -> Array:
            try:
                return self.prepare(images[position])
            except ValueError as error:
                raise ValueError(f"images[{position}]: {error}") from None

        if len(images) == 1:
            yield prepare(0)
            return
        with ThreadPoolExecutor(self.cores) as pool:
            yield from pool.map(prepare, range(len(images)))


def _find(model: str | Path | Config | Source, overrides: Sequence[str]) -> Source:
    if isinstance(model, Source):
        return model
    if not isinstance(model, Config):
        return find_source(Path(model), overrides)
    if not overrides:
        return configured(model)
    tree = model.model_dump(mode="json")
    for override in overrides:
        apply_override(tree, override)
    return configured(validate(tree, "config"))


def _load(source: Source, runtime: Runtime | None) -> tuple[Model, int]:
    """Loads a model; returns it with the number of cores."""
    if not source.needs_paddle:
        from ppcls.deploy.models.onnx import OnnxModel

        cores = usable_cores() if runtime is None else runtime.cores
        threads = source.run.cpu_threads or cores
        return OnnxModel(source.file, source.description, source.run.device, threads), cores
    runtime = runtime or start(source.run)
    if source.config is not None:
        from ppcls.deploy.models.trained import TrainedModel

        return TrainedModel(source.config, source.description, source.file, runtime), runtime.cores
    from ppcls.deploy.models.paddle_inference import PaddleInferenceModel

    return PaddleInferenceModel(source.file, source.description, runtime), runtime.cores
