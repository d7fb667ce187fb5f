"""Writes a small WideResNet with random weights, for 32 px images of three classes, as files of the tools."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
import yaml

from ppcls.arch.build import build_model
from ppcls.cli.export import export
from ppcls.weights.files import write_arrays
from ppcls.weights.manifest import Manifest
from ppcls.weights.store import Store

NAME = "WideResNet"
# One block per stage. To export a MobileNetV1, whose convolutions are three times as many, takes a second.
OPTIONS: dict[str, Any] = {"depth": 10, "widen_factor": 1}
CLASSES = ("cat", "great white shark", "café")


def arch_tree(name: str = NAME) -> dict[str, Any]:
    """Returns the section ``Arch`` of a network, without its classes."""
    return {"name": name, **(OPTIONS if name == NAME else {})}


def write_weights(path: Path, name: str = NAME, **options: Any) -> Path:
    """Writes weights that fit both layouts; batch norm's statistics are not the fresh ones either."""
    paddle.seed(7)
    model = build_model(class_num=len(CLASSES), **arch_tree(name), **options)
    model.train()
    for _ in range(2):
        model(paddle.randn([4, 3, 32, 32]))
    write_arrays(path, model.state_dict())
    return path


def write_names(path: Path) -> Path:
    path.write_text("".join(f"{i} {name}\n" for i, name in enumerate(CLASSES)), encoding="utf-8")
    return path


def forget_files(folder: Path) -> None:
    """Removes the digests of the files from inference.yml, which exports of PaddleClas do not have."""
    tree = yaml.safe_load((folder / "inference.yml").read_text(encoding="utf-8"))
    tree["Export"].pop("files", None)
    write_config(folder / "inference.yml", tree)


def write_image(path: Path, seed: int, height: int = 40, width: int = 48) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    assert cv2.imwrite(str(path), cv2.resize(coarse, (width, height)))
    return path


def write_huge_png(path: Path) -> None:
    """Writes the beginning of a PNG that claims more pixels than OpenCV takes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 200_000, 200_000, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))


def config_tree(weights: Path, names: Path | None, layout: str = "NCHW", name: str = NAME) -> dict[str, Any]:
    """Returns a whole config of the network ``name``, in the words of the YAML."""
    return {
        "Global": {
            "device": "cpu",
            "output_dir": str(weights.parent / "output"),
            "pretrained_model": str(weights),
            "image_shape": [3, 32, 32],
        },
        "Arch": {**arch_tree(name), "class_num": len(CLASSES), "data_format": layout},
        "Optimizer": {"name": "Momentum", "lr": {"name": "Constant", "learning_rate": 0.1}},
        "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
        "Infer": {
            "batch_size": 2,
            "transforms": [
                {"DecodeImage": None},
                {"ResizeImage": {"resize_short": 36}},
                {"CropImage": {"size": 32}},
                {"NormalizeImage": {"scale": "1.0/255.0", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}},
            ],
            "PostProcess": {"topk": 2, "class_id_map_file": str(names) if names else None},
        },
    }


def write_config(path: Path, tree: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def export_model(folder: Path, kind: str = "onnx", name: str = NAME) -> Path:
    """Exports a classifier in the format ``kind``, and returns the folder of the export, ``folder/kind``."""
    weights = write_weights(folder / "model.safetensors", name)
    tree = config_tree(weights, write_names(folder / "names.txt"), name=name)
    config = str(write_config(folder / "config.yaml", tree))
    out = f"Global.save_inference_dir={folder / kind}"
    assert export(["-c", config, "--format", kind, "-o", out]) == 0
    return folder / kind


def write_checkpoint(run: Path, files: dict[str, bytes]) -> Path:
    """Writes a complete checkpoint of ``files`` as the best model of a run, and returns its folder."""
    store = Store(run)
    manifest = Manifest(serial=1, update=1, epoch=1, step=0, versions={}, files={})
    parts = ((name, (content,)) for name, content in files.items())
    store.link("best_model", store.write(parts, manifest))
    return run / "best_model"
