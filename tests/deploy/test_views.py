"""Test-time augmentation in prediction and evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_classifier import CLASSES, config_tree, write_config, write_image, write_names, write_weights

from ppcls.cli.eval import evaluate
from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.data.views import ImageViews
from ppcls.deploy.models.source import ModelSource
from ppcls.deploy.predictor import Predictor

IMAGES = 9


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_views_are_the_mirror_image_and_the_five_crops(layout: Any) -> None:
    images = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # [B, C, H, W]
    given = images if layout == "NCHW" else images.transpose(0, 2, 3, 1)

    def views(kind: Any) -> list[Any]:
        found = ImageViews(kind, (2, 3), layout)(given)
        return [view if layout == "NCHW" else view.transpose(0, 3, 1, 2) for view in found]

    same, mirrored = views("flip")
    np.testing.assert_array_equal(same, images)
    np.testing.assert_array_equal(mirrored, np.flip(images, 3))
    expected = [
        images[:, :, rows, columns]
        for rows, columns in (
            (slice(0, 2), slice(0, 3)),
            (slice(0, 2), slice(2, 5)),
            (slice(2, 4), slice(0, 3)),
            (slice(2, 4), slice(2, 5)),
            (slice(1, 3), slice(1, 4)),
        )
    ]
    for found, wanted in zip(views("five-crop"), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture(scope="module", params=["NCHW", "NHWC"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config of a random classifier, and images with labels."""
    folder = tmp_path_factory.mktemp("trained")
    tree = config_tree(
        write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"), request.param
    )
    names = [f"{number}.png" for number in range(IMAGES)]
    for number, name in enumerate(names):
        write_image(folder / name, number)
    (folder / "list.txt").write_text("".join(f"{name} {row % 3}\n" for row, name in enumerate(names)))
    transforms = tree["Infer"]["transforms"]
    transforms[1] = {"ResizeImage": {"resize_short": 40}}
    tree["Infer"]["PostProcess"]["topk"] = 3
    dataset = {
        "name": "ImageNetDataset",
        "image_root": str(folder),
        "cls_label_path": str(folder / "list.txt"),
        "transform_ops": transforms,
    }
    tree["DataLoader"] = {"Eval": {"dataset": dataset, "sampler": {"batch_size": 4}}}
    write_config(folder / "config.yaml", tree)
    return folder


def scores_of(folder: Path, out: Path, *options: str) -> np.ndarray[Any, Any]:
    files = [str(folder / f"{number}.png") for number in range(IMAGES)]
    assert infer([*options, *files, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return np.array([[row["scores"][row["class_ids"].index(index)] for index in range(3)] for row in rows])


@pytest.mark.parametrize("kind", ["flip", "five-crop"])
def test_infer_and_eval_average_the_same_probabilities(
    trained: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["-c", str(trained / "config.yaml")]
    found = scores_of(trained, tmp_path / "found.jsonl", *config, "--tta", kind)
    predictor = Predictor(trained / "config.yaml", topk=3)
    if kind == "flip":
        prepared = [predictor.prepare((trained / f"{number}.png").read_bytes()) for number in range(IMAGES)]
        mirrored = [image[:, :, ::-1] if len(image) == 3 else image[:, ::-1] for image in prepared]
        expected = (np.array(predictor.run(prepared)) + np.array(predictor.run(mirrored))) / 2
        np.testing.assert_allclose(found, expected, atol=1e-6)
    else:
        plain = scores_of(trained, tmp_path / "plain.jsonl", *config)
        assert np.abs(found - plain).max() > 1e-4, "other views give other scores"
    capsys.readouterr()
    assert evaluate([*config, "--tta", kind]) == 0
    text = capsys.readouterr().out
    labels = np.arange(IMAGES) % len(CLASSES)
    accuracy = float(np.mean(found.argmax(axis=1) == labels))
    loss = float(-np.log(found[np.arange(IMAGES), labels]).mean())
    assert f"top1 {accuracy:.4f}" in text
    assert float(re.findall(r"loss ([\d.]+)", text)[0]) == pytest.approx(loss, abs=2e-4)
    assert f"{IMAGES} images" in text


@pytest.mark.parametrize("preprocess", [[], ["--preprocess", "normalize"]])
def test_exported_model_averages_like_the_trained_one(
    trained: Path, tmp_path: Path, preprocess: list[str]
) -> None:
    config = ["-c", str(trained / "config.yaml")]
    place = ["-o", f"Global.save_inference_dir={tmp_path / 'onnx'}"]
    assert export([*config, "--format", "onnx", *preprocess, *place]) == 0
    options = ["--tta", "five-crop"]
    exported = scores_of(trained, tmp_path / "a.jsonl", "--model", str(tmp_path / "onnx"), *options)
    np.testing.assert_allclose(
        exported, scores_of(trained, tmp_path / "b.jsonl", *config, *options), atol=1e-5
    )


@pytest.mark.parametrize(
    "options", [[], ["--tta", "flip"], ["--tta", "five-crop"], ["-o", "Global.use_dali=True"]]
)
def test_trained_model_that_normalizes_pixels_predicts_the_same(
    trained: Path, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, models normalize pixels. Here, the CPU does the same."""
    command = [*options, "-c", str(trained / "config.yaml")]
    expected = scores_of(trained, tmp_path / "expected.jsonl", *command)
    usual = ModelSource.description_on
    monkeypatch.setattr(ModelSource, "description_on", lambda source, _device: usual(source, "gpu"))
    assert Predictor(trained / "config.yaml").prepare((trained / "0.png").read_bytes()).dtype == np.uint8
    # DALI rounds the normalized pixels in another way.
    difference = 1e-5 if "Global.use_dali=True" in options else 0.0
    found = scores_of(trained, tmp_path / "found.jsonl", *command)
    np.testing.assert_allclose(found, expected, rtol=0, atol=difference)


def test_five_crops_of_images_that_are_not_cropped_are_an_error(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    override = ["-o", "Infer.transforms.1.ResizeImage={size: 32}"]
    command = ["-c", str(trained / "config.yaml"), "--tta", "five-crop", str(trained / "0.png"), *override]
    assert infer(command) == 2
    assert "--tta five-crop needs ResizeImage with resize_short, followed by" in capsys.readouterr().err
