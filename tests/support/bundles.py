"""Exports a bundle of a small classifier for tests, and computes outputs of a program that is not ppcls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from small_classifier import config_tree, write_config, write_image, write_names, write_weights

from ppcls.cli.export import export
from ppcls.deploy.bundle.compare import select_classes
from ppcls.deploy.bundle.schema import Bundle, Decision, read_bundle_file, read_values


def write_photographs(folder: Path, count: int = 3) -> Path:
    """Writes JPEG and PNG files of different sizes, one of them with an EXIF orientation."""
    for number in range(count):
        write_image(folder / f"{number}.png", number, 40 + 9 * number, 61 - 5 * number)
    image = Image.open(write_image(folder / "turned.png", 9, 50, 70))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(folder / "turned.jpg", exif=exif)
    (folder / "turned.png").unlink()
    return folder


def export_bundle(folder: Path, *options: str, tree: dict[str, Any] | None = None) -> Path:
    """Exports a bundle to ``folder/bundle``."""
    weights = write_weights(folder / "model.safetensors")
    tree = tree or config_tree(weights, write_names(folder / "names.txt"))
    tree["Global"]["pretrained_model"] = str(weights)
    config = str(write_config(folder / "config.yaml", tree))
    data = str(write_photographs(folder / "photographs"))
    out = str(folder / "bundle")
    words = ["-c", config, "--format", "bundle", "--golden-data", data, "--output", out]
    assert export([*words, *options]) == 0
    return folder / "bundle"


def prepared_by(
    pixels: NDArray[np.uint8],
    *,
    short: int = 36,
    crop: int | None = 32,
    mean: tuple[float, ...] = (0.4, 0.5, 0.6),
    std: tuple[float, ...] = (0.2, 0.3, 0.4),
    antialias: bool = False,
) -> NDArray[np.float32]:
    """Returns the input of the network as a program of a user would compute it, with Pillow or OpenCV."""
    import cv2

    height, width = pixels.shape[:2]
    scale = short / min(height, width)
    size = (round(width * scale), round(height * scale))
    if antialias:
        image = Image.fromarray(np.ascontiguousarray(pixels))
        resized = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    else:
        resized = cv2.resize(np.ascontiguousarray(pixels), size)
    if crop is not None:
        top = (resized.shape[0] - crop) // 2
        left = (resized.shape[1] - crop) // 2
        resized = resized[top : top + crop, left : left + crop]
    normalized = (resized.astype(np.float32) / 255 - np.array(mean)) / np.array(std)
    return normalized.transpose(2, 0, 1).astype(np.float32)


def read_bundle(folder: Path) -> Bundle:
    return read_bundle_file(folder)


# Rules, whether other classes matter, and the beginning of what a program prints
SELECTIONS = tuple(
    (method, near, "PASS: 4 of 4" if near else "FAIL: 3 of 4; first stage that differs: post-processing")
    for method in ("topk", "binary", "multi_label")
    for near in (True, False)
)


@contextmanager
def other_selection(folder: Path, method: str, near: bool) -> Iterator[None]:
    """Makes ``bundle.json`` expect other classes of the first sample, and restores it.

    Args:
        folder: Folder of the bundle.
        method: Rule that selects classes.
        near: Whether the tolerance is so large that the scores of these classes are nearly tied.
    """
    file = folder / "bundle.json"
    text = file.read_text(encoding="utf-8")
    tree = json.loads(text)
    width = (len(tree["classes"]),)
    tree["decision"] = {"method": method, "topk": 1, "threshold": 0.5}
    rule = Decision.model_validate(tree["decision"])
    for sample in tree["golden"]:
        scores = read_values(folder, sample["probabilities"], width, "float32")
        sample["classes"] = select_classes(scores, rule)
    first = list(tree["golden"][0]["classes"])
    others = {
        "topk": [(number + 1) % width[0] for number in first],
        "binary": [1 - number for number in first],
        "multi_label": first[1:] if first else [0],
    }
    tree["golden"][0]["classes"] = others[method]
    if near:
        tree["tolerances"]["probabilities"] = 1.0
    file.write_text(json.dumps(tree), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")
