"""From scores to the classes that an image is told to show."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.infer import MultiLabelThreshOutput, PostProcess, Topk


def choose(spec: PostProcess, scores: NDArray[Any]) -> NDArray[np.intp]:
    """Returns the classes that are told, the best first; perhaps none.

    Args:
        spec: How they are chosen.
        scores: [C], 0..1 each.
    """
    ranked: NDArray[np.intp] = np.argsort(-scores, kind="stable")
    match spec:
        case Topk(topk=topk):
            return ranked[:topk]
        case MultiLabelThreshOutput(threshold=threshold):
            return ranked[scores[ranked] >= threshold]
    raise TypeError(f"{spec.kind} chooses no classes")
