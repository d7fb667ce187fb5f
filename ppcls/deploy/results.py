"""Which images of a gallery are nearest to an image, by their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class Nearest:
    """The images of a gallery that are nearest to an image, the nearest first.

    Attributes:
        files: Of these images.
        similarities: Of each, -1..1: the cosine between the embeddings.
    """

    files: tuple[Path, ...]
    similarities: tuple[float, ...]

    def __str__(self) -> str:
        rows = zip(self.files, self.similarities, strict=True)
        return ", ".join(f"{printable(file)} {similarity:.4f}" for file, similarity in rows)

    def as_tree(self) -> dict[str, Any]:
        """Returns it in terms of JSON."""
        return {"nearest": [str(each) for each in self.files], "similarities": self.similarities}


class Gallery:
    """Images to look among.

    Args:
        files: One or more.
        embeddings: Of these, in their order.
    """

    def __init__(self, files: Sequence[Path], embeddings: Sequence[Embedding]) -> None:
        self._files, self._vectors = files, np.stack([each.vector for each in embeddings])

    def nearest(self, embedding: Embedding, count: int) -> Nearest:
        """Returns the ``count`` images nearest to one, or all where there are fewer."""
        similar = self._vectors @ embedding.vector
        best = np.argsort(-similar, kind="stable")[:count]
        return Nearest(tuple(self._files[each] for each in best), tuple(similar[best].tolist()))


def printable(path: Path) -> str:
    """Returns a path for one line of text: what is not UTF-8 in it, and control characters, are escaped."""
    text = str(path).encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(repr(each)[1:-1] if ord(each) < 32 or ord(each) == 127 else each for each in text)
