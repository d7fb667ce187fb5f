"""The command lines: one function a tool. Each reads ``-c`` and ``-o``, and returns an exit code."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ppcls.config.load import dump_config, load_config
from ppcls.config.schema import Config
from ppcls.config.sections import Infer
from ppcls.data.class_names import LABEL_LIST, read_class_names
from ppcls.data.image_files import find_images
from ppcls.engine.phases import read_window
from ppcls.engine.watchdog import guarded
from ppcls.errors import Stopped, UserError
from ppcls.failures import Failures
from ppcls.files import write_text
from ppcls.runtime import Runtime

Arguments = Sequence[str] | None
_INTERRUPTED = 130
_NO_READER = 141


def command(function: Callable[[Arguments], None]) -> Callable[[Arguments], int]:
    """Makes a tool's exit code: 0, 128 + a signal's number, 1 with one message for what the user can mend.

    That is a `UserError`, or what the system refuses, such as a write to a full disk.
    """

    @functools.wraps(function)
    def main(argv: Arguments = None) -> int:
        try:
            function(argv)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return 1
        except OSError as error:
            if error.errno is None:  # Paddle's own errors
                raise
            place = "" if error.filename is None else f"{error.filename}: "
            print(f"error: {place}{error.strerror}", file=sys.stderr)  # noqa: T201
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)  # noqa: T201
            return _INTERRUPTED
        except Stopped as stopped:
            print(stopped, file=sys.stderr)  # noqa: T201
            return stopped.code
        return 0

    return main


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all tools share."""
    made = argparse.ArgumentParser(description=description)
    add_config(made)
    return made


def add_config(made: argparse.ArgumentParser) -> None:
    """Adds ``-c`` and ``-o``, which `read_config` reads."""
    made.add_argument("-c", "--config", required=True, help="YAML file")
    made.add_argument(
        "-o",
        "--override",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="set one value of the config, such as Global.epochs=10",
    )
    made.add_argument("--print-config", action="store_true", help="print the resolved config and exit")


def read_config(arguments: argparse.Namespace) -> Config | None:
    """Returns the config; None when it was only to be printed."""
    config = load_config(arguments.config, arguments.override)
    if arguments.print_config:
        sys.stdout.write(dump_config(config))
        return None
    return config


@command
def train(argv: Arguments = None) -> None:
    """Trains a model."""
    options = parser("Train an image classifier.")
    instead = options.add_mutually_exclusive_group()
    instead.add_argument(
        "--explain-data", action="store_true", help="show the data pipelines as they are built, and exit"
    )
    instead.add_argument(
        "--dry-run", action="store_true", help="take a few steps, tell what the whole run will take, and exit"
    )
    instead.add_argument(
        "--profile",
        metavar="START:STOP",
        help="trace these steps (from 0, where the run starts or goes on), and tell where their time went",
    )
    arguments = options.parse_args(argv)
    profiled = read_window(arguments.profile) if arguments.profile is not None else None
    config = read_config(arguments)
    if config is None:
        return
    if arguments.dry_run:
        _dry_run(config)
        return
    output_dir = claim_output(Path(config.Global.output_dir))
    from ppcls import runtime

    failures = Failures(output_dir, runtime.read_launch())
    log = output_dir / "train.log"
    with failures.shown(), guarded(config.Global.hang_timeout, failures, log) as progress:
        run = runtime.start(config.Global, progress)
        if arguments.explain_data:
            _explain_data(config, run, output_dir / "pipeline.png")
            return
        from ppcls.engine.train import train as train_config

        train_config(config, run, output_dir, profiled)


def _dry_run(config: Config) -> None:
    """Tells what the run will take; one process of several does."""
    _check_output(Path(config.Global.output_dir))
    from ppcls import runtime

    run = runtime.start(config.Global)
    from ppcls.engine.dry_run import dry_run

    text = dry_run(config, run)
    if run.is_main:
        say(text)


def _explain_data(config: Config, run: Runtime, picture: Path) -> None:
    """Prints the run's data pipelines and draws them; one process of several does."""
    if not run.is_main:
        return
    from ppcls.explain.describe import describe
    from ppcls.explain.picture import draw_descriptions
    from ppcls.explain.table import print_descriptions

    described = describe(config, run)
    draw_descriptions(described, picture)
    with _to_reader():
        print_descriptions(described, sys.stdout)
        sys.stdout.write(f"drawn as {picture}\n")


@command
def evaluate(argv: Arguments = None) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    config = read_config(parser("Evaluate an image classifier.").parse_args(argv))
    if config is None:
        return
    source = find_weights(config)
    from ppcls import runtime

    run = runtime.start(config.Global)
    from ppcls.engine.evaluate import build_evaluator
    from ppcls.engine.precision import build_precision
    from ppcls.engine.state import build_network
    from ppcls.engine.weights import fill_model, read_weights

    model, precision = build_network(config), build_precision(config.AMP, run.device)
    fill_model(model, read_weights(source), source)
    precision.prepare(model, None)
    result = build_evaluator(config, run, precision)(model)
    if run.is_main:
        shares = " ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        counted = f"{result.images} images, {result.seconds:.1f} s"
        sys.stdout.write(f"[Eval] {source}: loss {result.loss:.4f} {shares}, {counted}\n")


@command
def infer(argv: Arguments = None) -> None:
    """Predicts image files; fails at the end where some could not be predicted."""
    arguments = _infer_parser().parse_args(argv)
    config = read_config(arguments)
    if config is None:
        return
    settings, names = _infer_section(config)
    given = arguments.images or [settings.infer_imgs]
    if given == [None]:
        raise UserError("nothing to predict: name images or folders (before any -o), or set Infer.infer_imgs")
    output = _claim_file(arguments.output) if arguments.output else None
    files, source = find_images([Path(each) for each in given]), find_weights(config)
    from ppcls import runtime

    run = runtime.start(config.Global)
    _need_one_process(run)
    from ppcls.infer import Failed, Predicted, Predictor, as_json, refuse_failed

    predicted, failed = list[Predicted](), list[Failed]()
    for result in Predictor(config, settings, names, source, run).predict(files):
        if isinstance(result, Failed):
            failed.append(result)
            continue
        predicted.append(result)
        if not arguments.json:
            say(f"{result}\n")
    if arguments.json:
        say(as_json(predicted))
    if output is not None:
        _write(output, as_json(predicted))
    refuse_failed(failed, len(files))


@command
def export(argv: Arguments = None) -> None:
    """Writes a model for Paddle Inference into ``Global.save_inference_dir``."""
    options = parser("Export an image classifier for Paddle Inference, or its weights for PaddleClas.")
    options.add_argument(
        "--pdparams", metavar="FILE", help="write only the weights, as PaddleClas's .pdparams, to FILE"
    )
    arguments = options.parse_args(argv)
    config = read_config(arguments)
    if config is None:
        return
    if arguments.pdparams:
        _export_weights(config, Path(arguments.pdparams))
        return
    settings, names = _infer_section(config)
    source, folder = find_weights(config), Path(config.Global.save_inference_dir)
    from ppcls import runtime

    _need_one_process(runtime.start(config.Global))
    from ppcls.export import export as export_config
    from ppcls.export import input_shape

    files = export_config(config, settings, names, source, folder)
    sys.stdout.write(
        f"[Export] {source} -> {folder}: {', '.join(files)}, {sum(files.values()) / 1e6:.1f} MB; "
        f"input {input_shape(config)} float32 {config.Arch.data_format}, any batch size\n"
    )


def _export_weights(config: Config, path: Path) -> None:
    if path.suffix != ".pdparams" or path.exists():
        raise UserError(f"--pdparams {path}: expected a new file whose name ends in .pdparams")
    source = find_weights(config)
    from ppcls import runtime

    _need_one_process(runtime.start(config.Global))
    from ppcls.engine.paddleclas import write_pdparams
    from ppcls.engine.weights import read_weights

    write_pdparams(_claim_file(str(path), "--pdparams"), read_weights(source))
    sys.stdout.write(f"[Export] {source} -> {path}: {path.stat().st_size / 1e6:.1f} MB\n")


def _infer_parser() -> argparse.ArgumentParser:
    made = parser("Predict images.")
    made.add_argument("images", nargs="*", help="files and folders, before any -o; else Infer.infer_imgs")
    made.add_argument("--json", action="store_true", help="print one JSON list instead of lines")
    made.add_argument("--output", metavar="FILE", help="write the JSON list to FILE")
    return made


def _infer_section(config: Config) -> tuple[Infer, tuple[str, ...] | None]:
    """Returns ``Infer`` with the names of its classes: of its own file, or of the folders trained on."""
    if config.Infer is None:
        raise UserError("the config has no section Infer, which says how images are prepared (transforms)")
    trained = Path(config.Global.output_dir) / LABEL_LIST
    listing = config.Infer.PostProcess.class_id_map_file or (trained if trained.is_file() else None)
    return config.Infer, read_class_names(Path(listing), config.Arch.class_num) if listing else None


def _need_one_process(run: Runtime) -> None:
    if run.world > 1:
        raise UserError("this tool runs as one process; start it without paddle.distributed.launch")


def say(text: str) -> None:
    """Writes to stdout; see `_to_reader`."""
    with _to_reader():
        sys.stdout.write(text)


@contextmanager
def _to_reader() -> Iterator[None]:
    """Ends the tool quietly where the reader of stdout, such as ``head``, has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush at exit
        raise SystemExit(_NO_READER) from None


def _claim_file(name: str, option: str = "--output") -> Path:
    """Shows, before the work is done, that a file can be written in its folder."""
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder, expected a file" if path.is_dir() else f"there is no folder {path.parent}"
        raise UserError(f"{option} {name}: {what}")
    return path


def _write(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from None


def find_weights(config: Config) -> Path:
    """Returns ``Global.pretrained_model``, or the run's best model where none is given.

    Raises:
        UserError: Neither is there.
    """
    if config.Global.pretrained_model:
        return Path(config.Global.pretrained_model)
    best = Path(config.Global.output_dir) / "best_model"
    if not best.is_dir():
        raise UserError(f"no weights: Global.pretrained_model is not set, and there is no {best}")
    return best


def claim_output(folder: Path) -> Path:
    """Makes the output folder, and shows that it can be written.

    Raises:
        UserError: It can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: can't write to this output folder: {error.strerror}; set Global.output_dir"
        ) from None
    return folder


def _check_output(folder: Path) -> None:
    """Refuses an output folder that could not be made or written; makes nothing.

    Raises:
        UserError: It could not.
    """
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "can't be written" if nearest.is_dir() else "is no folder"
        raise UserError(
            f"{folder}: can't write to this output folder: {nearest} {reason}; set Global.output_dir"
        )
