"""Runs models on image files that threads or DALI load, and searches image galleries."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ppcls.data.bad_images.quarantine import AllRejectedError, RejectedImages
from ppcls.data.images.paths import NOT_REGULAR, is_special_file
from ppcls.data.index.files import list_files, read_image
from ppcls.data.loaders.dali.settings import resolve_dali_settings
from ppcls.deploy.image_index import ImageIndex
from ppcls.deploy.models.slices import SLICE, SlicedModel
from ppcls.deploy.predictor import Array, InferenceModel, Predictor
from ppcls.errors import UserError
from ppcls.files import one_line
from ppcls.postprocess.results import Classification, Embedding, NearestImages, Prediction
from ppcls.runtime.start import Runtime

_PREFETCHED = 3  # number of batches that are prepared ahead


def table_columns(classes: int) -> list[str]:
    """Returns the columns of a table of results: path, error, and class and score of the best classes."""
    return ["path", "error", *(name for rank in range(1, classes + 1) for name in rank_columns(rank))]


def rank_columns(rank: int) -> tuple[str, str]:
    """Returns the columns of the class with a rank, from 1: ``class`` and ``score`` for the best."""
    suffix = "" if rank == 1 else f"_{rank}"
    return f"class{suffix}", f"score{suffix}"


@dataclass(frozen=True)
class PredictedFile:
    """Prediction for one image file."""

    file: Path
    result: Prediction | NearestImages

    def __str__(self) -> str:
        return f"{one_line(self.file)}: {self.result}"

    @property
    def best_class(self) -> int | None:
        """Number of the class with the highest score; None if the result has no classes."""
        classes = self.result.class_ids if isinstance(self.result, Classification) else ()
        return classes[0] if classes else None

    def with_min_score(self, limit: float) -> PredictedFile:
        """Returns the result without the classes whose score is below ``limit``.

        Raises:
            UserError: The result has no classes.
        """
        if not isinstance(self.result, Classification):
            raise UserError("--min-score: this model returns no classes; remove this option")
        return replace(self, result=self.result.above(limit))

    def as_json(self) -> str:
        """Returns one line of JSON in ASCII: the path, and the keys of the result's ``as_tree``."""
        return json.dumps({"path": str(self.file), **self.result.as_tree()}, allow_nan=False)

    def as_row(self) -> dict[str, str]:
        """Returns the cells of a table of results by column, with all classes of the result.

        Raises:
            UserError: The result has no classes.
        """
        if not isinstance(self.result, Classification):
            raise UserError(
                "--out: this model returns no classes, which are the columns of a table; choose a file name "
                "that ends in .jsonl"
            )
        names = self.result.names or tuple(map(str, self.result.class_ids))
        if self.result.unknown and names:
            names = ("unknown", *names[1:])
        row = {"path": one_line(self.file)}
        for rank, (name, score) in enumerate(zip(names, self.result.scores, strict=True), start=1):
            row |= dict(zip(rank_columns(rank), (one_line(name), str(score)), strict=True))
        return row


@dataclass(frozen=True)
class FailedFile:
    """Image file that could not be read or prepared."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{one_line(self.file)}: error: {self.reason}"

    def with_min_score(self, limit: float) -> FailedFile:  # noqa: ARG002
        """Returns the result unchanged, because it has no classes."""
        return self

    def as_json(self) -> str:
        """Returns one line of JSON in ASCII, with the keys ``path`` and ``error``."""
        return json.dumps({"path": str(self.file), "error": self.reason})

    def as_row(self) -> dict[str, str]:
        """Returns the cells of a table of results by column."""
        return {"path": one_line(self.file), "error": self.reason}


Result = PredictedFile | FailedFile


def predict_files(predictor: Predictor, files: Sequence[Path], runtime: Runtime | None) -> Iterator[Result]:
    """Runs a model on image files in batches, and yields one result per file, in order.

    Args:
        predictor: Model.
        files: Image files.
        runtime: Device, which is required if DALI loads the images.

    Raises:
        UserError: An output of the model is not finite, or DALI does not support a transform.
    """
    if not predictor.source.by_dali:
        return _predict_with_threads(predictor, files)
    assert runtime is not None
    if predictor.description.PreProcess.in_graph is True:
        raise UserError(
            f"{predictor.source.file}: DALI cannot load images for a model that resizes them itself; set "
            "Global.use_dali=False, or export with --preprocess normalize"
        )
    return _predict_with_dali(predictor, files, runtime)


def search(
    predictor: Predictor, gallery: Sequence[Path], files: Sequence[Path], count: int, runtime: Runtime | None
) -> Iterator[Result]:
    """Searches a gallery for the nearest images of each file.

    Yields the images of the gallery that cannot be read, then one result per file, in order.

    Args:
        predictor: Embedding model.
        gallery: Images to search.
        files: Query images.
        count: Number of nearest images per query.
        runtime: Device, which is required if DALI loads the images.

    Raises:
        UserError: The model does not return embeddings, no image of the gallery can be read, or
            `predict_files` fails.
    """
    embeddings, failed = embed_files(predictor, gallery, runtime)
    yield from failed
    if not embeddings:
        raise UserError("no image of the gallery can be read; the lines above give the reasons")
    index = ImageIndex(tuple(embeddings), np.stack(list(embeddings.values())))
    for result in predict_files(predictor, files, runtime):
        if isinstance(result, PredictedFile):
            assert isinstance(result.result, Embedding)
            (nearest,) = index.nearest(result.result.vector[None], count)
            result = PredictedFile(result.file, nearest)
        yield result


def embed_files(
    predictor: Predictor, files: Sequence[Path], runtime: Runtime | None
) -> tuple[dict[Path, Array], list[FailedFile]]:
    """Returns the embedding of each file, and the files that cannot be read.

    Args:
        predictor: Embedding model.
        files: Image files.
        runtime: Device, which is required if DALI loads the images.

    Raises:
        UserError: The model does not return embeddings, or `predict_files` fails.
    """
    if not predictor.embeds:
        raise UserError(
            f"{predictor.source.file}: expected an embedding model (RecModel), found a classifier"
        )
    embeddings: dict[Path, Array] = {}
    failed: list[FailedFile] = []
    for result in predict_files(predictor, files, runtime):
        if isinstance(result, FailedFile):
            failed.append(result)
        else:
            assert isinstance(result.result, Embedding)
            embeddings[result.file] = result.result.vector
    return embeddings, failed


def _predict_with_threads(predictor: Predictor, files: Sequence[Path]) -> Iterator[Result]:
    """Prepares images in threads while the model runs.

    A `SlicedModel` needs no batches: each thread prepares a slice, and runs the model on it.
    """
    model = predictor.model
    per_core = model.per_core if isinstance(model, SlicedModel) else None
    size = predictor.batch_size if per_core is None else min(SLICE, predictor.batch_size)

    def prepare(file: Path) -> Array | FailedFile:
        try:
            return predictor.prepare(read_image(os.fsencode(file)))
        except ValueError as error:
            return FailedFile(file, str(error))

    def submit(batch: Sequence[Path]) -> Callable[[], list[Result]]:
        """Starts to process a batch, and returns a function that waits for its results."""
        if per_core is not None:
            return pool.submit(lambda: _run_batch(predictor, per_core, batch, map(prepare, batch))).result
        prepared = [pool.submit(prepare, file) for file in batch]
        return lambda: _run_batch(predictor, model, batch, (future.result() for future in prepared))

    threads = model.cores if isinstance(model, SlicedModel) else predictor.cores
    ahead = _PREFETCHED if per_core is None else _PREFETCHED + threads
    batches: deque[Callable[[], list[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(files), size):
            batches.append(submit(files[first : first + size]))
            if len(batches) > ahead:
                yield from batches.popleft()()
        while batches:
            yield from batches.popleft()()


def _run_batch(
    predictor: Predictor, model: InferenceModel, files: Sequence[Path], prepared: Iterable[Array | FailedFile]
) -> list[Result]:
    results = list(prepared)
    images = [result for result in results if not isinstance(result, FailedFile)]
    outputs = iter(predictor.run(images, model if len(images) == SLICE else None))
    return [
        result if isinstance(result, FailedFile) else PredictedFile(file, predictor.interpret(next(outputs)))
        for file, result in zip(files, results, strict=True)
    ]


def _predict_with_dali(predictor: Predictor, files: Sequence[Path], runtime: Runtime) -> Iterator[Result]:
    """Runs a model on image files that DALI loads and prepares in the same way as for evaluation."""
    from ppcls.data.build import build_file_loader

    rejected = RejectedImages(list_files(files))
    batch_bytes = predictor.batch_size * predictor.description.input_bytes
    dali = resolve_dali_settings(predictor.source.dali, runtime, batch_bytes)
    loader = build_file_loader(rejected, predictor.chain, predictor.batch_size, dali)
    done = 0
    try:
        # DALI would wait forever for data from a pipe.
        rejected.add({index: NOT_REGULAR for index, file in enumerate(files) if is_special_file(file)})
        for batch in loader:
            assert batch.positions is not None
            outputs: dict[int, Array] = {}
            if batch.valid:
                rows = predictor.check_outputs(predictor.model.run(batch.image)[: batch.valid])
                outputs = dict(zip(batch.positions[: batch.valid].tolist(), rows, strict=True))
            for index in range(done, min(done + predictor.batch_size, len(files))):
                if index in outputs:
                    yield PredictedFile(files[index], predictor.interpret(outputs[index]))
                else:
                    yield FailedFile(files[index], rejected.reasons[index])
            done += predictor.batch_size
    except AllRejectedError:
        for index in range(done, len(files)):
            yield FailedFile(files[index], rejected.reasons[index])
    finally:
        loader.release()


class NotAllPredictedError(UserError):
    """Raised if some images could not be predicted. The exit code is 3."""

    code = 3
