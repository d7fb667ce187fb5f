"""Exports bundles of several models and precisions, and verifies each with all runners on varied images.

    python benchmarks/bundle_runners.py OUTPUT --digits RUN --cpp build/predict --node-modules FOLDER

The images have all subsamplings of JPEG, progressive and grey JPEGs, all modes of PNG, EXIF orientations and
odd sizes. Each runner decodes the files itself, and reports the largest difference of a probability from that
of the trained model (float32), or of the bundle in ONNX Runtime (float16 and int8).
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

Kind = tuple[str, Callable[[Image.Image], Image.Image], dict[str, Any]]

PRECISIONS = ("float32", "float16", "int8")
RANDOM = ("ViT_small_patch16_224", "SwinTransformer_tiny_patch4_window7_224")
PUBLISHED = "EfficientNet_lite0"
ORIENTATION = 0x0112
SIZES = (
    (224, 224),
    (225, 223),
    (301, 199),
    (97, 333),
    (640, 427),
    (333, 777),
    (31, 29),
    (256, 1),
    (511, 512),
)


def main() -> None:
    """Prints a table of all models, precisions and runners."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="new folder")
    parser.add_argument("--digits", help="run of configs/quickstart.yaml, whose ResNet18 is exported, too")
    parser.add_argument("--cpp", help="C++ runner")
    parser.add_argument("--node-modules", type=Path, help="folder with onnxruntime-node and sharp")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--models", nargs="+")
    options = parser.parse_args()
    write_images(options.output / "images", options.images)
    write("| model | precision | runner | result |\n| --- | --- | --- | --- |")
    models = [*([options.digits] if options.digits else []), PUBLISHED, *RANDOM]
    for model, precision in itertools.product(options.models or models, PRECISIONS):
        folder = export(options.output, model, precision, options.images)
        for runner, result in verify(folder, options.cpp, options.node_modules):
            write(f"| {Path(model).name} | {precision} | {runner} | {result} |")


def write(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_images(folder: Path, count: int) -> None:
    """Writes photographs in ``count`` kinds of files."""
    from skimage import data

    folder.mkdir(parents=True)
    names = ("astronaut", "coffee", "rocket", "cat")
    photos = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in names]
    for number, (kind, photo, size) in enumerate(itertools.islice(varied(photos), count)):
        image = photo.resize(size)
        suffix, convert, settings = kind
        convert(image).save(folder / f"{number:03}{suffix}", **settings)


def varied(photos: list[Image.Image]) -> Iterator[tuple[Kind, Image.Image, tuple[int, int]]]:
    """Yields kinds of files, each with a photograph and a size (width, height), without end."""
    kinds: list[Kind] = []
    for subsampling, progressive in itertools.product(("4:4:4", "4:2:2", "4:2:0"), (False, True)):
        settings = {"quality": 90, "subsampling": subsampling, "progressive": progressive}
        kinds.append((".jpg", lambda image: image, settings))
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        kinds.append((".jpg", lambda image: image, {"quality": 80, "exif": exif}))
    kinds.append((".jpg", lambda image: image.convert("L"), {"quality": 85}))
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA"):
        kinds.append((".png", partial(with_alpha, mode=mode), {}))
    kinds.append((".png", sixteen_bits, {}))
    for number in itertools.count():
        size = SIZES[number % len(SIZES)]
        yield kinds[number % len(kinds)], photos[(number // 3) % len(photos)], size


def with_alpha(image: Image.Image, mode: str) -> Image.Image:
    """Returns an image in a mode of Pillow, with random alpha if the mode has alpha."""
    converted = image.convert(mode)
    if "A" in mode:
        shape = image.size[::-1]
        alpha = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        converted.putalpha(Image.fromarray(alpha))
    return converted


def sixteen_bits(image: Image.Image) -> Image.Image:
    """Returns a grey image of 16 bits."""
    grey = np.asarray(image.convert("L")).astype(np.uint16)
    return Image.fromarray(grey * 257 - grey % 3)


def export(output: Path, model: str, precision: str, images: int) -> Path:
    """Exports a bundle, and returns its folder."""
    folder = output / f"{Path(model).name}-{precision}"
    data = str(output / "images")
    words = ["--model", model, "--trust"]
    if model in RANDOM:
        words = ["-c", str(write_config(output, model))]
    command = [
        sys.executable,
        "-m",
        "ppcls",
        "export",
        *words,
        "--format",
        "bundle",
        "--precision",
        precision,
    ]
    command += [
        "--golden",
        str(images),
        "--golden-data",
        data,
        "--runners",
        "python,js",
        "--output",
        str(folder),
    ]
    if precision == "int8":
        command += ["--calibration-data", data, "--calibration-images", "64", "--calibration", "minmax"]
    command += ["--max-accuracy-loss", "100", "-o", "Global.device=cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return folder


def write_config(output: Path, name: str) -> Path:
    """Writes a config and random weights of a transformer, and returns the path of the config."""
    file = output / f"{name}.yaml"
    if file.exists():
        return file
    import paddle

    from ppcls.arch.build import build_model
    from ppcls.weights.files import write_arrays

    paddle.seed(7)
    model = build_model(name, 1000)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.set_value(parameter * 3)  # otherwise, all images would have the same scores
    weights = output / f"{name}.safetensors"
    write_arrays(weights, model.state_dict())
    normalize = {"scale": "1.0/255.0", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    resize = {"resize_short": 248, "interpolation": "bicubic", "backend": "pil"}
    tree = {
        "Global": {"device": "cpu", "output_dir": str(output / "run"), "pretrained_model": str(weights)},
        "Arch": {"name": name, "class_num": 1000},
        "Optimizer": {"name": "Momentum", "lr": {"name": "Constant", "learning_rate": 0.1}},
        "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
        "Infer": {
            "transforms": [
                {"DecodeImage": None},
                {"ResizeImage": resize},
                {"CropImage": {"size": 224}},
                {"NormalizeImage": normalize},
            ]
        },
    }
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return file


def verify(folder: Path, cpp: str | None, node_modules: Path | None) -> Iterator[tuple[str, str]]:
    """Yields the name of each runner, and the first line that it prints."""
    commands = {"ppcls": [sys.executable, "-m", "ppcls", "verify", str(folder)]}
    commands["Python"] = [sys.executable, str(folder / "runners/python/predict.py"), "verify"]
    if cpp:
        commands["C++ (OpenVINO)"] = [cpp, str(folder), "verify"]
    if node_modules:
        link = folder / "runners/js/node_modules"
        link.symlink_to(node_modules.resolve())
        commands["Node.js"] = ["node", str(folder / "runners/js/predict.mjs"), "verify"]
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        lines = (done.stdout + done.stderr).splitlines()
        answers = [line for line in lines if "PASS" in line or "FAIL" in line]
        yield name, answers[-1] if answers else f"error: {lines[-1:]}"


if __name__ == "__main__":
    main()
