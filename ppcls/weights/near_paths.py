"""Finds the checkpoint that a path without weights probably means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# Endings of PaddleClas's files of one checkpoint, which is a folder in ppcls.
_ENDING = re.compile(r"\.(pdparams|pdopt|pdema|pdstates)$")
# PaddleClas writes the files of each model of a DistillationModel.
_MODEL = re.compile(r"_(student|teacher)$", re.IGNORECASE)


def suggest_checkpoint(path: Path, weights: str) -> str:
    """Returns the checkpoint that a path without weights probably means, as part of a message; "" if none.

    The path can be that of PaddleClas, such as ``output/ResNet50/best_model.pdparams`` or
    ``best_model/ppcls``, or have a folder too many or too few.

    Args:
        path: The path.
        weights: Name of the file of weights in the folder of a checkpoint.
    """
    near = next((place for place in _near_paths(path) if (place / weights).is_file()), None)
    return "" if near is None else f"; did you mean {near}?"


def _near_paths(path: Path) -> Iterator[Path]:
    name = _MODEL.sub("", _ENDING.sub("", path.name))
    yield path.with_name(name) if name else path
    if path.parent != Path():
        yield path.parent
        yield path.parent.parent / name
    try:
        runs = sorted(folder for folder in path.parent.iterdir() if folder.is_dir())
    except OSError:
        return
    for folder in runs:
        yield folder / name
