"""Images of several labels from the list to predictions: training, evaluation, inference, export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from launched_run import LINEAR, run
from paddle import nn
from sklearn.metrics import average_precision_score, hamming_loss
from small_config import put
from small_tree import CLASSES, small_tree

from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.cli import train as cli
from ppcls.cli.eval import evaluate
from ppcls.data.transforms.numpy_ops import run as apply_chain
from ppcls.data.transforms.specs import plan_chain
from ppcls.deploy.predictor import Predictor
from ppcls.engine.core.networks import build_network
from ppcls.engine.evaluation.evaluate import EvalResult
from ppcls.errors import UserError
from ppcls.metric.multi_label import ATTRMetric
from ppcls.recipe.load import validate
from ppcls.registry import ARCHITECTURES
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.weights.files import fill_model, read_weights

pytestmark = pytest.mark.usefixtures("drawn_heat_maps")

MODEL = {"Arch.name": "Linear", "Global.epochs": 6, "EMA.decay": 0.5, "Optimizer.lr.learning_rate": 0.002}


def several(images: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """The small tree with two labels an image: its class, and the class before it; class 3 has neither."""
    tree = small_tree(images, output)
    for name in ("train", "eval"):
        listing = output.parent / f"{name}_several.txt"
        lines = (images / f"{name}.txt").read_text().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines]
        marks = [
            [int(k in (int(label), int(label) - 1) and label != "3") for k in range(CLASSES)]
            for _, label in rows
        ]
        text = "".join(
            f"{path}\t{','.join(map(str, mark))}\n" for (path, _), mark in zip(rows, marks, strict=True)
        )
        listing.write_text(text)
        dataset = tree["DataLoader"][name.capitalize()]["dataset"]
        dataset |= {"name": "MultiLabelDataset", "cls_label_path": str(listing), "label_ratio": True}
    tree["Loss"] = {
        "Train": [{"MultiLabelLoss": {"weight_ratio": True, "size_sum": True, "epsilon": 0.05}}],
        "Eval": [{"MultiLabelAsymmetricLoss": None}],
    }
    tree["Metric"] = {
        "Train": [{"AccuracyScore": None}, {"HammingDistance": None}],
        "Eval": [
            {"MultiLabelMAP": None},
            {"HammingDistance": None},
            {"AccuracyScore": {"base": "sample"}},
            {"ATTRMetric": None},
        ],
    }
    transforms = tree["DataLoader"]["Eval"]["dataset"]["transform_ops"]
    tree["Infer"] = {
        "transforms": transforms,
        "PostProcess": {"name": "MultiLabelThreshOutput", "threshold": 0.3},
    }
    for path, value in changes.items():
        put(tree, path.replace("__", "."), value)
    return tree


def write(tree: dict[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.slow
def test_two_ranks_train_and_evaluate_as_one(images: Path, tmp_path: Path) -> None:
    common = {key.replace(".", "__"): value for key, value in MODEL.items() if key != "Global.epochs"}
    for name, ranks in (("one", 1), ("two", 2)):
        tree = several(
            images,
            tmp_path / name,
            **common,
            Global__epochs=2,
            DataLoader__Train__sampler__batch_size=8 // ranks,
            DataLoader__Train__dataset__batch_transform_ops=[{"MixupOperator": {"alpha": 1.0}}],
        )
        run(
            LINEAR,
            "-c",
            str(write(tree, tmp_path / f"{name}.yaml")),
            ranks=ranks,
            logs=tmp_path / f"log{ranks}",
        )
    alone, together = (read_weights(tmp_path / name / "latest") for name in ("one", "two"))
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=2e-6, err_msg=key)
    alone, together = (read_records(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(alone) == len(together) > 0
    for a, b in zip(alone, together, strict=True):
        assert b.metrics == pytest.approx(a.metrics, rel=1e-12)
        assert b.loss == pytest.approx(a.loss, rel=1e-5)
    evaluations = [each for each in alone if isinstance(each, EvalRecord)]
    names = ["MultiLabelMAP", "HammingDistance", "AccuracyScore_sample", *ATTRMetric().names]
    assert all(list(each.metrics) == names for each in evaluations)
    assert [each.images for each in evaluations] == [11] * 2


@pytest.fixture(scope="module", autouse=True)
def _linear() -> Iterator[None]:
    """Has this process know the model that linear_run.py registers in its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES._entries, "Linear", build_linear)
        yield


def build_linear(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * input_image_channel, class_num))


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tree of a run that learnt the colours."""
    common = {key.replace(".", "__"): value for key, value in MODEL.items()}
    output = tmp_path_factory.mktemp("several") / "run"
    tree = several(images, output, **common, Global__use_dali=False)
    path = write(tree, Path(tree["Global"]["output_dir"]).with_suffix(".yaml"))
    assert cli.train(["-c", str(path)]) == 0
    return tree


def scored(tree: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores and labels of the images to evaluate, one by one."""
    config = validate(tree, "tree")
    model = build_network(config.Arch)
    fill_model(model, read_weights(Path(tree["Global"]["output_dir"]) / "best_model"), "best")
    model.eval()
    split = config.DataLoader.Eval
    assert split is not None
    index, ops = split.dataset.read(CLASSES), plan_chain(split.dataset.transform_ops, "CHW")
    images = [apply_chain(ops, index.read(i), np.zeros(0, np.float32)) for i in range(len(index))]
    logits = [model(paddle.to_tensor(image[None])).numpy()[0] for image in images]
    return np.stack(logits), index.labels


def test_evaluation_is_that_of_the_images_one_by_one(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, labels = scored(trained)
    precision = [
        average_precision_score(labels[:, k], logits[:, k]) for k in range(CLASSES) if labels[:, k].any()
    ]
    assert evaluate(["-c", str(write(trained, tmp_path / "run.yaml"))]) == 0
    output = capsys.readouterr().out
    assert (
        f"MultiLabelMAP {np.mean(precision):.4f} HammingDistance {hamming_loss(labels, logits > 0):.4f}"
        in output
    )
    assert "11 images" in output
    records = read_records(Path(trained["Global"]["output_dir"]) / "metrics.jsonl")
    found = [each for each in records if isinstance(each, EvalRecord)]
    best = max(found, key=lambda each: each.metrics["MultiLabelMAP"])
    assert best.metrics["MultiLabelMAP"] == pytest.approx(np.mean(precision), abs=1e-6)
    assert found[-1].metrics["MultiLabelMAP"] > 0.6, "it learns"
    output_dir = Path(trained["Global"]["output_dir"])
    assert "precision and recall per label: " in (output_dir / "train.log").read_text()
    page = (output_dir / "report.html").read_text()
    assert 'id="labels"' in page
    assert "Confusion matrix" not in page
    assert evaluate(["-c", str(tmp_path / "run.yaml"), "--confusion", str(tmp_path / "confusion.csv")]) == 2
    assert "--confusion: expected one label per image, found several" in capsys.readouterr().err


def test_best_model_has_lowest_hamming_distance() -> None:
    metrics = {"HammingDistance": 0.25, "AccuracyScore": 0.75}
    result = EvalResult(loss=1.0, metrics=metrics, images=4, seconds=0.1, lower_is_better=True)
    assert result.score == -0.25
    assert EvalResult(loss=1.0, metrics={"top1": 0.5}, images=4, seconds=0.1).score == 0.5


def test_prediction_returns_all_classes_above_the_threshold(
    trained: dict[str, Any], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, _ = scored(trained)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    files = [str(images / f"eval {i}.jpg") for i in range(11)]
    path = str(write(trained, tmp_path / "run.yaml"))
    assert infer_cli.infer([*files, "--json", "-c", path]) == 0
    predictions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, each in zip(scores, predictions, strict=True):
        found = dict(zip(each["class_ids"], each["scores"], strict=True))
        assert found == {k: pytest.approx(row[k], abs=1e-5) for k in np.flatnonzero(row >= 0.3)}
    assert infer_cli.infer([files[0], "-c", path, "-o", "Infer.PostProcess.threshold=1.0"]) == 0
    assert capsys.readouterr().out == f"{files[0]}: no class\n"


def test_exported_multi_label_model_returns_sigmoids(trained: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "inference"
    path = write(trained, tmp_path / "run.yaml")
    assert export_cli.export(["-c", str(path), "-o", f"Global.save_inference_dir={folder}"]) == 0
    description = yaml.safe_load((folder / "inference.yml").read_text())
    assert description["Output"]["activation"] == "sigmoid"
    assert description["PostProcess"] == {"MultiLabelThreshOutput": {"threshold": 0.3}}
    exported = paddle.jit.load(str(folder / "inference"))
    exported.eval()
    image = paddle.rand([2, 3, 16, 16])
    model = build_network(validate(trained, "tree").Arch)
    fill_model(model, read_weights(Path(trained["Global"]["output_dir"]) / "best_model"), "best")
    model.eval()
    want = paddle.nn.functional.sigmoid(model(image)).numpy()
    np.testing.assert_allclose(exported(image).numpy(), want, atol=1e-5)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    one, other = (Predictor(each, device="cpu").predict([pixels])[0] for each in (folder, path))
    assert one.class_ids == other.class_ids
    assert one.scores == pytest.approx(other.scores, abs=1e-5)
    assert (
        len(
            Predictor(folder, device="cpu", overrides=["Infer.PostProcess.threshold=0"])
            .predict([pixels])[0]
            .scores
        )
        == 4
    )
    with pytest.raises(UserError, match="Topk needs softmax, but the model ends in sigmoid"):
        Predictor(folder, overrides=["Infer.PostProcess={name: Topk, topk: 1}"])


def test_multi_label_report_has_images_but_no_confusion_matrix(trained: dict[str, Any]) -> None:
    page = (Path(trained["Global"]["output_dir"]) / "report.html").read_text()
    assert '"confusion": {' not in page
    assert "MultiLabelMAP" in page


def test_explain_data_describes_multi_label_pipeline(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(several(images, tmp_path / "run"), tmp_path / "run.yaml"))
    assert cli.train(["-c", path, "--explain-data"]) == 0
    assert "labels [8, 4] float32" in capsys.readouterr().out
