"""Prediction on files: image files to their most probable classes, or to embeddings."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ppcls.data.bad_images.quarantine import AllRejectedError, RejectedImages
from ppcls.data.images.paths import NOT_REGULAR, is_special_file
from ppcls.data.index.files import list_files, read_image
from ppcls.data.loaders.dali.settings import resolve_dali_settings
from ppcls.deploy.predictor import Array, Predictor
from ppcls.deploy.results import Answer, Embedding, Gallery, Nearest, printable
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

_AHEAD = 3  # batches whose images are prepared while the model is busy


@dataclass(frozen=True)
class Predicted:
    """What the model says of one file."""

    file: Path
    result: Answer | Nearest

    def __str__(self) -> str:
        return f"{printable(self.file)}: {self.result}"

    def as_json(self) -> str:
        """Returns ``{"path", "class_ids", "names", "scores"}`` or ``{"path", "embedding"}``, in ASCII."""
        return json.dumps({"path": str(self.file), **self.result.as_tree()}, allow_nan=False)


@dataclass(frozen=True)
class Failed:
    """An image that could not be read or prepared, and why."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{printable(self.file)}: error: {self.reason}"

    def as_json(self) -> str:
        """Returns ``{"path", "error"}``, in ASCII."""
        return json.dumps({"path": str(self.file), "error": self.reason})


def predict_files(
    predictor: Predictor, files: Sequence[Path], runtime: Runtime | None
) -> Iterator[Predicted | Failed]:
    """Predicts files in batches; yields one result a file, in their order.

    Args:
        predictor: The model.
        files: Of the images.
        runtime: Where DALI feeds, if it does.

    Raises:
        UserError: A score is not finite, or DALI can't do a transform.
    """
    if predictor.source.by_dali:
        assert runtime is not None
        if predictor.description.PreProcess.in_graph:
            raise UserError(
                f"{predictor.source.file}: prepares its images itself, so DALI has nothing to do; "
                "set Global.use_dali=False, or export without --preprocess"
            )
        return _by_dali(predictor, files, runtime)
    return _by_threads(predictor, files)


def search(
    predictor: Predictor, gallery: Sequence[Path], files: Sequence[Path], count: int, runtime: Runtime | None
) -> Iterator[Predicted | Failed]:
    """Finds what is near to files; yields the bad images of the gallery, then one result a file, in order.

    Args:
        predictor: Of embeddings.
        gallery: The images to look among.
        files: Of the images to find the nearest of.
        count: How many of these.
        runtime: Where DALI feeds, if it does.

    Raises:
        UserError: As of `predict_files`; or the model gives no embeddings, or the gallery has no good image.
    """
    if not predictor.embeds:
        raise UserError(f"{predictor.source.file}: gives classes; a gallery needs embeddings (RecModel)")
    shown: list[Path] = []
    embeddings: list[Embedding] = []
    for each in predict_files(predictor, gallery, runtime):
        if isinstance(each, Failed):
            yield each
            continue
        assert isinstance(each.result, Embedding)
        shown.append(each.file)
        embeddings.append(each.result)
    if not shown:
        raise UserError("no image of the gallery can be read; their lines say why")
    among = Gallery(shown, embeddings)
    for each in predict_files(predictor, files, runtime):
        if isinstance(each, Predicted):
            assert isinstance(each.result, Embedding)
            each = Predicted(each.file, among.nearest(each.result, count))
        yield each


def _by_threads(predictor: Predictor, files: Sequence[Path]) -> Iterator[Predicted | Failed]:

    def prepare(file: Path) -> Array | Failed:
        try:
            return predictor.prepare(read_image(os.fsencode(file)))
        except ValueError as error:
            return Failed(file, str(error))

    waiting: deque[list[tuple[Path, Future[Any]]]] = deque()
    with ThreadPoolExecutor(predictor.cores) as pool:
        for begin in range(0, len(files), predictor.batch_size):
            batch = files[begin : begin + predictor.batch_size]
            waiting.append([(file, pool.submit(prepare, file)) for file in batch])
            if len(waiting) > _AHEAD:
                yield from _finish(predictor, waiting.popleft())
        while waiting:
            yield from _finish(predictor, waiting.popleft())


def _finish(predictor: Predictor, batch: list[tuple[Path, Future[Any]]]) -> Iterator[Predicted | Failed]:
    prepared = [(file, future.result()) for file, future in batch]
    results = iter(predictor.answer([each for _, each in prepared if not isinstance(each, Failed)]))
    for file, each in prepared:
        yield each if isinstance(each, Failed) else Predicted(file, next(results))


def _by_dali(predictor: Predictor, files: Sequence[Path], runtime: Runtime) -> Iterator[Predicted | Failed]:
    """Predicts images that DALI makes as it does for evaluation."""
    from ppcls.data.build import build_file_loader

    rejected = RejectedImages(list_files(files))
    loader = build_file_loader(
        rejected, predictor.chain, predictor.batch_size, resolve_dali_settings(predictor.source.dali, runtime)
    )
    done = 0
    try:
        # DALI would wait for a pipe.
        rejected.add({at: NOT_REGULAR for at, file in enumerate(files) if is_special_file(file)})
        for batch in loader:
            assert batch.positions is not None
            positions = batch.positions[: batch.valid].tolist()
            outputs = predictor.model.run(batch.image)[: batch.valid] if positions else np.zeros((0, 1))
            results = dict(zip(positions, predictor.answers(outputs), strict=True))
            for position in range(done, min(done + predictor.batch_size, len(files))):
                yield _told(files[position], results.get(position), rejected.reasons.get(position))
            done += predictor.batch_size
    except AllRejectedError:
        for position in range(done, len(files)):
            yield Failed(files[position], rejected.reasons[position])
    finally:
        loader.release()


def _told(file: Path, result: Answer | None, reason: str | None) -> Predicted | Failed:
    if result is not None:
        return Predicted(file, result)
    assert reason is not None
    return Failed(file, reason)


class NotAllPredictedError(UserError):
    """Some images could not be predicted; the others were."""

    code = 3


def refuse_failed(failed: int, count: int) -> None:
    """Ends a prediction of ``count`` images.

    Raises:
        NotAllPredictedError: Some failed.
    """
    if failed:
        raise NotAllPredictedError(
            f"{failed} of {count} images could not be predicted; their lines say why (--on-error)"
        )
