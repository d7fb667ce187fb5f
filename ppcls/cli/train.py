"""The commands ``ppcls train`` and ``ppcls tune``, and their scripts in tools/."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import Arguments, command, exit_on_closed_pipe, write_output
from ppcls.cli.options import TRAIN_FLAGS, apply_flags, config_parser, read_config, splits
from ppcls.config.base.tree import Tree, node_at
from ppcls.config.load import ConfigSource
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import create_output_dir
from ppcls.runtime.launch import read_launch
from ppcls.weights.store import LATEST

if TYPE_CHECKING:  # not needed for --help
    from ppcls.config.schema import Config

_DEFAULT_CONFIG = str(Path(__file__).parents[1] / "configs" / "finetune.yaml")


@command
def train(argv: Arguments = None) -> None:
    """Trains a model."""
    parser = config_parser("train")
    parser.elsewhere = {"--confusion": "eval"}
    arguments = parser.parse_args(argv)
    if arguments.folder is not None and "=" in arguments.folder and not Path(arguments.folder).exists():
        parser.error(f"{arguments.folder}: no such folder{parser.suggest_options([arguments.folder])}")
    if arguments.folder is not None and arguments.data is not None:
        parser.error(f"--data: not allowed with the folder {arguments.folder}")
    arguments.data = arguments.data or arguments.folder
    if arguments.config is None:
        if arguments.data is None:
            parser.error("expected a folder of images, or -c CONFIG")
        arguments.config = _DEFAULT_CONFIG
    from ppcls import api
    from ppcls.engine.core.hooks import read_profile_window

    profiled = read_profile_window(arguments.profile) if arguments.profile is not None else None
    source = ConfigSource.read(arguments.config)
    apply_flags(TRAIN_FLAGS, arguments, source)
    try:
        config = read_config(arguments, source)
    except UserError as error:
        problems = _find_problems(arguments, source.tree)
        raise UserError(
            "\n".join([str(error), *(line for line in problems if line not in str(error))])
        ) from None
    if config is None:
        return
    raise_line_errors(_find_problems(arguments, source.tree))
    if arguments.dry_run:
        _dry_run(config)
    elif arguments.find_lr:
        _find_lr(config)
    elif arguments.find_batch_size:
        from ppcls.search.batch_size import find_batch_size

        write_output(find_batch_size(config, _report) + "\n")
    elif arguments.folds is not None:
        from ppcls.search.folds import cross_validate

        output_dir = create_output_dir(Path(config.Global.output_dir))
        write_output(cross_validate(config, arguments.folds, output_dir, _report))
    elif arguments.explain_data:
        _explain_data(config)
    else:
        api.fit(config, profiled=profiled, own_process=True)


@command
def tune(argv: Arguments = None) -> None:
    """Searches for the best settings of a config."""
    arguments = config_parser("tune").parse_args(argv)
    config = read_config(arguments)
    if config is None:
        return
    from ppcls.config.base.yaml import parse_yaml, read_yaml
    from ppcls.search.space import read_space
    from ppcls.search.tune import tune as search

    settings = read_yaml(arguments.space) if arguments.space is not None else {}
    for text in arguments.search:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--search {text}: expected KEY=SPACE, such as Global.epochs=5..20")
        settings[key] = parse_yaml(value, f"--search {text}") if value.strip().startswith("[") else value
    space = read_space(settings)
    output_dir = create_output_dir(Path(config.Global.output_dir))
    write_output(search(config, space, arguments.trials, output_dir, _report))


def _report(line: str) -> None:
    write_output(line + "\n")


def _find_problems(arguments: argparse.Namespace, tree: Tree) -> list[str]:
    """Returns one line per file or folder that the run cannot use. Does not load Paddle.

    Args:
        tree: Config to which all options are applied. It may be invalid.
    """
    if arguments.print_config:
        return []  # a config can be printed on a machine without its data
    if read_launch().world_size > 1:
        return []  # the ranks check together, after the start
    modes = (
        arguments.dry_run,
        arguments.find_lr,
        arguments.find_batch_size,
        arguments.folds,
        arguments.explain_data,
    )
    return [*_missing_data(tree), *(() if any(modes) else _used_output(tree))]


def _missing_data(tree: Tree) -> Iterator[str]:
    """Yields one line per missing image folder or list file that training reads."""
    reported = set()
    evaluates = node_at(tree, "Global.eval_during_train") is not False
    kinds = {"image_root": "folder", "cls_label_path": "list file; expected lines of 'path label'"}
    for key, kind in kinds.items():
        for split in splits(tree) if evaluates else ("DataLoader.Train",):
            path = node_at(tree, f"{split}.dataset.{key}")
            if isinstance(path, str) and path not in reported and not Path(path).exists():
                reported.add(path)
                yield f"{path}: no such {kind} ({split}.dataset.{key})"


def _used_output(tree: Tree) -> Iterator[str]:
    """Yields one line if the output folder contains a run that is not to be resumed."""
    folder = node_at(tree, "Global.output_dir")
    if not isinstance(folder, str) or node_at(tree, "Global.checkpoints"):
        return
    if (Path(folder) / LATEST).is_symlink():
        yield (
            f"{folder} already holds a run; resume it with --resume (Global.checkpoints=auto), or choose "
            "another folder with --output (Global.output_dir)"
        )


def _dry_run(config: Config) -> None:
    from ppcls.runtime.signals import interruptible
    from ppcls.runtime.start import start

    _check_output_dir(Path(config.Global.output_dir))
    runtime = start(config.Global)
    from ppcls.engine.dry_run import dry_run

    with interruptible():
        text = dry_run(config, runtime)
    if runtime.is_main:
        write_output(text)


def _find_lr(config: Config) -> None:
    from ppcls.runtime import session
    from ppcls.runtime.signals import interruptible

    output_dir = create_output_dir(Path(config.Global.output_dir))
    with session.dedicated(config.Global, output_dir) as runtime, interruptible():
        from ppcls.engine.find_lr import find_lr

        text = find_lr(config, runtime, output_dir)
        if runtime.is_main:
            write_output(text)


def _check_output_dir(folder: Path) -> None:
    """Checks, without creating anything, that an output folder can be created and written."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "can't be written" if existing.is_dir() else "is not a folder"
        raise UserError(
            f"{folder}: can't write to this output folder: {existing} {reason}; set Global.output_dir"
        )


def _explain_data(config: Config) -> None:
    """Prints the data pipelines of the run, on rank 0."""
    from ppcls.runtime import session
    from ppcls.runtime.signals import interruptible

    with session.dedicated(config.Global, Path(config.Global.output_dir), logged=False) as runtime:
        if not runtime.is_main:
            return
        from ppcls.explain.describe import describe
        from ppcls.explain.description import print_descriptions

        with interruptible():
            descriptions = describe(config, runtime)
        with exit_on_closed_pipe():
            print_descriptions(descriptions, sys.stdout)
