"""Builds the config of an architecture with its published ImageNet weights, for ``--model NAME``."""

from __future__ import annotations

from typing import Any

from ppcls.config.base.overrides import Overrides, read_overrides
from ppcls.errors import UserError
from ppcls.recipe.load import ConfigSource
from ppcls.recipe.schema import Config
from ppcls.zoo import ZOO, architecture, nearest_with_weights

_CLASSES = 1000


def published_config(name: str, overrides: Overrides = ()) -> Config:
    """Returns a config that predicts with the published weights of an architecture.

    Args:
        name: Name in `ppcls.zoo.ZOO`.
        overrides: ``key=value`` strings that change the config.

    Raises:
        UserError: The architecture has no published weights, or an override is invalid.
    """
    entry = architecture(name)
    if not entry.top1:
        known = (
            f"; similar architectures with weights: {', '.join(nearest_with_weights(name))}"
            if name in ZOO
            else ""
        )
        raise UserError(f"{name}: this architecture has no published weights{known}")
    resize = {"resize_short": round(entry.side / entry.crop_ratio), "interpolation": entry.interpolation}
    if entry.interpolation == "bicubic":
        resize["backend"] = "pil"
    normalize = {"scale": "1.0/255.0", "mean": list(entry.mean), "std": list(entry.std)}
    transforms = [
        {"DecodeImage": {"to_rgb": not entry.bgr}},
        {"ResizeImage": resize},
        {"CropImage": {"size": entry.side}},
        {"NormalizeImage": normalize},
    ]
    tree: dict[str, Any] = {
        "Global": {
            "output_dir": f"./output/{name}",
            "pretrained_model": str(entry.weights_file()),
            "image_shape": list(entry.input_shape),
        },
        "Arch": {"name": name, "class_num": _CLASSES},
        "Loss": {"Train": [{"CELoss": None}], "Eval": [{"CELoss": None}]},
        "Optimizer": {"name": "Momentum", "lr": {"name": "Constant", "learning_rate": 0.01}},
        "DataLoader": {},
        "Metric": {"Eval": [{"TopkAcc": {"topk": [1, 5]}}]},
        "Infer": {
            "transforms": transforms,
            "PostProcess": {"name": "Topk", "topk": 5, "class_id_map_file": "imagenet1k_label_list.txt"},
        },
    }
    source = ConfigSource(tree, name)
    source.apply(read_overrides(overrides))
    return source.validate()
