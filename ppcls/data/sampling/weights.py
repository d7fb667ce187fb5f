"""Reads files with one weight per sample."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.protocol import Index
from ppcls.errors import UserError, counted, raise_line_errors
from ppcls.files import read_regular


def read_weights(file: Path, index: Index) -> NDArray[np.float64]:
    """Reads the weights of samples from a text file.

    Args:
        file: File with one weight per line, in the order of the samples. Empty lines are ignored.
        index: The samples.

    Returns:
        Weight of each sample, [N] float64, all >= 0, and at least one > 0.

    Raises:
        UserError: The file is missing, a line is not a number >= 0, all weights are 0, or the number of
            weights differs from the number of samples.
    """
    try:
        lines = read_regular(file).decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise UserError(
            f"{file}: can't read these weights: {error.strerror}; expected one number per line"
        ) from None
    weights: list[float] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            weight = float(line)
        except ValueError:
            weight = math.nan
        if 0 <= weight < math.inf:
            weights.append(weight)
        else:
            problems.append(f"{file}, line {number}: expected a number >= 0, got {line.strip()!r}")
    raise_line_errors(problems)
    if len(weights) != len(index):
        raise UserError(
            f"{file}: found {len(weights)} weights, but {index.source} has {counted(len(index), 'sample')}; "
            "expected one weight per sample, in the same order"
        )
    if not any(weights):
        raise UserError(f"{file}: all weights are 0; expected at least one > 0")
    return np.array(weights, np.float64)
