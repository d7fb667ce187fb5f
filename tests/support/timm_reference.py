"""Logits of timm's models with reproducible random weights, for tests/weights/test_timm_names.py.

Run it in an environment with NumPy, PyTorch and timm (the tests themselves need none of these two):

    python tests/support/timm_reference.py

It writes tests/support/timm_reference.json: for each model the shapes of its weights and its first logits.
The weights themselves follow from their names and shapes, so that they need not be stored.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
CLASSES, LOGITS = 32, 16
# timm's models to ours.
MODELS = {
    "resnet50": "ResNet50",
    "resnet18": "ResNet18",
    "resnet50d": "ResNet50_vd",
    "resnext50_32x4d": "ResNeXt50_32x4d",
    "seresnet50": "SE_ResNet50",
    "seresnext50_32x4d": "SE_ResNeXt50_32x4d",
    "deit_tiny_patch16_224": "DeiT_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224": "DeiT_tiny_distilled_patch16_224",
    "vit_base_patch16_224": "ViT_base_patch16_224",
    "convnext_tiny": "ConvNeXt_tiny",
    "densenet121": "DenseNet121",
    "regnetx_002": "RegNetX_200MF",
    "repvgg_a0": "RepVGG_A0",
    "tf_efficientnet_b0": "EfficientNetB0",
    "tf_efficientnet_lite0": "EfficientNet_lite0",
}


def random_array(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns the values of a weight: variances are positive, and activations neither explode nor vanish."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if name.endswith("running_var"):
        return np.exp(numbers * 0.1).astype(np.float32)
    if len(shape) > 1:
        return numbers * np.float32(np.prod(shape[1:]) ** -0.5)
    center = 1.0 if name.endswith("weight") else 0.0
    return np.float32(center) + numbers * np.float32(0.1)


def random_image(side: int = 224) -> np.ndarray[Any, Any]:
    """Returns a batch of one image, [1, 3, side, side]."""
    return np.random.default_rng(0).standard_normal((1, 3, side, side), np.float32)


def main() -> None:
    import timm
    import torch

    found = {}
    for name in MODELS:
        model = timm.create_model(name, num_classes=CLASSES).eval()
        shapes = {
            key: list(tensor.shape)
            for key, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }
        state = {key: torch.from_numpy(random_array(key, tuple(shape))) for key, shape in shapes.items()}
        model.load_state_dict(state, strict=False)
        with torch.no_grad():
            logits = model(torch.from_numpy(random_image()))[0, :LOGITS]
        found[name] = {"logits": [round(float(logit), 6) for logit in logits], "shapes": shapes}
    versions = {"timm": timm.__version__, "torch": torch.__version__}
    FILE.write_text(json.dumps({"versions": versions, "models": found}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
