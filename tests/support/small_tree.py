"""The config of a small real run, as nested dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLASSES = 4


def small_tree(images: Path, output: Path) -> dict[str, Any]:
    """The YAML of a run of 2 epochs of 4 batches at 16 px, of a model that trains and saves quickly."""
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    random = [{"RandCropImage": {"size": 16}}, {"RandFlipImage": {"flip_code": 1}}]

    def split(name: str, chain: list[Any], **sampler: Any) -> dict[str, Any]:
        return {
            "dataset": {
                "name": "ImageNetDataset",
                "image_root": str(images),
                "cls_label_path": str(images / f"{name}.txt"),
                "transform_ops": [{"DecodeImage": None}, *chain, normalize],
            },
            "sampler": {"batch_size": 8, **sampler},
            "loader": {"num_workers": 0, "dali": {"num_threads": 1}},
        }

    return {
        "Global": {
            "output_dir": str(output),
            "device": "cpu",
            "seed": 5,
            "epochs": 2,
            "use_dali": True,
            "print_batch_step": 2,
            "image_shape": [3, 16, 16],
        },
        "Arch": {"name": "PPLCNet_x0_25", "class_num": CLASSES},
        "Optimizer": {
            "name": "Momentum",
            "lr": {"name": "Cosine", "learning_rate": 0.01},
            "regularizer": {"name": "L2", "coeff": 1e-4},
        },
        "DataLoader": {
            "Train": split("train", random, shuffle=True),
            "Eval": split("eval", [{"ResizeImage": {"size": 16}}]),
        },
        "Metric": {"Train": [{"TopkAcc": {"topk": 1}}], "Eval": [{"TopkAcc": {"topk": [1, 2]}}]},
    }
