"""Images that are small, but would become huge when their shorter side is resized."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import cv2
import numpy as np
import pytest
from bundles import write_photographs
from hypothesis import given
from hypothesis import strategies as st
from loader_conformance import FAST, MAKERS
from small_classifier import config_tree, write_config, write_names, write_weights

from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.base import MAX_PIXELS, ChainError, CustomTransform, Transform, check_chain
from ppcls.data.transforms.numpy_ops.chain import decide_and_apply, run
from ppcls.data.transforms.specs.basic import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    ResizeImage,
)
from ppcls.data.transforms.specs.chain import Op, TransformsOfModel, decide_chain, plan_chain
from ppcls.data.transforms.specs.decisions import checked_sides_after, decide
from ppcls.data.transforms.specs.fuse import VariableSize
from ppcls.data.transforms.specs.geometry import Pad, RandomRot90, RandomRotation
from ppcls.deploy.predictor import Predictor

pytestmark = pytest.mark.hostile


THIN = cv2.imencode(".png", np.zeros((1, 4000, 3), np.uint8))[1].tobytes()
USUAL = cv2.imencode(".png", np.full((30, 40, 3), 7, np.uint8))[1].tobytes()
MEMORY = 300 << 10  # KiB, the rest of what a loader needs
CUDA_MEMORY = 3 << 20  # KiB, with CUDA's libraries; without a limit on pixels, these images need 8 GB


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def no_pixels(height: int, width: int) -> np.ndarray:
    """Returns an image of any size that needs no memory."""
    return np.broadcast_to(np.uint8(7), (height, width, 3))


@pytest.mark.parametrize(
    ("spec", "height", "width"),
    [
        (ResizeImage(resize_short=256), 1, 4000),
        (ResizeImage(resize_short=256), 4000, 1),
        (ResizeImage(resize_short=256, backend="pil"), 1, 100_000),
        (ResizeImage(resize_short=16_384), 2, 100_000_000),
        (ResizeImage(size=(16_384, 16_384)), 10, 10),
        (RandCropImage(size=(16_384, 6_200)), 10, 10),
        (Pad(padding=5_000), 10, 10),
        (Pad(padding=(0, 0, 0, 16_000), padding_mode="edge"), 1, 10_000),
        (VariableSize(part=ResizeImage(size=(16_384, 16_384))), 10, 10),
        (TransformsOfModel(specs=(Pad(padding=1), ResizeImage(resize_short=256))), 1, 2_000_000),
    ],
)
def test_enlarged_size_is_limited(spec: Transform, height: int, width: int) -> None:
    before = peak_kib()
    expected = r"would enlarge the image of .* pixels, expected at most 100,000,000 pixels; crop the image"
    with pytest.raises(DecodeError, match=expected):
        decide_and_apply(spec, no_pixels(height, width), np.full(spec.draws, 0.5, np.float32))
    with pytest.raises(DecodeError, match=expected):
        list(
            decide_chain(
                [Op(spec, 0)], np.full((1, spec.draws), 0.5, np.float32), np.array([[height, width]])
            )
        )
    assert peak_kib() - before < MEMORY


@given(
    spec=st.one_of(
        st.builds(ResizeImage, resize_short=st.integers(1, 16_384)),
        st.builds(ResizeImage, size=st.integers(1, 16_384)),
        st.builds(Pad, padding=st.integers(0, 16_384)),
        st.builds(RandCropImage, size=st.integers(1, 16_384)),
        st.builds(CropImage, size=st.integers(1, 16_384)),
        st.just(RandomRot90()),
    ),
    height=st.integers(1, 1_000_000),
    width=st.integers(1, 1_000_000),
)
def test_no_transform_enlarges_beyond_the_limit(spec: Transform, height: int, width: int) -> None:
    sides = np.array([[height, width]])
    decisions = decide(spec, np.full((1, spec.draws), 0.5, np.float32), sides)
    try:
        ((tall, wide),) = checked_sides_after(spec, sides, decisions).tolist()
    except DecodeError:
        return
    assert tall * wide <= max(MAX_PIXELS, height * width)


def test_large_images_that_are_not_enlarged_are_accepted() -> None:
    sides = np.array([[20_000, 30_000]])
    for spec in (ResizeImage(resize_short=10), Pad(padding=0), CropImage(size=224)):
        checked_sides_after(spec, sides, decide(spec, np.zeros((1, 0), np.float32), sides))


@pytest.mark.parametrize("spec", [ResizeImage(size=(16_384, 16_384)), ResizeImage(resize_short=16_384)])
def test_chain_with_images_that_are_always_too_large_is_an_error(spec: Transform) -> None:
    with pytest.raises(
        ChainError, match="expected images of at most 100,000,000 pixels, got at least 16384x"
    ):
        check_chain([DecodeImage(), spec, CropImage(size=8), NormalizeImage()])


@pytest.mark.parametrize("transform", [ResizeImage(resize_short=256), RandomRotation(degrees=(9, 9), prob=1)])
def test_missing_memory_is_a_bad_image(transform: Transform) -> None:
    class Starved(CustomTransform, abstract=True):
        def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
            return np.zeros([1 << 22, 1 << 22, 8])

    with pytest.raises(DecodeError, match="there is not enough memory for Starved of this image"):
        run([Op(DecodeImage(), 0), Op(transform, 0), Op(Starved(), 0)], USUAL, np.zeros(2, np.float32))


@pytest.mark.parametrize("kind", [*FAST, pytest.param("dali-gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("backend", ["cv2", "pil"])
def test_loaders_skip_thin_images_by_name_and_need_no_memory(kind: str, backend: str, tmp_path: Path) -> None:
    names = [f"{number}.png".encode() for number in range(8)]
    for number, name in enumerate(names):
        (tmp_path / os.fsdecode(name)).write_bytes(THIN if number in (2, 5) else USUAL)
    index = FileIndex(tmp_path, np.array(names), np.arange(8), tmp_path)
    ops = plan_chain(
        [
            DecodeImage(),
            ResizeImage(resize_short=256, backend=backend),
            CropImage(size=224),
            NormalizeImage(),
        ],
        "CHW",
    )
    quarantine = Quarantine(index, tmp_path / "bad_images.txt")
    order = Order(SequentialSampler(8), batch_size=4)
    before = peak_kib()
    loader = MAKERS[kind](index, order, ops, quarantine=quarantine)  # type: ignore[call-arg]
    labels = [label for batch in loader for label in batch.label.numpy()[: batch.valid].tolist()]
    loader.release()
    assert sorted(labels) == [0, 1, 3, 4, 6, 7]
    lines = (tmp_path / "bad_images.txt").read_text().splitlines()
    assert len(lines) == 2
    assert all("would enlarge the image of 4000x1 pixels to 1024000x256 pixels" in line for line in lines)
    assert peak_kib() - before < (CUDA_MEMORY if kind == "dali-gpu" else MEMORY)


@pytest.mark.parametrize(
    ("backend", "preprocess"),
    [
        ("cv2", []),
        pytest.param("pil", [], marks=pytest.mark.slow),
        pytest.param("cv2", ["--preprocess", "all"], marks=pytest.mark.slow),
        ("pil", ["--preprocess", "all"]),
    ],
)
def test_thin_image_is_rejected_without_memory(tmp_path: Path, backend: str, preprocess: list[str]) -> None:
    weights = write_weights(tmp_path / "model.safetensors")
    tree = config_tree(weights, write_names(tmp_path / "names.txt"))
    tree["Infer"]["transforms"][1] = {"ResizeImage": {"resize_short": 256, "backend": backend}}
    config = str(write_config(tmp_path / "config.yaml", tree))
    assert export(["-c", config, "--format", "onnx", "--output", str(tmp_path / "onnx"), *preprocess]) == 0
    predictor = Predictor(tmp_path / "onnx", device="cpu")
    before = peak_kib()
    with pytest.raises(ValueError, match="would enlarge the image of 4000x1 pixels"):
        predictor.predict([THIN])
    with pytest.raises(DecodeError, match="would enlarge the image of 4000x1 pixels"):  # as the server does
        run(predictor.chain, THIN, np.zeros(0, np.float32))
    assert peak_kib() - before < MEMORY


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, exported models that prepare images themselves, and images."""
    folder = tmp_path_factory.mktemp("thin")
    tree = config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))
    tree["Infer"]["transforms"][1] = {"ResizeImage": {"resize_short": 256}}
    config = str(write_config(folder / "config.yaml", tree))
    (folder / "images" / "a").mkdir(parents=True)
    for name, data in (("thin", THIN), ("usual", USUAL)):
        (folder / "images" / "a" / f"{name}.png").write_bytes(data)
    for kind in ("all", "normalize"):
        out = str(folder / kind)
        assert export(["-c", config, "--format", "onnx", "--output", out, "--preprocess", kind]) == 0
    golden = ["--golden-data", str(write_photographs(folder / "golden"))]
    assert export(["-c", config, "--format", "bundle", "--output", str(folder / "bundle"), *golden]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "-c config.yaml",
        "-c config.yaml -o Global.use_dali=True",
        "-c config.yaml --tta flip",
        "-c config.yaml --tta five-crop",
        "-c config.yaml --tta five-crop -o Global.use_dali=True",
        "-c config.yaml --explain heat",
        "--model all",
        "--model normalize",
        "--model normalize --tta flip -o Global.use_dali=True",
        "--model bundle",
    ],
)
def test_commands_report_thin_images_and_predict_the_others(
    words: str, classifier: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(classifier)
    before = peak_kib()
    assert infer(["images", *words.split()]) == 3
    lines = sorted(line for line in capfd.readouterr().out.splitlines() if line.startswith("images/"))
    assert len(lines) == 2
    assert lines[0].startswith("images/a/thin.png: ")
    assert "would enlarge the image of 4000x1 pixels" in lines[0]
    assert lines[1].startswith("images/a/usual.png: ")
    assert peak_kib() - before < 2 * MEMORY
