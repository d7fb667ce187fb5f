"""Outputs of small variants of timm's foundation models with reproducible random weights.

Run it in an environment with NumPy, PyTorch and timm, which the tests do not need:

    python tests/support/foundation_reference.py

The script writes tests/support/foundation_reference.json, with the shapes of the weights, the features and
the logits of each model. Tests compute the weights from their names and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from timm_reference import random_array

FILE = Path(__file__).with_suffix(".json")
CLASSES = 5
WIDTH, DEPTH, HEADS = 24, 2, 2
GRID = 3  # patches per side
OTHER_GRIDS = (2, 5)  # patches per side to which position embeddings are interpolated
SHOWN = 8  # number of features in the file
# One model for each set of options; the others differ in width, depth and image size.
MODELS = (
    "vit_small_patch14_dinov2",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
    "vit_small_plus_patch16_dinov3",
    "vit_small_plus_patch16_dinov3_qkvb",
    "vit_base_patch16_clip_224",
    "vit_base_patch16_clip_quickgelu_224",
    "vit_base_patch16_siglip_224",
    "vit_so400m_patch16_siglip_256",
    "vit_base_patch32_siglip_gap_256",
)


def patch_of(name: str) -> int:
    """Returns the side of the patches of a model in pixels."""
    return int(name.partition("patch")[2][:2])


def weights_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the weights of a model, given their shapes. Layer scale is near 1, so that it has an effect."""
    return {
        name: random_array(name, tuple(shape)) + np.float32("gamma" in name) for name, shape in shapes.items()
    }


def images_of(name: str, grid: int) -> np.ndarray[Any, Any]:
    """Returns a batch of two images, [2, 3, side, side]."""
    side = grid * patch_of(name)
    return np.random.default_rng(1).standard_normal((2, 3, side, side), np.float32)


def main() -> None:
    import timm
    import torch

    found: dict[str, Any] = {}
    for name in MODELS:
        model = _small(name, GRID)
        shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        state = {key: torch.from_numpy(array) for key, array in weights_of(shapes).items()}
        outputs = {}
        for grid in (GRID, *OTHER_GRIDS):
            other = _small(name, grid)
            if "dinov3" in name:
                other.load_state_dict(state)
            else:
                fitted = timm.models.vision_transformer.checkpoint_filter_fn(dict(state), other)
                other.load_state_dict(fitted)
            with torch.no_grad():
                tokens = other.forward_features(torch.from_numpy(images_of(name, grid)))
                features = other.forward_head(tokens, pre_logits=True)
                logits = other.head(features)
            outputs[str(grid)] = {
                "tokens": _round(tokens[0, -1, :SHOWN]),
                "features": _round(features[0, :SHOWN]),
                "logits": [_round(row) for row in logits],
            }
        found[name] = {"shapes": shapes, "outputs": outputs}
    versions = {module.__name__: module.__version__ for module in (timm, torch)}
    FILE.write_text(json.dumps({"versions": versions, "models": found}, separators=(",", ":")) + "\n")


def _small(name: str, grid: int) -> Any:
    import timm

    side = grid * patch_of(name)
    return timm.create_model(
        name, num_classes=CLASSES, img_size=side, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS
    ).eval()


def _round(values: Any) -> list[float]:
    return [round(float(value), 6) for value in values]


if __name__ == "__main__":
    main()
