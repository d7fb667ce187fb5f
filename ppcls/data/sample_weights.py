"""Reads how often each sample is to be drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.file_index import refuse_lines
from ppcls.data.index import Index
from ppcls.errors import UserError


def read_weights(file: Path, index: Index) -> NDArray[np.float64]:
    """Reads a file with one weight a line, in the order of the samples; empty lines do not count.

    Returns:
        [N] float64, >= 0, at least one of them > 0.

    Raises:
        UserError: No such file, lines that are no weight (by number), no weight > 0, or not one for each
            sample.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig", errors="surrogateescape").split("\n")
    except OSError as error:
        raise UserError(
            f"{file}: can't read these weights: {error.strerror}; expected a text file with one number a line"
        ) from None
    weights: list[float] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        weight = _number(line)
        if 0 <= weight < math.inf:
            weights.append(weight)
        else:
            problems.append(f"{file}, line {number}: expected a number >= 0, got {line.strip()!r}")
    refuse_lines(problems)
    if len(weights) != len(index):
        raise UserError(
            f"{file}: {len(weights)} weights, but {index.source} has {len(index)} samples; "
            "expected one for each, in the same order"
        )
    if not any(weights):
        raise UserError(f"{file}: all weights are 0; expected at least one > 0")
    return np.array(weights, np.float64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
