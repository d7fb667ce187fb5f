"""Prediction: image files to their most probable classes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.config.schema import Config
from ppcls.config.sections import Infer
from ppcls.data.bad_images import BadImageError
from ppcls.data.file_index import read_image
from ppcls.data.numpy_ops import run
from ppcls.data.transforms import plan_chain
from ppcls.engine.precision import build_precision
from ppcls.engine.state import build_network
from ppcls.engine.weights import fill_model, read_weights
from ppcls.errors import UserError
from ppcls.runtime import Runtime

_NO_DRAWS = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Prediction:
    """One class that an image may show.

    Attributes:
        class_id: From 0.
        name: Of the class; None where no ``class_id_map_file`` tells it.
        score: Probability, 0..1.
    """

    class_id: int
    name: str | None
    score: float

    def __str__(self) -> str:
        named = f" {self.name}" if self.name is not None else ""
        return f"{self.class_id}{named} {self.score * 100:.2f} %"


@dataclass(frozen=True)
class Predicted:
    """What the model says of one image: its best classes, the best first."""

    file: Path
    predictions: tuple[Prediction, ...]

    def __str__(self) -> str:
        return f"{_printable(self.file)}: {', '.join(map(str, self.predictions))}"


@dataclass(frozen=True)
class Failed:
    """An image that could not be read or prepared, and why."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{_printable(self.file)}: {self.reason}"


class Predictor:
    """A model with all that turns image files into classes.

    Args:
        config: The whole config.
        settings: Its section ``Infer``.
        names: [class_num] of the classes; None where nothing tells them.
        source: The weights, as `ppcls.engine.weights.read_weights` takes them.
        runtime: Device and cores.

    Raises:
        UserError: The weights can't be read or are another model's, or the precision does not suit
            the device.
    """

    def __init__(
        self, config: Config, settings: Infer, names: Sequence[str] | None, source: Path, runtime: Runtime
    ) -> None:
        self._ops = plan_chain(settings.transforms, "CHW" if config.Arch.data_format == "NCHW" else "HWC")
        self._batch_size, self._topk = settings.batch_size, settings.PostProcess.topk
        self._names, self._source, self._cores = names, source, runtime.cores
        self._precision = build_precision(config.AMP, runtime.device)
        self._model = build_network(config)
        fill_model(self._model, read_weights(source), source)
        self._precision.prepare(self._model, None)
        self._model.eval()

    def predict(self, files: Sequence[Path]) -> Iterator[Predicted | Failed]:
        """Predicts files in batches; yields one result a file, in their order.

        Raises:
            UserError: A score is not finite.
        """
        with ThreadPoolExecutor(self._cores) as pool:
            for begin in range(0, len(files), self._batch_size):
                prepared = list(pool.map(self._prepare, files[begin : begin + self._batch_size]))
                images = [each for each in prepared if not isinstance(each, Failed)]
                scores = iter(self._scores(np.stack(images)) if images else [])
                for file, each in zip(files[begin:], prepared, strict=False):
                    yield each if isinstance(each, Failed) else self._best(file, next(scores))

    def _prepare(self, file: Path) -> NDArray[np.float32] | Failed:
        """Returns [C, H, W] or [H, W, C] float32, or why there is none."""
        try:
            return run(self._ops, read_image(os.fsencode(file)), _NO_DRAWS)
        except ValueError as error:
            return Failed(file, str(error))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _scores(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Maps [B, C, H, W] or [B, H, W, C] float32 to probabilities [B, class_num] float32."""
        with self._precision.evaluation():
            logits = self._model(self._precision.images(paddle.to_tensor(images), training=False))
        scores: NDArray[np.float32] = paddle.nn.functional.softmax(logits.astype("float32")).numpy()
        return scores

    def _best(self, file: Path, scores: NDArray[np.float32]) -> Predicted:
        if not np.isfinite(scores).all():
            raise UserError(
                f"{_printable(file)}: the model's scores are not finite; "
                f"{self._source} holds weights that overflow or are not numbers"
            )
        best = np.argsort(-scores, kind="stable")[: self._topk].tolist()
        names = self._names
        return Predicted(
            file, tuple(Prediction(k, names[k] if names else None, float(scores[k])) for k in best)
        )


def as_json(results: Sequence[Predicted]) -> str:
    """Returns a JSON list of ``{"file", "predictions": [{"class_id", "name", "score"}]}``, in ASCII."""
    tree: list[Any] = [{**asdict(each), "file": str(each.file)} for each in results]
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def refuse_failed(failed: Sequence[Failed], count: int) -> None:
    """Ends a prediction of ``count`` images.

    Raises:
        BadImageError: Some failed; names each with its reason.
    """
    if failed:
        heading = f"{len(failed)} of {count} images could not be predicted"
        raise BadImageError("\n  ".join([heading, *map(str, failed)]))


def _printable(path: Path) -> str:
    """Returns a path with what is not UTF-8 in it escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")
