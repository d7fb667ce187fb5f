"""Which images of a gallery are nearest to an image, by their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ppcls.deploy.results import Embedding


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
