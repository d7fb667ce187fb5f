"""Results of predictions: classes, embeddings and nearest images."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppcls.files import one_line
from ppcls.postprocess.guesses import ExplainsGuesses

_SHOWN = 4  # number of values of an embedding that are printed


@dataclass(frozen=True)
class Classification(ExplainsGuesses):
    """Classes of one image, in descending order of their scores.

    For a model with several labels per image, there may be no classes.

    Attributes:
        class_ids: Numbers of the classes, from 0.
        names: Names of the classes, or None if they are unknown.
        scores: Probabilities of the classes, 0..1.
        unknown: Whether the image probably belongs to no class; None if the model has no rule for this (see
            ``ppcls calibrate --unknown``).
        known_score: Score that the rule compares with its threshold, which is low for unknown images; None
            without a rule.
    """

    guessed_attributes: ClassVar[Mapping[str, str]] = {
        "label name class_name classname category prediction pred top1 best": "use names[0]",
        "class_id index idx label_id id": "use class_ids[0]",
        "score probability prob confidence conf top1conf": "use scores[0]",
        "probs probabilities": "use scores; predict(image, topk=len(model.classes)) has those of all classes",
        "labels classes top5": "use names",
        "to_dataframe to_df to_csv to_pandas": "use predict([image]), whose result is a table",
        "to_dict to_json asdict dict json": "use as_tree()",
        "show plot": "in a notebook, the result is displayed as a table",
    }

    class_ids: tuple[int, ...]
    names: tuple[str, ...] | None
    scores: tuple[float, ...]
    unknown: bool | None = None
    known_score: float | None = None

    def above(self, limit: float) -> Classification:
        """Returns the classes whose score is at least ``limit``; there may be none."""
        kept = [at for at, score in enumerate(self.scores) if score >= limit]
        names = self.names
        return Classification(
            tuple(self.class_ids[at] for at in kept),
            None if names is None else tuple(names[at] for at in kept),
            tuple(self.scores[at] for at in kept),
            self.unknown,
        )

    def __str__(self) -> str:
        names = [f" {one_line(name)}" for name in self.names] if self.names else [""] * len(self.class_ids)
        rows = zip(self.class_ids, names, self.scores, strict=True)
        text = ", ".join(f"{class_id}{name} {score * 100:.2f} %" for class_id, name, score in rows)
        if self.unknown:
            return f"unknown, nearest: {text}" if text else "unknown"
        return text or "no class"

    def _repr_html_(self) -> str:
        names = self.names or tuple(map(str, self.class_ids))
        rows = "".join(
            f"<tr><td>{html.escape(one_line(name))}</td><td>{score:.2%}</td>"
            f'<td><meter value="{score:.4f}"></meter></td></tr>'
            for name, score in zip(names, self.scores, strict=True)
        )
        caption = "<caption>unknown; nearest classes:</caption>" if self.unknown else ""
        return f"<table>{caption}{rows}</table>"

    def as_tree(self) -> dict[str, Any]:
        """Returns plain data for JSON. Without a rule, there are no keys ``unknown`` and ``known_score``."""
        tree = {"class_ids": self.class_ids, "names": self.names, "scores": self.scores}
        if self.unknown is None:
            return tree
        return {**tree, "unknown": self.unknown, "known_score": self.known_score}


@dataclass(frozen=True, eq=False)
class Embedding:
    """Embedding of one image.

    Attributes:
        vector: Vector of length 1, [D] float32. The dot product of two vectors is the cosine similarity of
            their images, -1..1.
    """

    vector: NDArray[np.float32]

    def __str__(self) -> str:
        shown = " ".join(f"{value:.4f}" for value in self.vector[:_SHOWN])
        return f"{len(self.vector)} values: {shown}{' …' if len(self.vector) > _SHOWN else ''}"

    def as_tree(self) -> dict[str, Any]:
        """Returns plain data for JSON. Numbers have the fewest digits that identify a float32 value."""
        return {"embedding": [float(str(value)) for value in self.vector]}


@dataclass(frozen=True)
class Scores:
    """Outputs of the model for one image, in the order of the classes.

    Attributes:
        scores: Rounded outputs.
        names: Names of the classes; None if they are unknown.
    """

    scores: tuple[float, ...]
    names: tuple[str, ...] | None

    def __str__(self) -> str:
        names = [f"{one_line(name)} " for name in self.names] if self.names else [""] * len(self.scores)
        return ", ".join(f"{name}{score}" for name, score in zip(names, self.scores, strict=True))

    def as_tree(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {"scores": self.scores, "names": self.names}


Prediction = Classification | Embedding | Scores


@dataclass(frozen=True)
class NearestImages:
    """Nearest images of a query image, in descending order of similarity.

    Attributes:
        files: Files of the nearest images.
        similarities: Cosine similarities of their embeddings to that of the query, -1..1.
    """

    files: tuple[Path, ...]
    similarities: tuple[float, ...]

    def __str__(self) -> str:
        rows = zip(self.files, self.similarities, strict=True)
        return ", ".join(f"{one_line(file)} {similarity:.4f}" for file, similarity in rows)

    def as_tree(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {"nearest": [str(file) for file in self.files], "similarities": self.similarities}


def rank(scores: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Returns the indexes of the highest scores in descending order. Equal scores are in order of index."""
    least = np.partition(scores, -count)[-count]
    candidates = np.flatnonzero(scores >= least)
    order: NDArray[np.intp] = np.argsort(-scores[candidates], kind="stable")
    return candidates[order][:count]
