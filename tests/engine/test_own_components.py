"""A user adds a sampler, a data set, a logger and a post-processing method with one class each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_tree import small_tree

from ppcls.cli.export import export
from ppcls.cli.train import train
from ppcls.config.base.errors import ConfigError
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.postprocess.results import Classification
from ppcls.recipe.load import load_config

PARTS = '''
import csv
import json
from pathlib import Path

import numpy as np

from ppcls.data.index.base import FileDataset
from ppcls.data.sampling.base import FixedSizeSampler
from ppcls.postprocess.base import PostProcess
from ppcls.report.trackers import Logger


class FirstSamples(FixedSizeSampler):
    """Uses only the first images of the data set."""

    count: int
    """Number of images per epoch."""

    def build(self, index, world):
        from ppcls.data.sampling.epoch_samplers import ListSampler

        return ListSampler(tuple(range(min(self.count, len(index)))))


class CsvDataset(FileDataset):
    """Images from a CSV file with a header."""

    table: str
    """CSV file."""

    def read(self, class_num):
        from ppcls.data.index.files import FileIndex

        with open(self.table) as file:
            rows = list(csv.DictReader(file))
        paths = np.array([row["image"].encode() for row in rows])
        labels = np.array([int(row["class"]) for row in rows])
        return FileIndex(Path(self.image_root), paths, labels, Path(self.table))


class LinesOfJson(Logger):
    """Writes all scalars to a file."""

    file: str = "scalars.txt"
    """Name of the file in the output folder."""

    def build(self, run):
        return JsonTracker(run.output_dir / self.file)


class JsonTracker:
    def __init__(self, path):
        self.file = path.open("w")

    def log(self, values, update):
        self.file.write(json.dumps([update, values]) + chr(10))

    def finish(self, failed):
        self.file.write(json.dumps({"failed": failed}))
        self.file.close()


class Certain(PostProcess):
    """Returns the class with the highest score if it reaches the threshold, else no class."""

    least: float = 0.5
    """Smallest score of a class."""

    def select(self, scores, topk):
        best = scores.argmax(keepdims=True)
        return best[scores[best] >= self.least]
'''
COUNT = 17  # of 26 images


@pytest.fixture
def config(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config with the user's components, whose module is in the current folder."""
    (tmp_path / "own_components.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_components", raising=False)
    lines = (images / "train.txt").read_text().splitlines()
    pairs = [line.rpartition(" ")[::2] for line in lines]
    (tmp_path / "train.csv").write_text(
        "image,class\n" + "".join(f"{path},{label}\n" for path, label in pairs)
    )
    tree = small_tree(images, tmp_path / "run")
    split = tree["DataLoader"]["Train"]
    del split["dataset"]["cls_label_path"]
    split["dataset"] |= {"name": "CsvDataset", "table": "train.csv"}
    split["sampler"] = {"name": "FirstSamples", "batch_size": 8, "count": COUNT}
    tree["Global"] |= {"import_modules": ["own_components"], "loggers": ["linesofjson"]}
    chain = tree["DataLoader"]["Eval"]["dataset"]["transform_ops"]
    tree["Infer"] = {"transforms": chain, "PostProcess": {"name": "Certain", "least": 0.0}}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def test_own_components_train_export_and_predict(config: Path, images: Path) -> None:
    assert train(["-c", str(config)]) == 0
    run = config.parent / "run"
    *lines, end = (run / "scalars.txt").read_text().splitlines()
    assert json.loads(end) == {"failed": False}
    updates = [json.loads(line)[0] for line in lines]
    assert updates[-1] == 2 * -(-COUNT // 8)
    assert "train/loss" in json.loads(lines[0])[1]

    picture = [(images / "eval 0.jpg").read_bytes()]
    (trained,) = Predictor(find_source(run, trust=True)).predict(picture)
    assert isinstance(trained, Classification)
    assert len(trained.class_ids) == 1
    assert export(["-c", str(config), "--format", "onnx"]) == 0
    described = yaml.safe_load((run / "inference" / "inference.yml").read_text())
    assert described["PostProcess"] == {"Certain": {"least": 0.0}}
    (exported,) = Predictor(run / "inference", device="cpu").predict(picture)
    assert exported.class_ids == trained.class_ids
    np.testing.assert_allclose(exported.scores, trained.scores, rtol=1e-4)
    never = Predictor(run / "inference", device="cpu", overrides=["Infer.PostProcess.least=1.1"])
    assert str(never.predict(picture)[0]) == "no class"


def test_rules_of_built_in_components_hold_for_own_ones(config: Path) -> None:
    overrides = {
        "DataLoader.Eval.sampler": {"name": "FirstSamples", "batch_size": 8, "count": 3},
        "DataLoader.Train.sampler.cout": 3,
        "DataLoader.Train.dataset.table": None,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(config, overrides)
    text = str(caught.value)
    assert "DataLoader.Train.sampler.cout: unknown key; did you mean 'count'?" in text
    assert "DataLoader.Train.dataset.table: expected text, got None" in text
    with pytest.raises(ConfigError, match=r"Eval\.sampler\.name: evaluation uses each sample once"):
        load_config(config, {"DataLoader.Eval.sampler": overrides["DataLoader.Eval.sampler"]})


def test_own_component_must_not_take_a_name_that_exists(config: Path) -> None:
    (config.parent / "own_components.py").write_text(PARTS.replace("class Certain", "class Topk"))
    with pytest.raises(ValueError, match="post-processing method 'Topk' is registered twice"):
        load_config(config)
