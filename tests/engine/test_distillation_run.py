"""Several models from the config to the exported student."""

from __future__ import annotations

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
from ppcls.arch.distillation import DistillationNetwork
from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.cli import train as cli
from ppcls.cli.eval import evaluate
from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.build import build_state
from ppcls.engine.core.precision import build_precision
from ppcls.engine.core.settings import AMP
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.registry import ARCHITECTURES
from ppcls.report.jsonlines import read_records
from ppcls.runtime.start import Runtime
from ppcls.weights.files import fill_model, read_arrays, read_pdparams, read_weights, write_arrays

PAIR = {"model_name_pairs": [["Student", "Teacher"]]}
SCRIPT = SUPPORT / "models_run.py"


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    """Has this process know the models that models_run.py registers in its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, model in models_run.MODELS.items():
            patch.setitem(ARCHITECTURES._entries, name, model)
        yield


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a `Normalized` whose statistics are not the fresh ones."""
    paddle.seed(3)
    model = build_model("Normalized", CLASSES)
    model.train()
    model(paddle.randn([8, 3, 16, 16]) * 2 + 1)
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    write_arrays(path, model.state_dict())
    return path


def taught(images: Path, output: Path, teacher: Path | None, **changes: Any) -> dict[str, Any]:
    """The small tree with a student and a teacher; without weights the teacher learns, too."""
    tree = small_tree(images, output)
    frozen = teacher is not None
    tree["Arch"] = {
        "name": "DistillationModel",
        "class_num": CLASSES,
        "freeze_params_list": [frozen, False],
        "models": [
            {
                "Teacher": {
                    "name": "Normalized" if frozen else "Layer",
                    "pretrained": str(teacher or "") or False,
                }
            },
            {"Student": {"name": "Layer"}},
        ],
    }
    losses = [{"DistillationKLDivLoss": PAIR}, {"DistillationDKDLoss": PAIR}]
    if not frozen:
        names = {"model_names": ["Student", "Teacher"]}
        losses = [{"DistillationGTCELoss": names}, {"DistillationDMLLoss": PAIR}]
    tree["Loss"] = {"Train": losses, "Eval": [{"CELoss": None}]}
    top = {"DistillationTopkAcc": {"model_key": "Student", "topk": 1}}
    other = {"DistillationTopkAcc": {"model_key": "Teacher", "topk": 1}}
    tree["Metric"] = {"Train": [top, other], "Eval": [top]}
    tree["EMA"] = {"decay": 0.5}
    tree["Infer"] = {
        "transforms": tree["DataLoader"]["Eval"]["dataset"]["transform_ops"],
        "PostProcess": {"topk": 2},
    }
    for path, value in changes.items():
        put(tree, path.replace("__", "."), value)
    return tree


def write(tree: dict[str, Any]) -> Path:
    path = Path(tree["Global"]["output_dir"]).with_suffix(".yaml")
    path.write_text(yaml.safe_dump(tree))
    return path


def state_of(tree: dict[str, Any]) -> TrainState:
    return build_state(validate(tree, "tree"), Runtime(cores=1, threads=1), lambda *_: None)


def test_teachers_stay_unchanged_and_are_saved_separately(
    images: Path, tmp_path: Path, teacher: Path
) -> None:
    state = state_of(taught(images, tmp_path / "run", teacher, Global__use_dali=False))
    network = state.network
    assert isinstance(network, DistillationNetwork)
    held = network._teachers["Teacher"].model
    before = {name: each.numpy().copy() for name, each in held.state_dict().items()}
    own = {name: each.numpy().copy() for name, each in state.model.state_dict().items()}
    network.train()
    for batch in state.loader:
        train_step(state, batch)
    for name, each in held.state_dict().items():
        np.testing.assert_array_equal(each.numpy(), before[name], err_msg=name)
        np.testing.assert_array_equal(each.numpy(), read_weights(teacher)[name])
    assert not any(layer.training for layer in held.sublayers(include_self=True))
    assert all(parameter.grad is None for parameter in held.parameters())
    assert any((each.numpy() != own[name]).any() for name, each in state.model.state_dict().items())
    plain = {"fc.weight", "fc.bias"}
    assert set(state.model.state_dict()) == plain
    assert state.ema is not None
    assert set(state.ema.state_dict()) == plain
    assert {each.name for each in state.optimizer._parameter_list} == {
        each.name for each in network.parameters()
    }
    assert len(network.parameters()) == 2


def test_teacher_computes_in_the_precision_of_training(images: Path, tmp_path: Path, teacher: Path) -> None:
    state = state_of(taught(images, tmp_path / "run", teacher, AMP={"dtype": "bfloat16"}))
    image = paddle.randn([4, 3, 16, 16])
    state.network.train()
    with state.precision.forward():
        found = state.network(image)["Teacher"].numpy()
    precision = build_precision(AMP(dtype="bfloat16", use_fp16_test=True), "cpu")
    alone = build_model("Normalized", CLASSES)
    fill_model(alone, read_weights(teacher), teacher)
    precision.prepare(alone, None)
    alone.eval()
    with precision.evaluation():
        expected = alone(image).numpy()
    np.testing.assert_array_equal(found, expected)
    assert (expected != alone(image).numpy()).any()


def test_student_gradient_equals_plain_computation(images: Path, tmp_path: Path, teacher: Path) -> None:
    tree = taught(images, tmp_path / "run", teacher, Loss__Train=[{"DistillationCELoss": PAIR}])
    state = state_of(tree)
    image = paddle.randn([4, 3, 16, 16])
    weight, bias = (each.numpy().astype("float64") for each in state.model.parameters())
    arrays = {name: each.astype("float64") for name, each in read_weights(teacher).items()}
    pixels = image.numpy().astype("float64")
    mean, variance, gamma, beta = (
        arrays[f"norm.{name}"][:, None, None] for name in ("_mean", "_variance", "weight", "bias")
    )
    flat = ((pixels - mean) / np.sqrt(variance + 1e-5) * gamma + beta).reshape(4, -1)
    softmaxes = []
    for logits in (pixels.reshape(4, -1) @ weight + bias, flat @ arrays["fc.weight"] + arrays["fc.bias"]):
        exp = np.exp(logits - logits.max(axis=1, keepdims=True))
        softmaxes.append(exp / exp.sum(axis=1, keepdims=True))
    want = pixels.reshape(4, -1).T @ (softmaxes[0] - softmaxes[1]) / 4
    state.network.train()
    rate = state.learning_rate(0)
    train_step(state, Batch(image, paddle.to_tensor([0, 1, 2, 3]), 4, 1.0, True))
    moved = (weight - state.model.parameters()[0].numpy()) / rate - 1e-4 * weight  # regularizer
    np.testing.assert_allclose(moved, want, atol=2e-4)


def test_distillation_accepts_rank_without_rows(images: Path, tmp_path: Path, teacher: Path) -> None:
    state = state_of(taught(images, tmp_path / "run", teacher))
    state.network.train()
    before = [each.numpy().copy() for each in state.model.parameters()]
    state.optimizer._grad_clip = None
    sums = train_step(state, Batch(paddle.randn([2, 3, 16, 16]), paddle.to_tensor([0, 1]), 0, 1.0, False))
    assert sums.tolist() == [0.0, 0.0, 0.0]
    assert all((each.grad.numpy() == 0).all() for each in state.model.parameters())
    assert all(
        (each.numpy() == old).all() for each, old in zip(state.model.parameters(), before, strict=True)
    )


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tree of a run of two that learnt from each other."""
    tree = taught(images, tmp_path_factory.mktemp("mutual") / "run", None, Global__use_dali=False)
    assert cli.train(["-c", str(write(tree))]) == 0
    return tree


def test_eval_infer_and_export_use_the_student_alone(
    trained: dict[str, Any], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Path(trained["Global"]["output_dir"])
    best = read_weights(output / "best_model")
    assert set(best) == {"fc.weight", "fc.bias", "Teacher.fc.weight", "Teacher.fc.bias"}
    student = build_model("Layer", CLASSES)
    fill_model(student, {name: best[name] for name in ("fc.weight", "fc.bias")}, "best")
    config = str(write(trained))
    capsys.readouterr()
    assert evaluate(["-c", config]) == 0
    records = [each for each in read_records(output / "metrics.jsonl") if hasattr(each, "best") and each.best]
    assert f"top1 {records[-1].metrics['top1']:.4f}" in capsys.readouterr().out
    folder = tmp_path / "inference"
    assert export_cli.export(["-c", config, "-o", f"Global.save_inference_dir={folder}"]) == 0
    assert yaml.safe_load((folder / "inference.yml").read_text())["Global"] == {"model_name": "Layer"}
    assert (folder / "inference.pdiparams").stat().st_size < 4 * 2 * (768 * CLASSES + CLASSES), (
        "one model, not two"
    )
    exported = paddle.jit.load(str(folder / "inference"))
    exported.eval()
    image = paddle.rand([2, 3, 16, 16])
    want = paddle.nn.functional.softmax(student(image)).numpy()
    np.testing.assert_allclose(exported(image).numpy(), want, atol=1e-5)
    capsys.readouterr()
    assert infer_cli.infer([str(images / "eval 0.jpg"), "-c", config]) == 0
    by_config = capsys.readouterr().out
    assert (
        infer_cli.infer([str(images / "eval 0.jpg"), "--model", str(folder), "-o", "Global.device=cpu"]) == 0
    )
    assert capsys.readouterr().out == by_config
    assert export_cli.export(["-c", config, "--pdparams", str(tmp_path / "student.pdparams")]) == 0
    assert set(read_pdparams(tmp_path / "student.pdparams")) == {"fc.weight", "fc.bias"}


def test_both_models_learn_and_their_losses_are_reported(trained: dict[str, Any]) -> None:
    output = Path(trained["Global"]["output_dir"])
    weights = read_arrays(output / "latest" / "model.safetensors")
    assert (weights["fc.weight"] != weights["Teacher.fc.weight"]).any()
    record = read_records(output / "metrics.jsonl")[0]
    assert list(record.metrics) == ["top1", "Teacher_top1"]
    optimizer = read_arrays(output / "latest" / "optimizer.safetensors")
    assert {"fc.weight/velocity", "Teacher.fc.weight/velocity"} <= set(optimizer)


@pytest.mark.parametrize("mutual", [False, True], ids=["teacher", "mutual"])
def test_stopped_distillation_resumes_bit_for_bit(
    images: Path, tmp_path: Path, teacher: Path, mutual: bool
) -> None:
    trees = {
        name: taught(
            images, tmp_path / name, None if mutual else teacher, Global__save_steps=1, Global__use_dali=False
        )
        for name in ("whole", "parts")
    }
    assert cli.train(["-c", str(write(trees["whole"]))]) == 0
    config = validate(trees["parts"], "parts")
    from ppcls.engine.train import train

    Path(config.Global.output_dir).mkdir()
    calls = []

    def stopping(state: TrainState, batch: Batch, phases: Any) -> paddle.Tensor:
        calls.append(batch)
        if len(calls) == 4:
            raise UserError("stopped by the test")
        return train_step(state, batch, phases)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "ppcls.engine.execution.choose_step", lambda *_: (stopping, "steps: stopped before the fourth")
        )
        with pytest.raises(UserError, match="stopped by the test"):
            train(config, Runtime(cores=1, threads=1), Path(config.Global.output_dir))
    assert cli.train(["-c", str(write(trees["parts"])), "-o", "Global.checkpoints=auto"]) == 0
    for file in ("model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        whole, parts = (read_arrays(tmp_path / name / "latest" / file) for name in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        for key, value in whole.items():
            np.testing.assert_array_equal(parts[key], value, err_msg=key)


@pytest.mark.slow
def test_two_ranks_learn_as_one(images: Path, tmp_path: Path, teacher: Path) -> None:
    for name, ranks in (("one", 1), ("two", 2)):
        tree = taught(
            images,
            tmp_path / name,
            teacher,
            Global__epochs=1,
            DataLoader__Train__sampler__batch_size=8 // ranks,
        )
        run(SCRIPT, "-c", str(write(tree)), ranks=ranks, logs=tmp_path / f"log{ranks}")
    for file in ("model.safetensors", "ema.safetensors"):
        alone, together = (read_arrays(tmp_path / name / "latest" / file) for name in ("one", "two"))
        assert set(alone) == {"fc.weight", "fc.bias"}
        for key, value in alone.items():
            np.testing.assert_allclose(together[key], value, rtol=0, atol=2e-6, err_msg=key)
    alone, together = (read_records(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    for a, b in zip(alone, together, strict=True):
        assert b.metrics == a.metrics
        assert b.loss == pytest.approx(a.loss, rel=1e-5)


@pytest.mark.slow
def test_two_ranks_learn_by_a_layer_as_one(images: Path, tmp_path: Path) -> None:
    """With a loss that has weights of its own; the last step of an epoch leaves the ranks different rows."""
    paddle.seed(4)
    teacher = tmp_path / "teacher.safetensors"
    write_arrays(teacher, build_model("Convolving", CLASSES).state_dict())
    keys = {"base_loss_name": "PEFDLoss", "s_key": "conv", "t_key": "conv", **PAIR}
    channels = {"student_channel": 4, "teacher_channel": 4}
    plain = {"name": "Convolving", "return_patterns": ["conv"]}
    for name, ranks in (("one", 1), ("two", 2)):
        tree = taught(
            images,
            tmp_path / name,
            teacher,
            Global__epochs=1,
            DataLoader__Train__sampler__batch_size=14 // ranks,
            Arch__models=[{"Teacher": {**plain, "pretrained": str(teacher)}}, {"Student": plain}],
            Loss__Train=[{"CELoss": None}, {"DistillationPairLoss": {**keys, **channels, "weight": 5.0}}],
        )
        run(SCRIPT, "-c", str(write(tree)), ranks=ranks, logs=tmp_path / f"log{ranks}")
    alone, together = (
        read_arrays(tmp_path / name / "latest" / "model.safetensors") for name in ("one", "two")
    )
    assert {"conv.weight", "fc.weight", "loss1.projectors.2.weight"} < set(alone)
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=2e-6, err_msg=key)
    log, log_of_two = (read_records(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    for a, b in zip(log, log_of_two, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-5)


def test_distillation_reports_invalid_weights(images: Path, tmp_path: Path, teacher: Path) -> None:
    gone = taught(images, tmp_path / "run", tmp_path / "gone.pdparams")
    with pytest.raises(UserError, match=r"gone.pdparams: no such file"):
        state_of(gone)
    other = taught(
        images,
        tmp_path / "run",
        teacher,
        Arch__models=[
            {"Teacher": {"name": "Layer", "pretrained": str(teacher)}},
            {"Student": {"name": "Layer"}},
        ],
    )
    with pytest.raises(UserError, match="weights of another model"):
        state_of(other)
    taken = taught(images, tmp_path / "run", None)
    taken["Arch"]["models"][0] = {"fc": {"name": "Layer"}}
    taken["Loss"] = {"Train": [{"DistillationGTCELoss": {"model_names": ["Student", "fc"]}}]}
    taken["Metric"] = {"Eval": [{"TopkAcc": {"topk": 1}}]}
    with pytest.raises(
        UserError, match=r"Arch.models: Linear cannot hold a model called 'fc'; choose another name"
    ):
        state_of(taken)
