"""A few small images for real runs of benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from paths import ROOT
from PIL import Image

PHOTOS = ROOT / "configs" / "ResNet50_photos.yaml"


def write_images(folder: Path) -> list[str]:
    """Writes 36 images and their list, and returns the overrides of `PHOTOS` that use them."""
    rng = np.random.default_rng(0)
    for number in range(36):
        Image.fromarray(rng.integers(0, 255, (40, 48, 3), np.uint8)).save(folder / f"{number}.jpg")
    (folder / "list.txt").write_text("".join(f"{number}.jpg {number % 8}\n" for number in range(36)))
    dataset = "DataLoader.Train.dataset"
    return [
        f"{dataset}.image_root={folder}",
        f"{dataset}.cls_label_path={folder / 'list.txt'}",
        "DataLoader.Train.sampler.batch_size=2",
        f"{dataset}.transform_ops.1.RandCropImage.size=32",
        "Global.device=cpu",
    ]
