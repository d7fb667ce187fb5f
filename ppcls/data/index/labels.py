"""Labels against the classes of the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ppcls.errors import UserError

_SHOWN = 10


def check_labels(labels: NDArray[np.int64], place: Callable[[int], str], class_num: int | None) -> None:
    """Shows which labels the model has no class for.

    Args:
        labels: [N].
        place: Says where a sample is, by position.
        class_num: Number of classes of the model; None for any.

    Raises:
        UserError: There are some; the first ten by their place.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= (2**62 if class_num is None else class_num)))
    if not len(wrong):
        return
    lines = [
        f"{place(position)}: label {labels[position]} is not in 0..{class_num - 1}; "
        f"Arch.class_num is {class_num}"
        if class_num is not None
        else f"{place(position)}: expected a label from 0, got {labels[position]}"
        for position in wrong[:_SHOWN].tolist()
    ]
    more = [f"… and {len(wrong) - _SHOWN} more samples"] if len(wrong) > _SHOWN else []
    raise UserError("\n".join([*lines, *more]))
