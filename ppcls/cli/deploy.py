"""The command lines of ``tools/infer.py`` and ``tools/export.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import config_parser, positive_int, require_single_process
from ppcls.config.load import dump_config, load_config
from ppcls.data.images.paths import find_images, read_paths
from ppcls.deploy.models.source import Source, configured, find_source, find_weights
from ppcls.errors import UserError

_STDIN = "-"
_NEAREST = 5
MODEL = "checkpoint folder, folder or .onnx file that tools/export.py wrote; needs no config"


@command
def infer(argv: Arguments = None) -> None:
    """Predicts image files; fails at the end where some could not be predicted."""
    arguments = _infer_parser().parse_args(argv)
    source = read_source(arguments)
    if source is None:
        return
    if arguments.nearest is not None and not arguments.gallery:
        raise UserError("--nearest: of which images? name them by --gallery")
    files = _files(arguments.images or [source.infer.infer_imgs])
    gallery = find_images(arguments.gallery)
    with _results(arguments.out) as out:
        from ppcls.runtime import start as runtime

        run = runtime.start(source.run) if source.needs_paddle or source.by_dali else None
        if run is not None:
            require_single_process(run)
        from ppcls.deploy.infer import Failed, predict_files, refuse_failed, search
        from ppcls.deploy.predictor import Predictor

        predictor, failed = Predictor(source, runtime=run), 0
        results = (
            search(predictor, gallery, files, arguments.nearest or _NEAREST, run)
            if gallery
            else predict_files(predictor, files, run)
        )
        for result in results:
            out(f"{result.as_json()}\n")
            write_output(f"{result.as_json() if arguments.json else result}\n")
            if isinstance(result, Failed):
                failed += 1
                if arguments.on_error == "stop":
                    break
    if arguments.on_error != "ignore":
        refuse_failed(failed, len(gallery) + len(files))


def _infer_parser() -> argparse.ArgumentParser:
    made = config_parser(
        "Predict images. Exit code 0: all are predicted; 3: some could not be, and their lines say why; "
        "1: nothing could be done.",
        model=MODEL,
    )
    made.add_argument(
        "images",
        nargs="*",
        help="files, folders and patterns such as 'photos/**/*.jpg', before any -o; - reads paths from "
        "standard input, one a line; without any, Infer.infer_imgs",
    )
    made.add_argument("--json", action="store_true", help="print a line of JSON an image")
    made.add_argument(
        "--out", "--output", metavar="FILE", help="write a line of JSON an image to FILE, a new one, at once"
    )
    made.add_argument(
        "--gallery",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="tell which images of this folder (or file, or pattern; it may be given several times) are "
        "nearest to each image, by a model of embeddings",
    )
    made.add_argument(
        "--nearest", type=positive_int, metavar="K", help=f"how many of the gallery ({_NEAREST})"
    )
    made.add_argument(
        "--on-error",
        choices=["fail", "ignore", "stop"],
        default="fail",
        help="what a broken image means beside its line: exit code 3 at the end (%(default)s), nothing, or "
        "exit code 3 at once",
    )
    return made


def _files(given: Sequence[str | None]) -> list[Path]:
    """Returns the images that are meant, in order, each once.

    Raises:
        UserError: There is none, or what is named is not there.
    """
    if given == [None]:
        raise UserError("nothing to predict: name images or folders (before any -o), or set Infer.infer_imgs")
    files = dict.fromkeys(find_images([Path(each) for each in given if each and each != _STDIN]))
    if _STDIN in given:
        files |= dict.fromkeys(read_paths(sys.stdin.buffer))
    if not files:
        raise UserError("nothing to predict: standard input has no paths")
    return list(files)


def read_source(arguments: argparse.Namespace) -> Source | None:
    """Returns the model that ``-c`` or ``--model`` means; None when its config was only to be printed."""
    if arguments.model is not None:
        source = find_source(Path(arguments.model), arguments.override)
        config = source.config
        if arguments.print_config and config is None:
            raise UserError(f"{arguments.model}: an exported model has no config to print")
    else:
        config = load_config(arguments.config, arguments.override)
    if arguments.print_config and config is not None:
        sys.stdout.write(dump_config(config))
        return None
    return source if config is None or arguments.model is not None else configured(config)


class _Results:
    """A file of results, none of which is lost: each is with the system before the next one is made."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self.lines = path, file, 0

    def __call__(self, line: str) -> None:
        data = line.encode()
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise UserError(
                f"{self._path}: can't be written: {error.strerror}; it holds the first {self.lines} results"
            ) from None
        self.lines += 1


@contextmanager
def _results(name: str | None) -> Iterator[_Results]:
    """Opens the file of results; without a name, they go nowhere. One that got nothing is removed.

    Raises:
        UserError: It is there already, or can't be made.
    """
    path = Path(name or "/dev/null")
    device = path.exists() and not path.is_file() and not path.is_dir()
    try:
        file = path.open("wb" if device else "xb", buffering=0)
    except FileExistsError:
        what = "is a folder" if path.is_dir() else "exists already, and nothing is overwritten"
        raise UserError(f"--out {name}: {what}; name a new file") from None
    except OSError as error:
        raise UserError(f"--out {name}: can't be made: {error.strerror}") from None
    with file:
        results = _Results(path, file)
        try:
            yield results
        finally:
            if not results.lines and not device:
                path.unlink(missing_ok=True)


@command
def export(argv: Arguments = None) -> None:
    """Writes a model for other programs into ``Global.save_inference_dir``."""
    options = config_parser(
        "Export a model for Paddle Inference or as ONNX, or its weights for PaddleClas.",
        model="checkpoint folder to export; needs no config",
    )
    options.add_argument(
        "--format",
        choices=["paddle", "onnx"],
        default="paddle",
        help="paddle for Paddle Inference; onnx, checked with onnxruntime (%(default)s)",
    )
    options.add_argument(
        "--pdparams", metavar="FILE", help="write only the weights, as PaddleClas's .pdparams, to FILE"
    )
    options.add_argument(
        "--preprocess",
        action="store_true",
        help="have the model take RGB pixels [B, H, W, 3] of 8 bits and any size, and prepare them as "
        "Infer.transforms says",
    )
    arguments = options.parse_args(argv)
    if arguments.pdparams:
        _export_weights(arguments)
        return
    source = read_source(arguments)
    if source is None:
        return
    folder = Path(source.run.save_inference_dir)
    from ppcls.runtime import start as runtime

    require_single_process(runtime.start(source.run))
    from ppcls.deploy.export.export import export as export_model

    exported = export_model(source, folder, arguments.format, preprocess=arguments.preprocess)
    given, files = exported.description.Input, exported.files
    sys.stdout.write(
        f"[Export] {source.file} -> {folder}: {', '.join(files)}, {sum(files.values()) / 1e6:.1f} MB; "
        f"input {list(given.shape)} {given.dtype} {given.layout}, any batch size\n"
    )
    if exported.difference is not None:
        what = "embeddings are the trained model's: they"
        if exported.description.told is not None:
            what = "scores are the trained model's: their logarithms"
        sys.stdout.write(
            f"[Export] its {what} differ by {exported.difference:.1e} at most, relative, for batches of "
            "1, 2 and 5 random images\n"
        )


def _export_weights(arguments: argparse.Namespace) -> None:
    path = Path(arguments.pdparams)
    if path.suffix != ".pdparams" or path.exists():
        raise UserError(f"--pdparams {path}: expected a new file whose name ends in .pdparams")
    if arguments.model is not None:
        source = find_source(Path(arguments.model), arguments.override)
        if source.config is None:
            raise UserError(
                f"{arguments.model}: an exported model has no weights of its own; name a checkpoint"
            )
        weights, config = source.file, source.config
    else:
        config = load_config(arguments.config, arguments.override)
        weights = find_weights(config)
    if not path.parent.is_dir():
        raise UserError(f"--pdparams {path}: there is no folder {path.parent}")
    from ppcls.runtime import start as runtime

    require_single_process(runtime.start(config.Global))
    from ppcls.engine.checkpoint.paddleclas import write_pdparams
    from ppcls.engine.core.networks import read_inferred

    write_pdparams(path, read_inferred(config, weights))
    sys.stdout.write(f"[Export] {weights} -> {path}: {path.stat().st_size / 1e6:.1f} MB\n")
