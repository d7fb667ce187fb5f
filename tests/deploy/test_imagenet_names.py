"""A PaddleClas file that names ImageNet's class list: trained, evaluated, predicted, exported and served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from paddleclas_trees import plain
from PIL import Image
from running import running

from ppcls.cli.main import main
from ppcls.data.index.class_names import IMAGENET_NAMES, read_class_names

RUN = ["-o", "Global.device=cpu", "Global.epochs=1", "DataLoader.Train.sampler.batch_size=4"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a config and ten pictures of ImageNet's classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(10):
        pixels = rng.integers(0, 256, (64, 64, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    for split in ("train", "val"):
        lines = "".join(f"{number}.png {100 * number}\n" for number in range(10))
        (tmp_path / "images" / f"{split}_list.txt").write_text(lines)
    tree = plain("MobileNetV1_x0_25")
    tree["Global"]["image_shape"] = [3, 32, 32]
    for name, index in (("Train", 1), ("Eval", 2)):
        data = tree["DataLoader"][name]
        (transform,) = data["dataset"]["transform_ops"][index].values()
        transform["size"] = 32
        data["loader"]["num_workers"] = 0
    tree["Infer"]["transforms"][2]["CropImage"]["size"] = 32
    tree["Infer"]["PostProcess"]["class_id_map_file"] = "ppcls/utils/imagenet1k_label_list.txt"
    (tmp_path / "imagenet.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


@pytest.mark.slow
def test_file_with_the_class_list_of_imagenet_is_used_by_all_commands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = read_class_names(IMAGENET_NAMES, 1000)
    assert main(["train", "-c", "imagenet.yaml", *RUN]) == 0
    weights = "Global.pretrained_model=output/MobileNetV1_x0_25/best_model"
    assert main(["eval", "-c", "imagenet.yaml", *RUN, weights]) == 0
    assert main(["export", "-c", "imagenet.yaml", *RUN, weights, "Global.save_inference_dir=exported"]) == 0
    capsys.readouterr()
    for model in ("output/MobileNetV1_x0_25", "exported"):
        assert main(["infer", "images/3.png", "--model", model, "--json"]) == 0
        (line,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert line["names"] == [names[number] for number in line["class_ids"]]
    with running(folder, "--model", "exported") as server, server.client() as client:
        content = (folder / "images" / "3.png").read_bytes()
        answer = client.post("/predict", content=content, headers={"Content-Type": "image/png"})
        best = answer.json()["results"][0]["predictions"][0]
    assert best["name"] == names[best["class_id"]]
