"""Finds the run that ``ppcls train --resume`` continues, and reads its config.

Decisions:
    The config of the run is the base, and only options of this command override it. Otherwise a run that was
    started with ``--epochs 50`` would continue with the default number of epochs.
    ``-c CONFIG`` is a config that the user typed, so it replaces the config of the run. Jobs that restart
    with the same command need this.
    ``--resume WORD`` takes the next word as its value. A data folder behind ``--resume`` is an error, because
    guessing would start a new run, or continue another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ppcls.commands import command_line
from ppcls.config.base.overrides import Override
from ppcls.config.base.tree import Tree, node_at
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS, real_path
from ppcls.files.urls import is_url, local_path
from ppcls.recipe.load import ConfigSource
from ppcls.recipe.places import set_output, splits
from ppcls.weights.manifest import MANIFEST
from ppcls.weights.store import Store, newest_complete

_CONFIG = "config.yaml"
_PATHS = ("image_root", "cls_label_path", "label_root")  # keys of a data set that can be in its folder
_AUTO = "auto"


class ResumeOptions(Protocol):
    """The options of ``ppcls train`` that name a run, its images and its config."""

    @property
    def config(self) -> str | None:
        """Config file of ``-c``."""

    @property
    def data(self) -> str | None:
        """Folder of the images."""

    @property
    def resume(self) -> str | None:
        """Run or checkpoint to continue, or ``auto``."""

    @property
    def output(self) -> str | None:
        """Output folder."""

    @property
    def override(self) -> Sequence[str]:
        """Values of ``-o``."""


@dataclass(frozen=True)
class ResumedRun:
    """A run to continue.

    Attributes:
        config: Config of the run.
        folder: Output folder of the run; None if the checkpoint is not in one.
        checkpoint: Value of ``Global.checkpoints``: ``auto`` for the newest one in the folder, or a path.
        address: Address of the run in object storage, of which the folder is a copy; None without one.
    """

    config: Path
    folder: Path | None
    checkpoint: str
    address: str | None = None


def choose_config(options: ResumeOptions, default: str) -> tuple[ConfigSource, tuple[str, ...]]:
    """Returns the config that options change, and the names of the options that are already applied.

    Args:
        options: Options of the command.
        default: Config file of a new run without ``-c``.

    Raises:
        UserError: The config can't be read, there is no run to resume, or a folder is not of the expected
            kind.
    """
    if options.data is not None:
        check_choice(options.data, resumed=False)
    requested = options.resume or _override_of(options.override, "Global.checkpoints")
    source = ConfigSource.read(options.config or default)
    source.fits_warmup = options.config is None
    if requested is None:
        return source, ()
    if options.config is not None:
        if options.resume in (None, _AUTO):
            return source, ()
        folder, address = _fetch_run(options.resume)
        if not holds_run(folder):
            return source, ()
        run = ResumedRun(Path(options.config), folder, _AUTO, address)
        source.apply(_place(run, source.tree, options.output))
        return source, ("resume", "output")
    output = options.output or _override_of(options.override, "Global.output_dir")
    if requested != _AUTO and options.data is None:
        check_choice(requested, resumed=True)
    place = output or str(node_at(source.tree, "Global.output_dir"))
    run_to_resume = find_run(requested, place)
    if run_to_resume is None:
        if options.data is None:
            raise UserError(
                f"--resume: {place if requested == _AUTO else requested} holds no run; expected "
                f"{command_line('train', '--resume', 'RUN')} with the output folder of a run, or a folder of "
                "images for a new run"
            )
        return source, ()
    source = read_resumed(run_to_resume, output)
    if options.data is not None:
        moved = set_moved_data(source.tree, options.data)
        source.apply(Override.of_value(key, path, f"--data {options.data}") for key, path in moved.items())
    return source, ("data", "resume", "output")


def _override_of(texts: Sequence[str], key: str) -> str | None:
    """Returns the text that ``-o`` sets for a key; None if it sets none."""
    values = {override.path: override.value for override in map(Override.parse, texts)}
    value = values.get(key)
    return value if isinstance(value, str) else None


def find_run(requested: str, output: str) -> ResumedRun | None:
    """Returns the run to continue; None if it has no config, as for a new run or checkpoints of PaddleClas.

    Args:
        requested: Value of ``--resume``: ``auto``, the output folder of a run, or a checkpoint folder.
        output: Output folder, which ``auto`` refers to.

    Raises:
        UserError: The value is a folder, but neither a run nor a checkpoint.
    """
    path, address = _fetch_run(output if requested == _AUTO else requested)
    if holds_run(path):
        config = path / _CONFIG
        if not config.is_file():  # removed, or not copied
            checkpoint = newest_complete(path)
            if checkpoint is None:
                raise UserError(
                    f"{path}: can't resume this run: it has neither {_CONFIG} nor a complete checkpoint; set "
                    "-c CONFIG to the config of the run, or start a new run in another folder with --output"
                )
            config = checkpoint / _CONFIG
        return ResumedRun(config, path, _AUTO, address)
    if requested == _AUTO:
        return None
    if (path / MANIFEST).is_file() and (path / _CONFIG).is_file():
        folders = (path.parent, path.parent.parent)  # of a link, and of a folder in checkpoints/
        run = next((folder for folder in folders if holds_run(folder)), None)
        return ResumedRun(path / _CONFIG, run, str(path))
    if not path.is_dir():  # the common prefix of PaddleClas's files, or missing, which training reports
        return None
    if (path / _CONFIG).is_file():
        raise UserError(
            f"--resume {requested}: this run was interrupted before it saved a checkpoint; to restart it: "
            f"{command_line('train', '-c', path / _CONFIG, '-o', 'Global.checkpoints=auto')}"
        )
    if not any(path.iterdir()):
        raise UserError(
            f"--resume {requested}: this folder is empty: its run ended before training began; start it "
            "again without --resume"
        )
    raise UserError(
        f"--resume {requested}: expected the output folder of a run or a checkpoint folder, found another "
        f"folder. --resume uses the next word as its value. If {requested} is the folder of the images, put "
        f"it first: {command_line('train', requested, '--resume', '--output', 'RUN')}; a run needs no folder "
        f"of images: {command_line('train', '--resume', 'RUN')}"
    )


def _fetch_run(place: str) -> tuple[Path, str | None]:
    """Returns the folder of a run, and its address in object storage, from which it is downloaded."""
    if not is_url(place):
        return Path(place), None
    from ppcls.storage.run_copy import RunCopy

    RunCopy(place).pull()
    return local_path(place), place


def check_choice(folder: str, *, resumed: bool) -> None:
    """Checks that a folder on the command line is either a run or images, and that it is the expected one.

    Args:
        folder: Value of ``--resume`` if ``resumed``, otherwise the folder of the images.

    Raises:
        UserError: The folder is the other one, or could be both.
    """
    path = Path(folder)
    if not holds_run(path):
        return
    if classes := list(islice(_image_folders(path), 2)):
        written = f"--resume {folder}" if resumed else folder
        raise UserError(
            f"{written}: could mean two things, because this folder contains a run and folders of images "
            f"({', '.join(classes)}); to continue the run: "
            f"{command_line('train', '--output', folder, '--resume')}; to train on the images, move the run "
            "to another folder"
        )
    if not resumed:
        raise UserError(
            f"{folder}: expected a folder of images, found the output folder of a run; to continue the run: "
            f"{command_line('train', '--resume', folder)}"
        )


def _image_folders(folder: Path) -> Iterator[str]:
    """Yields the names of the subfolders that contain images, apart from those of a run."""
    for child in sorted(folder.iterdir()):
        if not child.is_dir() or child.is_symlink() or child == Store(folder).folder:
            continue
        if any(file.name.lower().endswith(IMAGE_EXTENSIONS) for file in child.iterdir()):
            yield child.name


def holds_run(folder: Path) -> bool:
    """Returns whether a folder is the output folder of a run that has saved a checkpoint."""
    return folder.is_dir() and bool(Store(folder).folders())


def read_resumed(run: ResumedRun, output: str | None) -> ConfigSource:
    """Returns the config of a run to continue, with its output folder and checkpoint.

    Args:
        run: The run.
        output: Output folder that the user chose; None to continue in the folder of the run.

    Raises:
        UserError: The config can't be read.
    """
    source = ConfigSource.read(run.config)
    source.apply(_place(run, source.tree, output))
    source.notes += (f"resume: {run.config} has the settings; options of this command change them",)
    return source


def _place(run: ResumedRun, tree: Tree, output: str | None) -> list[Override]:
    """Returns the overrides of the output folder and of the checkpoint, see `read_resumed`."""
    folder = run.folder if output is None else local_path(output)
    checkpoint = run.checkpoint
    if checkpoint == _AUTO and run.folder is not None and not _same(folder, run.folder):
        newest = newest_complete(run.folder)
        checkpoint = _AUTO if newest is None else str(newest)
    values: dict[str, Any] = {"Global.checkpoints": checkpoint}
    if folder is not None:
        values |= set_output(tree, output or run.address or str(folder))
    return [Override.of_value(key, value, "--resume") for key, value in values.items()]


def _same(one: Path | None, other: Path) -> bool:
    return one is not None and real_path(one) == real_path(other)


def set_moved_data(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the paths of all data sets after their folder was moved to ``folder``.

    Paths in the old folder move with it. If the data sets have several folders, such as ``data/train`` and
    ``data/val``, the old folder is the one that contains them.
    """
    roots = [
        root
        for split in splits(tree)
        if isinstance(root := node_at(tree, f"{split}.dataset.image_root"), str)
    ]
    if not roots:
        return {"DataLoader.Train.dataset.image_root": folder}
    before = os.path.commonpath([Path(root).absolute() for root in roots])
    return {
        f"{split}.dataset.{key}": os.path.normpath(Path(folder) / inside)
        for split in splits(tree)
        for key, inside in _inside(tree, split, before)
    }


def _inside(tree: Tree, split: str, folder: str) -> Iterator[tuple[str, str]]:
    """Yields the keys of a data set whose paths are in a folder, with their paths relative to it."""
    for key in _PATHS:
        path = node_at(tree, f"{split}.dataset.{key}")
        if isinstance(path, str):
            inside = os.path.relpath(path, folder)
            if inside != os.pardir and not inside.startswith(os.pardir + os.sep):
                yield key, inside
