"""Embeddings from the config to retrieval."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models_run
import numpy as np
import paddle
import pytest
import yaml
from launched_run import run
from paths import SUPPORT
from small_config import put
from small_tree import CLASSES, small_tree

from ppcls.arch.build import build_model
from ppcls.arch.margins import arc_margin
from ppcls.cli import dataset as dataset_cli
from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.cli import train as cli
from ppcls.cli.eval import evaluate
from ppcls.config.base.errors import ConfigError
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.numpy_ops import run as apply_chain
from ppcls.data.transforms.specs import plan_chain
from ppcls.engine.core.build import build_state
from ppcls.engine.core.networks import build_network
from ppcls.engine.core.precision import FP32
from ppcls.engine.evaluation.evaluate import build_evaluator
from ppcls.engine.initial_weights import InitialWeights
from ppcls.errors import UserError
from ppcls.loss.build import build_criterion
from ppcls.recipe.load import dump_config, validate
from ppcls.registry import ARCHITECTURES, TRANSFORMS
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.runtime.start import Runtime
from ppcls.weights.files import fill_model, read_weights, write_arrays

pytestmark = pytest.mark.usefixtures("drawn_heat_maps")

SCRIPT = SUPPORT / "models_run.py"
CENTERS = {"CenterLoss": {"num_classes": CLASSES, "feat_dim": 6, "weight": 0.01, "center_rate": 50.0}}


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES._entries, "Layer", models_run.linear)
        yield


def retrieving(images: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """The small tree with embeddings of 6 numbers; evaluation is of identities 100 to 103."""
    tree = small_tree(images, output)
    listing = output.parent / "identities.txt"
    rows = [line.rsplit(" ", 1) for line in (images / "eval.txt").read_text().splitlines()]
    listing.write_text("".join(f"{path} {100 + int(label)}\n" for path, label in rows))
    tree["DataLoader"]["Eval"]["dataset"]["cls_label_path"] = str(listing)
    tree["Global"]["eval_mode"] = "retrieval"
    tree["Arch"] = {
        "name": "RecModel",
        "infer_output_key": "features",
        "infer_add_softmax": False,
        "Backbone": {"name": "Layer", "class_num": 12},
        "BackboneStopLayer": {"name": "flatten"},
        "Neck": {"name": "FC", "embedding_size": 768, "class_num": 6},
        "Head": {"name": "ArcMargin", "embedding_size": 6, "class_num": CLASSES, "margin": 0.2, "scale": 8},
    }
    tree["Loss"] = {
        "Train": [{"CELoss": None}, {"TripletLossV2": {"margin": 0.3}}],
        "Eval": [{"CELoss": None}],
    }
    tree["Metric"]["Eval"] = [{"Recallk": {"topk": [1, 2]}}, {"mAP": {}}]
    tree["Optimizer"]["lr"]["learning_rate"] = 0.02
    tree["DataLoader"]["Train"]["sampler"] = {"name": "PKSampler", "sample_per_id": 2, "batch_size": 8}
    for path, value in changes.items():
        put(tree, path.replace("__", "."), value)
    return tree


def write(tree: dict[str, Any]) -> Path:
    path = Path(tree["Global"]["output_dir"]).with_suffix(".yaml")
    path.write_text(yaml.safe_dump(tree))
    return path


def evaluations(output: Path) -> list[EvalRecord]:
    return [each for each in read_records(output / "metrics.jsonl") if isinstance(each, EvalRecord)]


@pytest.mark.parametrize("use_dali", [False, True], ids=["paddle.io", "dali"])
def test_trained_embeddings_find_images_of_the_same_identity(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], use_dali: bool
) -> None:
    tree = retrieving(images, tmp_path / "run", Global__use_dali=use_dali, Global__epochs=4)
    tree["Infer"] = {"transforms": tree["DataLoader"]["Eval"]["dataset"]["transform_ops"]}
    path = str(write(tree))
    assert cli.train(["-c", path]) == 0
    measured = evaluations(tmp_path / "run")
    assert list(measured[0].metrics) == ["recall1", "recall2", "mAP"]
    assert measured[-1].metrics["mAP"] > 0.6, "it learns"
    config = validate(tree, "tree")
    model = build_network(config.Arch)
    best = read_weights(tmp_path / "run" / "best_model")
    assert {"neck.fc.weight", "head.weight"} <= set(best)
    fill_model(model, best, "best")
    model.eval()
    split = config.DataLoader.Eval
    assert split is not None
    index, ops = split.dataset.read(None), plan_chain(split.dataset.transform_ops, "CHW")
    pixels = np.stack([apply_chain(ops, index.read(i), np.zeros(0, np.float32)) for i in range(len(index))])
    features = model(paddle.to_tensor(pixels))["features"].numpy().astype("float64")
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -2)
    nearest = index.labels[similar.argmax(axis=1)]
    capsys.readouterr()
    assert evaluate(["-c", path]) == 0
    found = capsys.readouterr().out
    assert f"loss 0.0000 recall1 {np.mean(nearest == index.labels):.4f}" in found
    assert "11 images" in found
    assert infer_cli.infer([index.name(0), "--model", str(tmp_path / "run"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(answer["embedding"], unit[0], atol=1e-5)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "backbone Layer, embeddings of size 6, ArcMargin of 4 classes" in log


def test_centers_are_trained_but_not_part_of_the_model(images: Path, tmp_path: Path) -> None:
    tree = retrieving(images, tmp_path / "run", Global__epochs=1, Loss__Train=[{"CELoss": None}, CENTERS])
    path = str(write(tree))
    state = build_state(validate(tree, "tree"), Runtime(cores=1, threads=1), lambda *_: None)
    assert cli.train(["-c", path]) == 0
    trained = read_weights(tmp_path / "run" / "latest")
    assert np.abs(trained["loss1.centers"] - state.model.loss1.centers.numpy()).mean() > 0.1
    assert evaluate(["-c", path]) == 0
    assert export_cli.export(["-c", path, "--pdparams", str(tmp_path / "best.pdparams")]) == 0
    assert set(read_weights(tmp_path / "best.pdparams")) == trained.keys() - {"loss1.centers"}


@pytest.mark.parametrize("frozen", [False, True], ids=["mutual", "frozen teacher"])
def test_embedding_models_learn_from_each_other(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], frozen: bool
) -> None:
    tree = retrieving(images, tmp_path / "run", Global__epochs=1)
    rec, pairs = tree["Arch"], {"model_name_pairs": [["Student", "Teacher"]]}
    paddle.seed(1)
    teacher = build_network(validate(tree, "tree").Arch)
    write_arrays(tmp_path / "teacher.safetensors", teacher.state_dict())
    tree["Arch"] = {"name": "DistillationModel", "models": [{"Teacher": rec}, {"Student": rec}]}
    tree["Arch"] |= {"pretrained_list": [str(tmp_path / "teacher.safetensors"), None]}
    tree["Arch"]["freeze_params_list"] = [frozen, False]
    names = ["Student"] if frozen else ["Student", "Teacher"]
    tree["Loss"] = {
        "Train": [
            {"DistillationGTCELoss": {"model_names": names}},
            {"DistillationDMLLoss": pairs},
            {"DistillationDistanceLoss": {**pairs, "key": "neck", "weight": 1e-3}},
        ],
        "Eval": [{"DistillationGTCELoss": {"model_names": ["Student"]}}],
    }
    tree["Infer"] = {"transforms": tree["DataLoader"]["Eval"]["dataset"]["transform_ops"]}
    config = validate(tree, "tree")
    state = build_state(config, Runtime(cores=1, threads=1), lambda *_: None)
    outputs = state.network(paddle.randn([2, 3, 16, 16]))
    cosines, label = outputs["Teacher"].numpy().astype("float64"), paddle.to_tensor([0, 3])
    loss = build_criterion(config.Loss.Train[:1], margins=config.Arch.margins)(outputs, label)
    heads = [arc_margin(outputs[name], label, 0.2, 8.0) for name in names]
    expected = sum(float(paddle.nn.functional.cross_entropy(logits, label)) for logits in heads)
    assert float(loss) == pytest.approx(expected, rel=1e-5), "each model has its margin"
    assert np.abs(cosines).max() <= 1 + 1e-6
    path = str(write(tree))
    assert cli.train(["-c", path]) == 0
    assert list(evaluations(tmp_path / "run")[0].metrics) == ["recall1", "recall2", "mAP"]
    trained = read_weights(tmp_path / "run" / "latest")
    student = {name for name in trained if not name.startswith("Teacher.")}
    assert student == set(teacher.state_dict())
    assert (trained.keys() > student) is not frozen
    image = config.DataLoader.need_train().dataset.read(None).name(0)
    assert infer_cli.infer([image, "--model", str(tmp_path / "run"), "--trust", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["embedding"]) == 6


@pytest.mark.slow
def test_two_ranks_retrieve_as_one(images: Path, tmp_path: Path) -> None:
    # Triplets are of a process's own images, so the margin alone is compared.
    for name, ranks in (("one", 1), ("two", 2)):
        tree = retrieving(
            images,
            tmp_path / name,
            Global__epochs=1,
            Loss__Train=[{"CELoss": None}, CENTERS],
            Loss__Eval=[{"TripletLoss": None}],
            DataLoader__Train__sampler__batch_size=8 // ranks,
            DataLoader__Eval__sampler__batch_size=8 // ranks,
        )
        run(SCRIPT, "-c", str(write(tree)), ranks=ranks, logs=tmp_path / f"log{ranks}")
    alone, together = (read_weights(tmp_path / name / "latest") for name in ("one", "two"))
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=2e-6, err_msg=key)
    for a, b in zip(evaluations(tmp_path / "one"), evaluations(tmp_path / "two"), strict=True):
        assert a.images == b.images == 11
        assert b.metrics == a.metrics


def two_sets(images: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """The images that are evaluated on, parted: every third looks among the others."""
    tree = retrieving(images, output, **changes)
    both = tree["DataLoader"]["Eval"]
    listing = Path(both["dataset"]["cls_label_path"])
    lines = listing.read_text().splitlines(keepends=True)
    parts = {"Query": lines[::3], "Gallery": [each for i, each in enumerate(lines) if i % 3]}
    for name, part in parts.items():
        file = listing.with_name(f"{name}.txt")
        file.write_text("".join(part))
        parts[name] = copy.deepcopy(both)
        parts[name]["dataset"]["cls_label_path"] = str(file)
    tree["DataLoader"]["Eval"] = parts
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("use_dali", [False, True], ids=["paddle.io", "dali"])
def test_queries_look_in_a_gallery_on_any_number_of_ranks(
    images: Path, tmp_path: Path, use_dali: bool
) -> None:
    for name, ranks in (("one", 1), ("two", 2)):
        tree = two_sets(
            images,
            tmp_path / name,
            Global__epochs=2,
            Global__use_dali=use_dali,
            Loss__Train=[{"CELoss": None}],
            Loss__Eval=[{"TripletLoss": None}],
            DataLoader__Train__sampler__batch_size=8 // ranks,
        )
        for part in tree["DataLoader"]["Eval"].values():
            part["sampler"]["batch_size"] = 8 // ranks
        run(SCRIPT, "-c", str(write(tree)), ranks=ranks, logs=tmp_path / f"log{ranks}")
    for a, b in zip(evaluations(tmp_path / "one"), evaluations(tmp_path / "two"), strict=True):
        assert a.images == b.images == 11, "queries and gallery"
        assert b.metrics == a.metrics
    config = validate(tree, "tree")
    model = build_network(config.Arch)
    fill_model(model, read_weights(tmp_path / "two" / "latest"), "latest")
    model.eval()
    features, labels = [], []
    for split in config.DataLoader.evaluated.values():
        index, ops = split.dataset.read(None), plan_chain(split.dataset.transform_ops, "CHW")
        pixels = [apply_chain(ops, index.read(i), np.zeros(0, np.float32)) for i in range(len(index))]
        found = model(paddle.to_tensor(np.stack(pixels)))["features"].numpy().astype("float64")
        features.append(found / np.linalg.norm(found, axis=1, keepdims=True))
        labels.append(index.labels)
    nearest = labels[1][(features[0] @ features[1].T).argmax(axis=1)]
    known = np.isin(labels[0], labels[1])
    last = evaluations(tmp_path / "two")[-1].metrics["recall1"]
    assert last == pytest.approx(np.mean(nearest[known] == labels[0][known]))


def test_two_sets_are_evaluated_and_described(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(two_sets(images, tmp_path / "run", Global__epochs=1)))
    assert cli.train(["-c", path, "--dry-run"]) == 0
    assert cli.train(["-c", path]) == 0
    (record,) = evaluations(tmp_path / "run")
    capsys.readouterr()
    assert evaluate(["-c", path]) == 0
    said = capsys.readouterr().out
    assert f"recall1 {record.metrics['recall1']:.4f}" in said
    assert "11 images" in said
    assert cli.train(["-c", path, "--explain-data"]) == 0
    said = capsys.readouterr().out
    assert "DataLoader.Eval.Query" in said
    assert "DataLoader.Eval.Gallery" in said
    broken = tmp_path / "bad.txt"
    assert dataset_cli.main(["check", "-c", path, "--out", str(broken)]) == 0


def test_retrieval_skips_bad_query(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = two_sets(images, tmp_path / "run", Global__epochs=1)
    query = tree["DataLoader"]["Eval"]["Query"]["dataset"]
    (tmp_path / "bad.png").write_bytes(b"no image")
    copied = tmp_path / "images"
    shutil.copytree(images, copied)
    (copied / "bad.png").write_bytes(b"no image")
    query["image_root"] = str(copied)
    listing = Path(query["cls_label_path"])
    listing.write_text(f"bad.png 100\n{listing.read_text()}")
    assert cli.train(["-c", str(write(tree))]) == 2
    advice = re.search(r"skip them with --on-error skip \(-o (.*?)\);", capsys.readouterr().err)
    assert advice is not None
    shutil.rmtree(tmp_path / "run")
    assert cli.train(["-c", str(write(tree)), "-o", *advice[1].split()]) == 0
    (record,) = evaluations(tmp_path / "run")
    assert record.images == 11
    whole = two_sets(images, tmp_path / "whole", Global__epochs=1)
    assert cli.train(["-c", str(write(whole))]) == 0
    assert evaluations(tmp_path / "whole")[0].metrics == record.metrics


def test_backbone_weights_may_have_other_classes(images: Path, tmp_path: Path) -> None:
    paddle.seed(9)
    other = build_model("ResNet18", 3)
    write_arrays(tmp_path / "backbone.safetensors", other.state_dict())
    backbone = {"name": "ResNet18", "class_num": 5, "pretrained": str(tmp_path / "backbone.safetensors")}
    arch = {"name": "RecModel", "Backbone": backbone}
    tree = retrieving(
        images, tmp_path / "run", Arch=arch, Loss__Train=[{"TripletLoss": None}], Metric__Train=[]
    )
    config = validate(tree, "tree")
    assert validate(yaml.safe_load(dump_config(config)), "dumped") == config
    notes: list[str] = []
    begin = Runtime(cores=1, threads=1)
    weights = InitialWeights(config.Arch, None, config.chains, frozen=False)
    state = build_state(config, begin, lambda *given: notes.extend(weights.load(*given)))
    assert notes == [f"weights of the backbone from {tmp_path}/backbone.safetensors"]
    own, given = state.model.state_dict(), other.state_dict()
    assert set(own) == {f"backbone.{name}" for name in given if not name.startswith("fc.")}
    for name, each in own.items():
        np.testing.assert_array_equal(each.numpy(), given[name.removeprefix("backbone.")].numpy())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"Arch__Head__embedding_size": 5}, "Arch.Head.embedding_size: expected Neck.class_num (6), got 5"),
        (
            {"Arch__Head__name": "ArcMargn"},
            "Arch.Head.name: unknown neck or head 'ArcMargn'; did you mean",
        ),
        (
            {"Arch__Neck__name": "ArcMargin"},
            "Arch.Neck: expected FC, VehicleNeck, BNNeck or Tanh, got ArcMargin",
        ),
        ({"Arch__Head": None}, "Loss.Train[0].CELoss: needs classes; add a Head to Arch"),
        (
            {"Loss__Train": [{"TripletLossV2": {}}], "Metric__Train": []},
            "Arch.Head: no loss uses the classes of the Head; add CELoss to Loss.Train, or remove the Head",
        ),
        (
            {
                "Arch__Head": None,
                "Loss__Train": [{"TripletLossV2": {"feature_from": "backbone"}}],
                "Metric__Train": [],
            },
            "Arch.Neck: all losses use the input of the Neck; set their feature_from to features, or",
        ),
        (
            {"Global__eval_mode": "classification"},
            "Metric.Eval[0].Recallk: expected Global.eval_mode: retrieval",
        ),
        (
            {"Metric__Eval": [{"TopkAcc": {"topk": 1}}]},
            "Metric.Eval[0].TopkAcc: needs classes; expected Recallk or mAP, because Global.eval_mode is",
        ),
        (
            {"Metric__Train": [{"mAP": {}}]},
            "Metric.Train[0].mAP: needs all samples at once; move it to Metric.Eval",
        ),
        (
            {"Arch": {"name": "Layer", "class_num": 4}},
            "Loss.Train[1].TripletLossV2: needs embeddings; expected Arch.name: RecModel",
        ),
        (
            {"DataLoader__Train__dataset__batch_transform_ops": [{"MixupOperator": {"alpha": 1.0}}]},
            "DataLoader.Train.dataset.batch_transform_ops: mixed images have no identity; remove this key",
        ),
        (
            {"DataLoader__Train__Query": {}},
            "DataLoader.Train.Query: unknown key; only DataLoader.Eval may have two data sets",
        ),
        (
            {"DataLoader__Eval": {"Query": {}}},
            "DataLoader.Eval.Gallery: missing",
        ),
        (
            {"Arch__BackboneStopLayer": {"name": "blocks"}},
            "Arch.BackboneStopLayer.name: expected 'flatten', 'avg_pool' or",
        ),
    ],
)
def test_embedding_config_errors_are_reported(
    images: Path, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(retrieving(images, tmp_path / "run", **changes), "tree")
    assert any(each.startswith(problem) for each in caught.value.problems), caught.value.problems


def test_query_and_gallery_errors_are_reported(images: Path, tmp_path: Path) -> None:
    tree = two_sets(images, tmp_path / "run", Global__eval_mode="classification")
    tree["Metric"]["Eval"] = [{"TopkAcc": {"topk": 1}}]
    tree["DataLoader"]["Eval"]["Gallery"]["sampler"]["name"] = "PKSampler"
    tree["DataLoader"]["Eval"]["Gallery"]["sampler"]["sample_per_id"] = 2
    chain = tree["DataLoader"]["Eval"]["Query"]["dataset"]["transform_ops"]
    chain[0], chain[-1] = {"DecodeImage": {"channels": 1}}, {"NormalizeImage": {"mean": [0.5], "std": [0.5]}}
    with pytest.raises(ConfigError) as caught:
        validate(tree, "tree")
    problems = "\n".join(caught.value.problems)
    assert "DataLoader.Eval: Query and Gallery are only for retrieval; set Global.eval_mode" in problems
    assert "DataLoader.Eval.Gallery.sampler.name: evaluation uses each sample once" in problems
    assert "DataLoader.Eval.Query.dataset.transform_ops: produces images with 1 channel," in problems


class Formless(Transform, abstract=True):
    """A spec that no backend has a form of."""

    def after(self, state: ImageState) -> ImageState:
        return state


def test_unsupported_transform_error_names_query_or_gallery(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRANSFORMS._entries, "Formless", Formless)
    tree = two_sets(images, tmp_path / "run", Global__use_dali=False)
    tree["DataLoader"]["Eval"]["Gallery"]["dataset"]["transform_ops"].insert(2, "Formless")
    place = r"^DataLoader\.Eval\.Gallery\.dataset\.transform_ops\[2\]\.Formless: not supported by paddle\.io"
    with pytest.raises(UserError, match=place):
        build_evaluator(validate(tree, "tree"), Runtime(cores=1, threads=1), FP32())


def test_wrong_embedding_size_is_reported(images: Path, tmp_path: Path) -> None:
    tree = retrieving(images, tmp_path / "run", Arch__Neck__embedding_size=100)
    with pytest.raises(UserError, match=r"Arch\.Neck\.embedding_size: expected 768, the size .*, got 100"):
        build_network(validate(tree, "tree").Arch)
