"""Prediction on files: image files to their most probable classes."""

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

from ppcls.data.dali_settings import resolve
from ppcls.data.file_index import list_files, read_image
from ppcls.data.quarantine import AllRejectedError, Rejected
from ppcls.deploy.predictor import Array, Predictor, Result
from ppcls.errors import UserError
from ppcls.runtime import Runtime

_AHEAD = 3  # batches whose images are prepared while the model is busy


@dataclass(frozen=True)
class Predicted:
    """What the model says of one file."""

    file: Path
    result: Result

    def __str__(self) -> str:
        return f"{_printable(self.file)}: {self.result}"

    def as_json(self) -> str:
        """Returns ``{"path", "class_ids", "names", "scores"}``, in ASCII."""
        result = self.result
        tree = {"class_ids": result.class_ids, "names": result.names, "scores": result.scores}
        return json.dumps({"path": str(self.file), **tree}, allow_nan=False)


@dataclass(frozen=True)
class Failed:
    """An image that could not be read or prepared, and why."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{_printable(self.file)}: error: {self.reason}"

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
    results = iter(predictor.classify([each for _, each in prepared if not isinstance(each, Failed)]))
    for file, each in prepared:
        yield each if isinstance(each, Failed) else Predicted(file, next(results))


def _by_dali(predictor: Predictor, files: Sequence[Path], runtime: Runtime) -> Iterator[Predicted | Failed]:
    """Predicts images that DALI makes as it does for evaluation."""
    from ppcls.data.build import build_file_loader

    rejected = Rejected(list_files(files))
    loader = build_file_loader(
        rejected, predictor.chain, predictor.batch_size, resolve(predictor.source.dali, runtime)
    )
    done = 0
    try:
        for batch in loader:
            assert batch.positions is not None
            positions = batch.positions[: batch.valid].tolist()
            scores = predictor.model.scores(batch.image)[: batch.valid] if positions else np.zeros((0, 1))
            results = dict(zip(positions, predictor.best(scores), strict=True))
            for position in range(done, min(done + predictor.batch_size, len(files))):
                yield _told(files[position], results.get(position), rejected.reasons.get(position))
            done += predictor.batch_size
    except AllRejectedError:
        for position in range(done, len(files)):
            yield Failed(files[position], rejected.reasons[position])
    finally:
        loader.release()


def _told(file: Path, result: Result | None, reason: str | None) -> Predicted | Failed:
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


def _printable(path: Path) -> str:
    """Returns a path with what is not UTF-8 in it escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")
