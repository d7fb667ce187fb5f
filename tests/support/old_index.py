"""Writes indexes of images as older versions did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_index(file: Path, changes: Any = None, **arrays: Any) -> Path:
    """Writes an index of four images, changed by the arguments."""
    content = {"kind": "flat", "model": "m", "files": ["a", "b", "c", "d"], **(changes or {})}
    vectors = np.random.default_rng(5).standard_normal((4, 8)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    encoded = np.frombuffer(json.dumps(content).encode(), np.uint8)
    np.savez(file, **{"about": encoded, "vectors": vectors, "probe": vectors[0], **arrays})
    return file.with_name(f"{file.name}.npz").rename(file)
