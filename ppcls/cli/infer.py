"""The command ``ppcls infer``, and the model options that it shares with export and serve."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ppcls.cli.arguments.options import Exclusive, argument, option
from ppcls.cli.command import command, write_output
from ppcls.cli.shared_options import (
    ConfigOptions,
    Device,
    Views,
    device_option,
    trust_option,
    views_option,
    write_config,
)
from ppcls.cli.short_options import model_overrides
from ppcls.deploy.prediction_files import PredictionFile, open_results
from ppcls.errors import UserError, counted
from ppcls.files import print_error, real_path

if TYPE_CHECKING:  # not needed for --help
    from ppcls.cli.serve import ServeOptions
    from ppcls.config.base.overrides import Override
    from ppcls.deploy.infer import FailedFile, PredictedFile
    from ppcls.deploy.models.source import ModelSource
    from ppcls.deploy.predictor import Predictor
    from ppcls.runtime.start import Runtime

_STDIN = "-"
_NEAREST = 5
_ON_ERROR = {"fail": "fail", "ignore": "ignore", "stop": "stop", "skip": "ignore", "raise": "stop"}
SOURCE = Exclusive(required=True)  # where the model comes from


def _read_on_error(text: str) -> str:
    """Returns the action after a broken image. Accepts the names that it has in training, too."""
    if text not in _ON_ERROR:
        raise argparse.ArgumentTypeError(f"expected fail, ignore or stop, got '{text}'")
    return _ON_ERROR[text]


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ConfigOptions):
    """Options of a command that reads one model."""

    config: str | None = option(None, "config file (YAML)", names=["-c"], exclusive=SOURCE)
    model: str | None = option(
        None,
        "output folder of a run; checkpoint folder; folder, .onnx or .xml file written by ppcls export; or "
        "architecture with published weights. No config is needed",
        metavar="PATH",
        exclusive=SOURCE,
    )
    trust: bool = trust_option()


@dataclass(frozen=True, kw_only=True)
class InferOptions(ModelOptions):
    """Predict the classes or embeddings of images.

    Exit code 0: all images were predicted. Exit code 3: some images could not be predicted; a line for each
    of them gives the reason. Exit code 2: another error, such as a missing model.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls infer --model runs/pets photo.jpg",
        "ppcls infer --model EfficientNet_lite0 'photos/**/*.jpg' --out classes.jsonl",
    )

    images: tuple[str, ...] = argument(
        "image files, folders and patterns such as 'photos/**/*.jpg'; put them before -o; - reads one path "
        "per line from standard input (default: Infer.infer_imgs)",
        default=(),
    )
    tta: Views | None = views_option()
    explain: Path | None = option(
        None,
        "write each image, with a heat map of the pixels that support its best class, to the new folder "
        "FOLDER; needs a checkpoint",
        metavar="FOLDER",
    )
    json: bool = option(False, "print one line of JSON per image")
    out: Path | None = option(
        None,
        "write the results to the new file FILE: .csv or .parquet, a table with class and score, or .jsonl, "
        "one line of JSON per image. With --topk K, the table has the K best classes",
        names=["--output"],
        metavar="FILE",
    )
    gallery: tuple[Path, ...] = option(
        (),
        "for each image, print the nearest images from this folder, file or pattern; needs an embedding "
        "model; can be repeated",
        metavar="PATH",
        repeated=True,
    )
    nearest: int | None = option(None, f"number of nearest images (default: {_NEAREST})", metavar="K", gt=0)
    on_error: Literal["fail", "ignore", "stop"] = option(
        "fail",
        "exit code after a broken image. fail: 3, at the end; stop: 3, without predicting the remaining "
        "images; ignore: 0. skip and raise, as in training, mean ignore and stop",
        read=_read_on_error,
    )
    topk: int | None = option(
        None, "number of classes per image", metavar="K", gt=0, key="Infer.PostProcess.topk"
    )
    min_score: float | None = option(
        None,
        "omit classes whose score is lower; an image can then have no class",
        metavar="X",
        gt=0,
        le=1,
    )
    batch_size: int | None = option(None, "number of images per batch", gt=0, key="Infer.batch_size")
    device: Device | None = device_option()


def read_source(
    options: ModelOptions | ServeOptions, model: str | None, overrides: Sequence[Override]
) -> ModelSource | None:
    """Returns the model of ``-c`` or ``--model``, or None if ``--print-config`` printed its config."""
    from ppcls.deploy.models.source import find_source, source_of_config
    from ppcls.recipe.load import load_config
    from ppcls.storage.models import model_path

    if model is None:
        assert options.config is not None  # one of the two is required
        loaded = load_config(options.config, overrides)
        if not options.print_config:
            return source_of_config(loaded)
        write_config(loaded)
        return None
    source = find_source(model_path(model), overrides, trust=options.trust)
    if not options.print_config:
        return source
    if source.config is None:
        raise UserError(f"--print-config: {model} is an exported model, which has no config")
    write_config(source.config)
    return None


@command("infer", InferOptions)
def infer(options: InferOptions) -> None:
    """Runs a model on image files. Fails at the end if there is no prediction for some files."""
    source = read_source(options, options.model, model_overrides(options))
    if source is None:
        return
    from ppcls.data.images.paths import find_images

    if options.nearest is not None and not options.gallery:
        raise UserError("--nearest needs --gallery, the images to search")
    images = options.images or [source.infer.infer_imgs]
    if options.explain is not None:
        _check_outside(options.explain, [path for path in images if path is not None])
    try:
        files = _find_files(images)
    except UserError as error:
        if options.images or images == [None]:
            raise
        raise UserError(f"Infer.infer_imgs: {error}; name images in the command, or set this key") from None
    gallery = find_images(options.gallery, print_error)
    with open_results(options.out, options.topk or 1) as write:
        run = _start_runtime(source)
        from ppcls.deploy.infer import NotAllPredictedError, predict_files, search

        predictor = _load_predictor(source, options.tta, run)
        print_error(f"[Infer] {predictor.description.Global.model_name} by {predictor.model.engine}")
        if gallery:
            results = search(predictor, gallery, files, options.nearest or _NEAREST, run)
        else:
            results = predict_files(predictor, files, run)
        failed = _report_results(options, source, results, write)
    if failed and options.on_error != "ignore":
        raise NotAllPredictedError(
            f"{failed} of {counted(len(gallery) + len(files), 'image')} could not be predicted; the results "
            "above give the reasons (see --on-error)"
        )


def _check_outside(explain: Path, images: Sequence[str]) -> None:
    """Raises `UserError` if heat maps would become images of the next prediction."""
    for folder in map(Path, images):
        if folder.is_dir() and real_path(explain).is_relative_to(real_path(folder)):
            raise UserError(
                f"--explain {explain}: is inside the images {folder}, where the heat maps would become "
                "images; choose a folder outside of them"
            )


def _start_runtime(source: ModelSource) -> Runtime | None:
    """Starts Paddle and returns the runtime; None if neither the model nor DALI needs it."""
    from ppcls.runtime import start as runtime
    from ppcls.runtime.launch import check_single_process

    if not (source.needs_paddle or source.by_dali):
        return None
    check_single_process("ppcls infer")
    return runtime.start(source.run)


def _load_predictor(source: ModelSource, views: Views | None, run: Runtime | None) -> Predictor:
    from ppcls.deploy.predictor import Predictor

    if views is None:
        return Predictor(source, runtime=run)
    from ppcls.deploy.views import predictor_with_views

    return predictor_with_views(source, views, run)


def _report_results(
    options: InferOptions,
    source: ModelSource,
    results: Iterable[PredictedFile | FailedFile],
    write: PredictionFile,
) -> int:
    """Prints and writes each result as soon as it is known, and returns the number of broken images."""
    from ppcls.deploy.infer import FailedFile, PredictedFile

    failed = 0
    explain = None
    if options.explain is not None:
        from ppcls.deploy.heat_map import HeatMapWriter

        explain = HeatMapWriter(source, options.explain)
    for result in results:
        if options.min_score is not None:
            result = result.with_min_score(options.min_score)
        write(result)
        try:
            write_output(f"{result.as_json() if options.json else result}\n")
        except UserError:  # standard output is closed or full, and drops all later text
            if options.out is None:
                raise
        best = result.best_class if isinstance(result, PredictedFile) else None
        if explain is not None and best is not None:
            explain.write(result.file, best)
        if isinstance(result, FailedFile):
            failed += 1
            if options.on_error == "stop":
                break
    return failed


def _find_files(names: Sequence[str | None]) -> list[Path]:
    """Returns the images, in order and without duplicates."""
    from ppcls.data.images.paths import find_images, read_paths

    if names == [None]:
        raise UserError("nothing to predict: pass images or folders (before any -o), or set Infer.infer_imgs")
    files = dict.fromkeys(find_images([Path(name) for name in names if name and name != _STDIN], print_error))
    if _STDIN in names:
        files |= dict.fromkeys(read_paths(sys.stdin.buffer))
    if not files:
        raise UserError("nothing to predict: standard input is empty; expected one path per line")
    return list(files)
