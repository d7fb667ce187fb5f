"""Exports bundles of several models and precisions, and verifies each with all runners on varied images.

    python benchmarks/bundle_runners.py OUTPUT --digits RUN --cpp build/predict --node-modules FOLDER
        --web-modules FOLDER --java CLASSPATH

The images have all subsamplings of JPEG, progressive and grey JPEGs, all modes of PNG, EXIF orientations and
odd sizes. Each runner decodes the files itself, and reports the largest difference of a probability from that
of the trained model (float32), or of the bundle in ONNX Runtime (float16 and int8).

Then the outputs of faulty programs are compared with those of the bundle: with another mean, BGR instead of
RGB, another resizing, and without the crop. The second table shows the stages that ``ppcls verify`` names.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from PIL import Image

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import CropImage, NormalizeImage, ResizeImage, plan_chain
from ppcls.deploy.bundle.schema import GoldenSample, read_bundle_file, read_values
from ppcls.deploy.bundle.verify import verify_outputs
from ppcls.deploy.models.description import read_description

Kind = tuple[str, Callable[[Image.Image, Path], None]]

PRECISIONS = ("float32", "float16", "int8")
RANDOM = ("DeiT_tiny_patch16_224", "SwinTransformer_tiny_patch4_window7_224")
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
SUBSAMPLINGS = ("411", "420", "422", "440", "444")
FAULTS = ("wrong mean", "BGR", "BGR after decoding", "another resizing", "no crop")
CROPPED_DIGITS = (
    "[{DecodeImage: null}, {ResizeImage: {resize_short: 36}}, {CropImage: {size: 32}}, "
    "{NormalizeImage: {scale: 1.0/255.0, mean: [0.3, 0.3, 0.3], std: [0.35, 0.35, 0.35]}}]"
)
LOGITS = (
    3.0  # standard deviation of logits, so that some probabilities are as large as those of trained models
)
COMPARED = 20  # golden samples for each fault


def main() -> None:
    """Prints a table of all models, precisions and runners, and one of all faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="folder for images and bundles")
    parser.add_argument("--digits", help="run of configs/quickstart.yaml, whose ResNet18 is exported, too")
    parser.add_argument("--cpp", help="C++ runner")
    parser.add_argument("--node-modules", type=Path, help="folder with onnxruntime-node and sharp")
    parser.add_argument("--web-modules", type=Path, help="folder with onnxruntime-web; needs chromium")
    parser.add_argument("--java", help="class path with the compiled Java runner, ONNX Runtime and Gson")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    options = parser.parse_args()
    write_images(options.output / "images", options.images)
    write("| model | precision | allowed | runner | result |\n| --- | --- | --- | --- | --- |")
    models = options.models or [*([options.digits] if options.digits else []), PUBLISHED, *RANDOM]
    faults = []
    for model, precision in itertools.product(models, options.precisions):
        folder = export(options.output, model, precision, options.images)
        allowed = read_bundle_file(folder).tolerances.probabilities
        for runner, result in verify(folder, options):
            write(f"| {folder.name} | {precision} | {allowed} | {runner} | {result} |")
        faults += [
            f"| {folder.name} | {precision} | {fault} | {find_stage(folder, fault)} |" for fault in FAULTS
        ]
    write("| model | precision | fault | result |\n| --- | --- | --- | --- |")
    for line in faults:
        write(line)


def write(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_images(folder: Path, count: int) -> None:
    """Writes photographs in ``count`` kinds of files."""
    from skimage import data

    folder.mkdir(parents=True, exist_ok=True)
    names = ("astronaut", "coffee", "rocket", "cat")
    photos = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in names]
    kinds = file_kinds()
    for number in range(count):
        suffix, save = kinds[number % len(kinds)]
        photo = photos[(number // 3) % len(photos)]
        save(photo.resize(SIZES[number % len(SIZES)]), folder / f"{number:03}{suffix}")


def file_kinds() -> list[Kind]:
    """Returns functions that write an image in different kinds of files."""
    kinds: list[Kind] = []
    for subsampling, progressive in itertools.product(SUBSAMPLINGS, (False, True)):
        kinds.append((".jpg", partial(save_subsampled, subsampling=subsampling, progressive=progressive)))
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        kinds.append((".jpg", partial(save, quality=80, exif=exif)))
        if orientation % 2:
            kinds.append((".png", partial(save, exif=exif)))
    kinds.append((".jpg", partial(save, mode="L", quality=85)))
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "I;16"):
        kinds.append((".png", partial(save, mode=mode)))
    return kinds


def save(image: Image.Image, path: Path, mode: str = "RGB", **settings: Any) -> None:
    """Saves an image in a mode of Pillow."""
    (sixteen_bits(image) if mode == "I;16" else with_alpha(image, mode)).save(path, **settings)


def save_subsampled(image: Image.Image, path: Path, subsampling: str, progressive: bool) -> None:
    """Saves a JPEG file with OpenCV, which knows more subsamplings than Pillow."""
    settings = [
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
        getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{subsampling}"),
        cv2.IMWRITE_JPEG_PROGRESSIVE,
        int(progressive),
    ]
    cv2.imwrite(str(path), np.asarray(image)[..., ::-1], settings)


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
    is_run = Path(model).is_dir()
    folder = output / f"{'ResNet18' if is_run else model}-{precision}"
    data = str(output / "images")
    words = ["-c", str(write_config(output, model))] if model in RANDOM else ["--model", model, "--trust"]
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
    command += ["--golden", str(images), "--golden-data", data, "--output", str(folder)]
    command += ["--runners", "python,js,web"]
    if precision == "int8":
        command += [
            "--calibration-data",
            data,
            "--calibration-images",
            str(min(64, images)),
            "--calibration",
            "minmax",
        ]
    command += ["--max-accuracy-loss", "100", "-o", "Global.device=cpu"]
    if is_run:  # the quick start resizes digits without a crop
        command += ["-o", f"Infer.transforms={CROPPED_DIGITS}"]
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
    model.eval()
    head = next(parameter for parameter in reversed(model.parameters()) if parameter.ndim > 1)
    head.set_value(paddle.randn(head.shape))
    head.set_value(head * float(LOGITS / model(paddle.randn([4, 3, 224, 224])).std()))
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


def verify(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yields the name of each runner, and the first line that it prints."""
    commands = {"Python": [sys.executable, str(folder / "runners/python/predict.py"), "verify"]}
    if options.cpp:
        commands["C++ (OpenVINO)"] = [options.cpp, str(folder), "verify"]
    if options.node_modules:
        (folder / "runners/js/node_modules").symlink_to(options.node_modules.resolve())
        commands["Node.js"] = ["node", str(folder / "runners/js/predict.mjs"), "verify"]
    if options.java:
        commands["Java"] = ["java", "-cp", options.java, "Predict", str(folder), "verify"]
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        yield name, find_result(done.stdout + done.stderr)
    if options.web_modules:
        (folder / "runners/web/node_modules").symlink_to(options.web_modules.resolve())
        yield "Chromium", find_result(verify_in_browser(folder))


def find_result(text: str) -> str:
    """Returns the line with the result of a runner."""
    lines = text.splitlines()
    answers = [line for line in lines if re.match("PASS|FAIL", line)]
    return answers[-1] if answers else f"error: {lines[-1:]}"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


def verify_in_browser(folder: Path) -> str:
    """Returns the text of the page that verifies a bundle."""
    from playwright.sync_api import sync_playwright

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with sync_playwright() as playwright:
            program = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/runners/web/?verify")
            ended = "/PASS|FAIL|error/.test(document.querySelector('#output').textContent)"
            page.wait_for_function(ended, timeout=0)
            return page.inner_text("#output")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def find_stage(folder: Path, fault: str) -> str:
    """Returns the stage that ``ppcls verify`` names for a program with a fault, and its explanation."""
    bundle = read_bundle_file(folder)
    specs = change_transforms(read_description(folder).PreProcess.transform_ops, fault)
    shape = bundle.prepared_shape
    ops = plan_chain(specs, "CHW" if shape is not None and shape[0] == 3 else "HWC")

    def write_outputs(sample: GoldenSample, outputs: Path) -> None:
        pixels = read_values(folder, sample.decoded, (sample.height, sample.width, 3), "uint8")
        decoded = pixels[..., ::-1] if fault.startswith("BGR") else pixels
        stem = str(outputs / Path(sample.image).stem)
        if fault != "BGR after decoding":
            np.save(f"{stem}.decoded.npy", decoded)
        np.save(f"{stem}.prepared.npy", run_on_pixels(ops, np.ascontiguousarray(decoded)).astype(np.float32))

    with tempfile.TemporaryDirectory() as outputs:
        for sample in bundle.golden[:COMPARED]:
            write_outputs(sample, Path(outputs))
        report = verify_outputs(folder, bundle, Path(outputs))
    return " ".join(str(report).split())


def change_transforms(specs: tuple[Transform, ...], fault: str) -> tuple[Transform, ...]:
    """Returns the transforms of a faulty program."""
    changed = []
    for spec in specs:
        if fault == "no crop" and isinstance(spec, CropImage):
            continue
        if fault == "wrong mean" and isinstance(spec, NormalizeImage):
            spec = spec.model_copy(update={"mean": (0.5, 0.45, 0.4)})
        if fault == "another resizing" and isinstance(spec, ResizeImage):
            other = {"backend": "cv2" if spec.backend == "pil" else "pil", "interpolation": "bilinear"}
            spec = spec.model_copy(update=other)
        changed.append(spec)
    return tuple(changed)


if __name__ == "__main__":
    main()
