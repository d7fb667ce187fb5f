"""The learning curve of a data set: the accuracy over the number of training images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ppcls.errors import UserError
from ppcls.files import read_regular, write_text
from ppcls.report.summary.certainty import Certainty

CURVE_FILE = "learning_curve.json"
_FLAT = 0.005  # gain of accuracy by twice as many images, below which more images hardly help

_WIDE = 0.1  # width of an interval that hides a smaller gain


@dataclass(frozen=True)
class CurvePoint:
    """The result of a run with a part of the training images.

    Attributes:
        images: Number of training images.
        accuracy: Accuracy on all validation images, 0..1.
        low: Lower end of the 95 % interval.
        high: Upper end of the interval.
    """

    images: int
    accuracy: float
    low: float
    high: float

    @staticmethod
    def of(images: int, certainty: Certainty) -> CurvePoint:
        """Returns the point of an evaluation."""
        return CurvePoint(images, certainty.accuracy, certainty.low, certainty.high)


def write_curve(path: Path, points: Sequence[CurvePoint], images: int) -> None:
    """Writes the points of the runs with parts of the images, for the report of the run with all images.

    Args:
        path: File to write.
        points: Results in ascending order of images.
        images: Number of all training images.
    """
    data = {"points": [asdict(point) for point in points], "images": images}
    write_text(path, json.dumps(data, indent=1) + "\n")


def read_curve(path: Path, certainty: Certainty | None) -> list[CurvePoint]:
    """Returns the points of a learning curve, with that of the run with all images as the last one.

    Args:
        path: File that `write_curve` wrote. Without it, there is no curve.
        certainty: Result of the run with all images; None without an evaluation.

    Raises:
        UserError: The file contains something else.
    """
    if not path.is_file():
        return []
    try:
        data = json.loads(read_regular(path))
        points = [CurvePoint(**point) for point in data["points"]]
        images = int(data["images"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path}: expected a learning curve, found something else ({error}); remove the file"
        ) from None
    return points if certainty is None else [*points, CurvePoint.of(images, certainty)]


def describe_curve(points: Sequence[CurvePoint]) -> str:
    """Returns a sentence about what more images would bring; empty for fewer than two points."""
    if len(points) < 2:
        return ""
    before, last = points[-2:]
    factor = last.images / max(1, before.images)
    gain = last.accuracy - before.accuracy
    text = (
        f"{factor:.2g} times as many training images ({last.images:,} instead of {before.images:,}) changed "
        f"the accuracy from {before.accuracy:.3f} to {last.accuracy:.3f}"
    )
    if last.high - last.low > _WIDE and abs(gain) < _WIDE:
        return f"{text}, which may be chance; add validation images to see whether more images help."
    if gain < _FLAT:
        return f"{text}, so more images of the same kind would hardly help."
    if before.high >= last.accuracy and last.low <= before.accuracy:
        return f"{text}, which may be chance; more images probably help, and more validation images show it."
    return f"{text}, so more images help."
