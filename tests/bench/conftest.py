"""A few small images for real runs of benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for i in range(36):
        Image.fromarray(rng.integers(0, 255, (40, 48, 3), np.uint8)).save(tmp_path / f"{i}.jpg")
    (tmp_path / "list.txt").write_text("".join(f"{i}.jpg {i % 8}\n" for i in range(36)))
    return [
        f"DataLoader.Train.dataset.image_root={tmp_path}",
        f"DataLoader.Train.dataset.cls_label_path={tmp_path / 'list.txt'}",
        "DataLoader.Train.sampler.batch_size=2",
        "DataLoader.Train.dataset.transform_ops.1.RandCropImage.size=32",
    ]
