"""What a model says of one image: its classes, or an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN = 4  # numbers of an embedding


@dataclass(frozen=True)
class Result:
    """What the model says of one image: its classes, the best first; of several labels perhaps none.

    Attributes:
        class_ids: From 0.
        names: Of these classes; None where nobody named them.
        scores: Probabilities, 0..1.
    """

    class_ids: tuple[int, ...]
    names: tuple[str, ...] | None
    scores: tuple[float, ...]

    def __str__(self) -> str:
        names = [f" {each}" for each in self.names] if self.names else [""] * len(self.class_ids)
        rows = zip(self.class_ids, names, self.scores, strict=True)
        told = ", ".join(f"{class_id}{name} {score * 100:.2f} %" for class_id, name, score in rows)
        return told or "no class"

    def as_tree(self) -> dict[str, Any]:
        """Returns it in terms of JSON."""
        return {"class_ids": self.class_ids, "names": self.names, "scores": self.scores}


@dataclass(frozen=True, eq=False)
class Embedding:
    """What a model of embeddings makes of one image.

    Attributes:
        vector: [D] float32 of length 1: the dot product of two is how similar their images are, -1..1.
    """

    vector: NDArray[np.float32]

    def __str__(self) -> str:
        shown = " ".join(f"{each:.4f}" for each in self.vector[:_SHOWN])
        return f"{len(self.vector)} numbers: {shown}{' …' if len(self.vector) > _SHOWN else ''}"

    def as_tree(self) -> dict[str, Any]:
        """Returns it in terms of JSON: the shortest numbers that are these ones in float32."""
        return {"embedding": [float(str(each)) for each in self.vector]}


Answer = Result | Embedding
