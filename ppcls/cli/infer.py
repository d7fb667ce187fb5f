"""The command ``ppcls infer``, and the model options that it shares with export and serve."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import parse_model_arguments
from ppcls.config.load import dump_config, load_config
from ppcls.data.images.paths import find_images, read_paths
from ppcls.deploy.models.source import ModelSource, find_source, source_of_config
from ppcls.errors import UserError
from ppcls.runtime.launch import check_single_process

_STDIN = "-"
_NEAREST = 5


def read_source(arguments: argparse.Namespace) -> ModelSource | None:
    """Returns the model of ``-c`` or ``--model``, or None if ``--print-config`` printed its config."""
    if arguments.model is None:
        config = load_config(arguments.config, arguments.override)
        if not arguments.print_config:
            return source_of_config(config)
        sys.stdout.write(dump_config(config))
        return None
    source = find_source(Path(arguments.model), arguments.override)
    if not arguments.print_config:
        return source
    if source.config is None:
        raise UserError(f"--print-config: {arguments.model} is an exported model, which has no config")
    sys.stdout.write(dump_config(source.config))
    return None


@command
def infer(argv: Arguments = None) -> None:
    """Runs a model on image files. Fails at the end if there is no prediction for some files."""
    arguments = parse_model_arguments("infer", argv)
    source = read_source(arguments)
    if source is None:
        return
    if arguments.nearest is not None and not arguments.gallery:
        raise UserError("--nearest needs --gallery, the images to search")
    files = _find_files(arguments.images or [source.infer.infer_imgs])
    gallery = find_images(arguments.gallery)
    with _open_results(arguments.out) as write:
        from ppcls.runtime import start as runtime

        run = None
        if source.needs_paddle or source.by_dali:
            check_single_process("ppcls infer")
            run = runtime.start(source.run)
        from ppcls.deploy.infer import FailedFile, NotAllPredictedError, PredictedFile, predict_files, search
        from ppcls.deploy.predictor import Predictor

        if arguments.tta is None:
            predictor = Predictor(source, runtime=run)
        else:
            from ppcls.deploy.views import predictor_with_views

            predictor = predictor_with_views(source, arguments.tta, run)
        failed = 0
        explain = None
        if arguments.explain is not None:
            from ppcls.deploy.heat_map import HeatMapWriter

            explain = HeatMapWriter(source, arguments.explain)
        name = predictor.description.Global.model_name
        sys.stderr.write(f"[Infer] {name} by {predictor.model.engine}\n")
        results = (
            search(predictor, gallery, files, arguments.nearest or _NEAREST, run)
            if gallery
            else predict_files(predictor, files, run)
        )
        for result in results:
            write(f"{result.as_json()}\n")
            write_output(f"{result.as_json() if arguments.json else result}\n")
            best = result.best_class if isinstance(result, PredictedFile) else None
            if explain is not None and best is not None:
                explain.write(result.file, best)
            if isinstance(result, FailedFile):
                failed += 1
                if arguments.on_error == "stop":
                    break
    if failed and arguments.on_error != "ignore":
        raise NotAllPredictedError(
            f"{failed} of {len(gallery) + len(files)} images could not be predicted; "
            "their lines give the reasons (see --on-error)"
        )


def _find_files(names: Sequence[str | None]) -> list[Path]:
    """Returns the images, in order and without duplicates."""
    if names == [None]:
        raise UserError("nothing to predict: pass images or folders (before any -o), or set Infer.infer_imgs")
    files = dict.fromkeys(find_images([Path(name) for name in names if name and name != _STDIN]))
    if _STDIN in names:
        files |= dict.fromkeys(read_paths(sys.stdin.buffer))
    if not files:
        raise UserError("nothing to predict: standard input is empty; expected one path per line")
    return list(files)


class _ResultsFile:
    """File to which each result is written at once, so that a later failure does not lose it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self.lines = 0
        self._size = 0

    def __call__(self, line: str) -> None:
        data = line.encode()
        size = self._size + len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            with suppress(OSError):  # a device has no size
                self._file.truncate(self._size)
            raise UserError(
                f"{self._path}: cannot be written: {error.strerror}; it contains the first {self.lines} "
                "results"
            ) from None
        self._size = size
        self.lines += 1


@contextmanager
def _open_results(name: str | None) -> Iterator[_ResultsFile]:
    """Opens the file for the results, or /dev/null if ``name`` is None. At the end, deletes an empty file."""
    path = Path(name or "/dev/null")
    device = path.exists() and not path.is_file() and not path.is_dir()
    try:
        file = path.open("wb" if device else "xb", buffering=0)
    except FileExistsError:
        state = "is a folder" if path.is_dir() else "exists already and is not overwritten"
        raise UserError(f"--out {name}: {state}; choose a new file") from None
    except OSError as error:
        raise UserError(f"--out {name}: cannot be created: {error.strerror}") from None
    with file:
        results = _ResultsFile(path, file)
        try:
            yield results
        finally:
            if not results.lines and not device:
                path.unlink(missing_ok=True)
