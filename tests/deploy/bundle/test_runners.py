"""Builds the programs of a bundle, and verifies the bundle with each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from browser import CHROMIUM, needs_chromium
from bundles import SELECTIONS, export_bundle, other_selection
from PIL import Image
from playwright.sync_api import sync_playwright
from small_classifier import write_checkpoint, write_weights

from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import CropImage, DecodeImage, ResizeImage, plan_chain
from ppcls.deploy.bundle.engines import OpenVinoStages
from ppcls.deploy.bundle.runners import RUNNERS
from ppcls.deploy.export.formats import convert_to_onnx
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.models.rejection import RejectionRule, write_rejection

pytestmark = pytest.mark.slow

ANSWER = ": (unknown, score|cat|great white shark|café) "
JARS = os.environ.get("JAVA_CLASSPATH", "missing.jar").split(os.pathsep)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a rule whose score the model returns, and all programs."""
    folder = tmp_path_factory.mktemp("bundle")
    files = {"model.safetensors": write_weights(folder / "weights.safetensors").read_bytes()}
    files["config.yaml"] = b"{}"
    checkpoint = write_checkpoint(folder / "run", files)
    write_rejection(checkpoint, RejectionRule(score="energy", threshold=1.0))
    model = ("-o", f"Global.pretrained_model={checkpoint}")
    return export_bundle(folder, "--runners", ",".join(RUNNERS), *model)


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bad_images(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """Files that no runner predicts, with a part of the message."""
    folder = tmp_path_factory.mktemp("bad")
    image = Image.open(bundle / "golden/00.png").resize((99, 80))
    image.convert("CMYK").save(folder / "cmyk.jpg")
    for name in ("cut.jpg", "cut.png"):
        image.save(folder / name)
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])
    image.save(folder / "other.gif")
    (folder / "text.jpg").write_text("no image")
    cut = "damaged|truncated|could not be decoded|premature end|read error|Error reading"
    return {
        folder / "cmyk.jpg": "CMYK is not supported; convert the image to RGB",
        folder / "cut.jpg": cut,
        folder / "cut.png": cut,
        folder / "other.gif": "expected a JPEG or PNG file|cannot identify",
        folder / "text.jpg": "expected a JPEG or PNG file|cannot identify|unsupported image format",
    }


def check_errors(bad_images: dict[Path, str], *words: str | Path) -> None:
    """Checks that a runner prints one error per file."""
    done = subprocess.run([*words, *bad_images], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    for line, reason in zip(done.stdout.splitlines(), bad_images.values(), strict=True):
        assert "error: " in line
        assert re.search(reason, line), line


def check_verify(bundle: Path, *words: str | Path) -> None:
    """Checks that a runner verifies a bundle, and names other classes unless they are nearly tied."""
    assert run(*words, "verify").startswith("PASS: 4 of 4")
    for method, near, expected in SELECTIONS:
        with other_selection(bundle, method, near):
            done = subprocess.run([*words, "verify"], capture_output=True, text=True)
            assert done.stdout.startswith(expected), done.stdout + done.stderr
            assert done.returncode == (0 if near else 3)


def test_python_runner_rejects_bad_images(bundle: Path, bad_images: dict[Path, str]) -> None:
    check_errors(bad_images, sys.executable, bundle / "runners/python/predict.py")


def test_every_runner_has_a_short_readme(bundle: Path) -> None:
    for name in RUNNERS:
        text = (bundle / "runners" / name / "README.md").read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert len(text.splitlines()) <= 7


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_node_runner_verifies(bundle: Path, bad_images: dict[Path, str]) -> None:
    folder = bundle / "runners/js"
    run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    check_verify(bundle, "node", folder / "predict.mjs")
    answer = run("node", folder / "predict.mjs", bundle / "golden/00.png")
    assert re.search(ANSWER, answer)
    check_errors(bad_images, "node", folder / "predict.mjs")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@needs_chromium
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_web_page_verifies(bundle: Path, bad_images: dict[Path, str]) -> None:
    run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", cwd=bundle / "runners/web")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=bundle))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/runners/web/?verify")
            ended = "/PASS|FAIL|error/.test(document.querySelector('#output').textContent)"
            page.wait_for_function(ended, timeout=0)
            text = page.inner_text("#output")
            assert text.startswith("PASS: 4 of 4"), text
            for file, reason in {bundle / "golden/00.png": ANSWER, **bad_images}.items():
                page.evaluate("document.querySelector('#output').textContent = ''")
                page.set_input_files("#file", file)
                page.wait_for_function(
                    "/%|unknown|error/.test(document.querySelector('#output').textContent)", timeout=0
                )
                assert re.search(reason, page.inner_text("#output"))
            browser.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.skipif(
    shutil.which("cmake") is None or find_spec("openvino") is None,
    reason="cmake or OpenVINO is not installed",
)
def test_cpp_runner_verifies(bundle: Path, tmp_path: Path, bad_images: dict[Path, str]) -> None:
    import openvino.utils

    folder = openvino.utils.get_cmake_path()
    run("cmake", "-S", bundle / "runners/cpp", "-B", tmp_path, f"-DOpenVINO_DIR={folder}")
    run("cmake", "--build", tmp_path)
    check_verify(bundle, tmp_path / "predict", bundle)
    answer = run(tmp_path / "predict", bundle, bundle / "golden/00.png")
    assert re.search(ANSWER, answer)
    check_errors(bad_images, tmp_path / "predict", bundle)


@pytest.mark.skipif(
    shutil.which("javac") is None or not all(map(os.path.exists, JARS)),
    reason="javac is not installed, or JAVA_CLASSPATH does not contain the jars of ONNX Runtime and Gson",
)
def test_java_runner_verifies(bundle: Path, tmp_path: Path, bad_images: dict[Path, str]) -> None:
    jars = os.pathsep.join(JARS)
    run("javac", "-Xlint:all", "-Werror", "-cp", jars, "-d", tmp_path, bundle / "runners/java/Predict.java")
    java = ("java", "-cp", f"{tmp_path}{os.pathsep}{jars}", "Predict", bundle)
    check_verify(bundle, *java)
    answer = run(*java, bundle / "golden/00.png")
    assert re.search(ANSWER, answer)
    check_errors(bad_images, *java)


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_openvino_resizes_like_pillow(interpolation: Literal["bilinear"], tmp_path: Path) -> None:
    import paddle

    resize = ResizeImage(resize_short=64, backend="pil", interpolation=interpolation)
    chain = [DecodeImage(), resize, CropImage(size=64)]
    spec = paddle.static.InputSpec([None, None, None, 3], "uint8", name="x")
    network = paddle.jit.to_static(PreprocessingLayer(chain), input_spec=[spec], full_graph=True)
    (tmp_path / "model.onnx").write_bytes(
        convert_to_onnx(lambda stem: paddle.jit.save(network, str(stem)), tmp_path, "resizing")
    )
    model = OpenVinoStages(tmp_path / "model.onnx")
    for number, shape in enumerate([(64, 64), (97, 333), (427, 640), (31, 29), (1, 256), (1423, 906)]):
        pixels = np.random.default_rng(number).integers(0, 256, (*shape, 3)).astype(np.uint8)
        expected = run_on_pixels(plan_chain(chain, "HWC"), pixels)
        np.testing.assert_array_equal(next(iter(model.run(pixels[None]).values()))[0], expected)
