"""Whole runs, from the config to the files in the output folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from few_digits import write_few_digits
from small_net import Net, assert_equal, build_linear, build_net, content

from ppcls.config.base.errors import ConfigError
from ppcls.data.index.class_names import LABEL_LIST, read_class_names
from ppcls.engine import train as module
from ppcls.engine.checkpoint.output_lock import LOCK
from ppcls.engine.core.state import TrainState
from ppcls.engine.train import describe_recall, train, warn_of_one_class
from ppcls.errors import MissedTargetError, UserError
from ppcls.recipe.load import load_config, validate
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord, Outcomes, StepRecord
from ppcls.report.stored_evaluation import EVALUATION_FILE, read_evaluation, store_evaluation
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays, read_weights


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)


@pytest.fixture
def make(make_config: Callable[..., Config]) -> Callable[..., Config]:
    def make(output: str = "run", **changes: Any) -> Config:
        return make_config(output, **{"Arch__name": "Small", **changes})

    return make


def run(config: Config, runtime: Runtime) -> TrainState:
    output = Path(config.Global.output_dir)
    output.mkdir(exist_ok=True)
    return train(config, runtime, output)


def at_start(config: Config, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> TrainState:
    """Returns the state that training would begin with."""
    begun: list[TrainState] = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "fit", lambda run: begun.append(run.state))
        run(config, runtime)
    return begun[0]


def digest(folder: Path) -> dict[str, str]:
    """Returns what is in a folder, byte for byte."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.usefixtures("drawn_curves", "drawn_heat_maps")
@pytest.mark.parametrize("use_dali", [True, False])
def test_train_writes_all_documented_files(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path, use_dali: bool
) -> None:
    config = make(Global__use_dali=use_dali, EMA__decay=0.5)
    state = run(config, cpu)
    output = tmp_path / "run"
    assert (state.epoch, state.update) == (2, 8)
    assert load_config(output / "config.yaml") == config
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG\r\n")
    page = (output / "report.html").read_text()
    for part in ("Confusion matrix, ", "Training images after all transforms", "done: 2 epochs, 8 updates"):
        assert part in page
    assert "The run has ended" in page
    assert "Heat maps show the pixels that support the predicted class." in page
    log = (output / "train.log").read_text()
    assert "Small, float32, 4 batches per epoch" in log
    assert f"done: 2 epochs, 8 updates; all files are in {output}" in log
    assert f"predict: ppcls infer --model {output} IMAGE" in log

    records = read_records(output / "metrics.jsonl")
    steps = [each for each in records if isinstance(each, StepRecord)]
    evaluations = [each for each in records if isinstance(each, EvalRecord)]
    assert [(each.epoch, each.step, each.update) for each in steps] == [
        (1, 2, 2),
        (1, 4, 4),
        (2, 2, 6),
        (2, 4, 8),
    ]
    assert all(each.images_per_second > 0 and 0 <= each.data_wait <= 1 for each in steps)
    assert [(each.epoch, each.images) for each in evaluations] == [(1, 11), (2, 11)]
    assert evaluations[0].best
    assert state.progress.best == max(each.metrics["top1"] for each in evaluations)

    links = {path.name: path.resolve().name for path in output.iterdir() if path.is_symlink()}
    best = next(each.update for each in reversed(evaluations) if each.best)
    assert links == {
        "latest": "step_00000008",
        "epoch_1": "step_00000004",
        "epoch_2": "step_00000008",
        "best_model": f"step_{best:08d}",
    }
    assert_equal(read_arrays(output / "latest" / "model.safetensors"), content(state.model))
    assert [path.name for path in output.rglob(".*")] == [LOCK]


def test_train_improves_a_real_network(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    arch = {"name": "WideResNet", "depth": 10, "widen_factor": 1, "class_num": 4}
    run(make_config(Arch=arch, Global__epochs=4, Optimizer__lr__learning_rate=0.05), cpu)
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    shares = [each.metrics["top1"] for each in records if isinstance(each, StepRecord) and each.epoch > 2]
    assert np.mean(shares) > 0.5  # of four classes, of which guesses hit a quarter


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "digits"
    write_few_digits(folder, train=600, evaluation=150)
    return folder


@pytest.mark.parametrize(
    "mixing",
    [
        pytest.param(
            {"MixupOperator": {"alpha": 0.8}}, marks=pytest.mark.slow
        ),  # the other one mixes up, too
        {"OpSampler": {"MixupOperator": {"prob": 0.4}, "CutmixOperator": {"prob": 0.4}}},
    ],
    ids=["Mixup", "OpSampler"],
)
def test_train_learns_from_mixed_digits(
    make: Callable[..., Config], cpu: Runtime, digits: Path, monkeypatch: pytest.MonkeyPatch, mixing: Any
) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Linear", build_linear)
    splits = {
        f"DataLoader__{split}__dataset__{key}": str(digits / value)
        for split, listing in (("Train", "train_list.txt"), ("Eval", "val_list.txt"))
        for key, value in (("image_root", "."), ("cls_label_path", listing))
    }
    chain = [{"DecodeImage": None}, {"ResizeImage": {"size": 16}}, {"NormalizeImage": None}]
    state = run(
        make(
            Arch={"name": "Linear", "class_num": 10},
            **splits,
            DataLoader__Train__dataset__transform_ops=chain,
            DataLoader__Train__dataset__batch_transform_ops=[mixing],
            DataLoader__Train__sampler__batch_size=32,
        ),
        cpu,
    )
    assert state.progress.best is not None
    assert state.progress.best > 0.8


def test_train_twice_produces_the_same_bits(make: Callable[..., Config], cpu: Runtime) -> None:
    assert_equal(content(run(make("one"), cpu).model), content(run(make("other"), cpu).model))
    other = run(make("third", Global__seed=6), cpu)
    assert not np.array_equal(other.model.fc.weight.numpy(), run(make("fourth"), cpu).model.fc.weight.numpy())


def test_train_without_evaluation_saves_the_last_checkpoint(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    run(make(Global__eval_during_train=False, DataLoader__Eval=None, Global__epochs=1), cpu)
    assert not (tmp_path / "run" / "best_model").exists()
    assert (tmp_path / "run" / "latest").is_dir()
    log = (tmp_path / "run" / "train.log").read_text()
    assert f"predict: ppcls infer --model {tmp_path / 'run' / 'latest'} IMAGE" in log


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    paddle.seed(99)
    paddle.save(Net().state_dict(), str(tmp_path / "earlier.pdparams"))
    return tmp_path / "earlier"


@pytest.mark.parametrize("checkpoints", [None, "auto"])
def test_train_starts_from_weights(
    make: Callable[..., Config],
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pretrained: Path,
    checkpoints: str | None,
) -> None:
    changes = {"Global__pretrained_model": str(pretrained), "Global__checkpoints": checkpoints}
    state = at_start(make(**changes, EMA__decay=0.9), cpu, monkeypatch)
    expected = read_weights(pretrained)
    assert_equal(content(state.model), expected)
    assert state.ema is not None
    assert_equal(state.ema.state_dict(), expected)
    assert f"weights from {pretrained}\n" in (tmp_path / "run" / "train.log").read_text()


def test_train_logs_classifier_that_starts_from_scratch(
    make: Callable[..., Config],
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pretrained: Path,
) -> None:
    state = at_start(make(Arch__class_num=9, Global__pretrained_model=str(pretrained)), cpu, monkeypatch)
    np.testing.assert_array_equal(state.model.conv.weight.numpy(), read_weights(pretrained)["conv.weight"])
    assert list(state.model.fc.weight.shape) == [4, 9]
    log = (tmp_path / "run" / "train.log").read_text()
    assert "; fc.bias, fc.weight are random, for 9 classes" in log


def test_resumed_run_ignores_initial_weights(
    make: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = run(make(Global__epochs=1), cpu)
    config = make(Global__checkpoints="auto", Global__pretrained_model=str(tmp_path / "gone"))
    assert_equal(content(at_start(config, cpu, monkeypatch).model), content(trained.model))


def test_train_rejects_used_output_folder_without_changing_it(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    run(make(Global__epochs=1), cpu)
    before = digest(tmp_path / "run")
    with pytest.raises(UserError, match=r"already holds a run; resume it with --resume"):
        run(make(Global__epochs=1, Global__seed=6), cpu)
    assert digest(tmp_path / "run") == before


def test_failed_run_logs_the_reason(make: Callable[..., Config], cpu: Runtime, tmp_path: Path) -> None:
    config = make(Optimizer__lr={"name": "Constant", "learning_rate": 1e30})
    with pytest.raises(UserError, match="NaN or infinite"):
        run(config, cpu)
    for name in ("train.log", "events.jsonl", "report.html"):
        text = (tmp_path / "run" / name).read_text(encoding="utf-8")
        assert re.search(r"ended by an error: update \d+: the weights are NaN or infinite", text), name


def test_run_resumed_into_another_folder_keeps_the_first(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        run(make(name, Global__epochs=1), cpu)
    before = digest(tmp_path)
    with pytest.raises(UserError, match="other already holds a run"):
        run(make("other", Global__checkpoints=str(tmp_path / "one" / "latest")), cpu)
    assert digest(tmp_path) == before


def test_resume_with_more_epochs_continues_and_loses_nothing(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    run(make(Global__epochs=1), cpu)
    first, records = (output / "train.log").read_text(), read_records(output / "metrics.jsonl")
    kept = digest(output / "epoch_1")
    state = run(make(Global__epochs=3, Global__checkpoints="auto"), cpu)
    assert (state.epoch, state.update) == (3, 12)
    log = (output / "train.log").read_text()
    assert log.startswith(first)
    assert f"resumed {output}/latest: epoch 2, batch 0, update 4" in log
    again = read_records(output / "metrics.jsonl")
    assert again[: len(records)] == records
    assert [each.update for each in again if isinstance(each, StepRecord)] == [2, 4, 6, 8, 10, 12]
    assert digest(output / "epoch_1") == kept
    assert load_config(output / "config.yaml").Global.epochs == 3


def test_resuming_finished_run_logs_that_it_is_done(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    run(make(Global__epochs=1), cpu)
    before = digest(tmp_path / "run" / "checkpoints")
    state = run(make(Global__epochs=1, Global__checkpoints="auto"), cpu)
    assert state.update == 4
    assert digest(tmp_path / "run" / "checkpoints") == before
    log = (tmp_path / "run" / "train.log").read_text()
    assert "done: 1 epoch, 4 updates" in log
    assert (
        log.count("nothing to train: the run has all of its 1 epoch; to continue it, set a larger number")
        == 1
    )
    assert log.count("recall per class") == 2  # also of the best evaluation, which is in a file


def test_resumed_run_describes_its_best_model(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    run(make(Global__epochs=1), cpu)
    stored = read_evaluation(output / EVALUATION_FILE)
    assert stored is not None
    assert isinstance(stored.outcomes, Outcomes)
    known = replace(stored.outcomes, confusion=np.diag([9, 8, 7, 6]))
    store_evaluation(output / EVALUATION_FILE, replace(stored, outcomes=known))
    same = {"Global__checkpoints": "auto", "Optimizer__lr__learning_rate": 1e-12}  # no evaluation is better
    run(make(Global__epochs=2, **same), cpu)
    recalls = [line for line in read_log(output) if line.startswith("recall per class")]
    assert recalls[-1] == "recall per class: 0 1.000 of 9, 1 1.000 of 8, 2 1.000 of 7, 3 1.000 of 6"
    (output / EVALUATION_FILE).unlink()
    run(make(Global__epochs=3, **same), cpu)
    assert "results per image are missing" in (output / "train.log").read_text()


def read_log(output: Path) -> list[str]:
    """Returns the lines of the log without their times."""
    return [line.split(" ", 2)[-1] for line in (output / "train.log").read_text().splitlines()]


def test_resuming_from_unsuitable_checkpoint_changes_no_file(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    run(make(Global__epochs=1), cpu)
    before = digest(tmp_path / "run")
    with pytest.raises(UserError, match="weights of another model"):
        run(make(Arch__class_num=9, Global__checkpoints="auto"), cpu)
    assert digest(tmp_path / "run") == before


def test_training_needs_data_to_train_on(make: Callable[..., Config], cpu: Runtime) -> None:
    with pytest.raises(UserError, match=r"DataLoader\.Train: missing"):
        run(make(DataLoader__Train=None), cpu)


def _class_folders(images: Path, root: Path, names: tuple[str, ...]) -> Path:
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(label, 24, len(names)):
            (root / name / f"{number}.jpg").write_bytes((images / f"train {number}.jpg").read_bytes())
    return root


def test_class_folders_name_the_classes(
    make_config: Callable[..., Config], images: Path, cpu: Runtime, tmp_path: Path
) -> None:
    names = ("a cat", "a dog", "bird", "zebra")
    root = _class_folders(images, tmp_path / "mine", names)
    tree = make_config(Global__epochs=1).model_dump(mode="json")
    for split in ("Train", "Eval"):
        dataset = tree["DataLoader"][split]["dataset"]
        for key in ("cls_label_path", "delimiter", "relabel"):
            del dataset[key]
        dataset |= {"name": "ImageFolderDataset", "image_root": str(root)}
    config = validate(tree, "folders")
    folder = Path(config.Global.output_dir)
    folder.mkdir()
    train(config, cpu, folder)
    assert read_class_names(folder / LABEL_LIST, 4) == names
    assert read_class_names(folder / "best_model" / LABEL_LIST, 4) == names
    other = _class_folders(images, tmp_path / "other", ("a cat", "a dog", "bird", "cow"))
    tree["DataLoader"]["Eval"]["dataset"]["image_root"] = str(other)
    with pytest.raises(UserError, match=r"no classes of the model: cow; no folder for the classes zebra"):
        train(load_config(tree), cpu, tmp_path)


def test_model_that_predicts_one_class_for_all_images_causes_a_warning() -> None:
    matrix = np.array([[0, 3], [0, 2]])
    (line,) = warn_of_one_class(matrix, ("cats", "dogs"), from_scratch=True)
    assert line.startswith("warning: the model predicts dogs for every validation image; train longer")
    assert "published weights" in line
    (line,) = warn_of_one_class(matrix, ("cats", "dogs"), from_scratch=False)
    assert "published weights" not in line
    assert list(warn_of_one_class(np.array([[1, 2], [0, 2]]), (), from_scratch=True)) == []
    assert list(warn_of_one_class(np.array([[0, 0], [0, 2]]), (), from_scratch=True)) == []


def test_describe_recall_names_each_class_or_the_worst() -> None:
    few = describe_recall(np.array([[3, 1, 0], [0, 0, 0], [2, 0, 0]]), ("cats", "dogs"))
    assert few == "recall per class: cats 0.750 of 4, 2 0.000 of 2"
    many = np.diag(np.full(12, 4))
    many[7] = [1] * 4 + [0] * 8
    assert describe_recall(many, ()).startswith("lowest recall of 12 classes: 7 0.000 of 4, 0 1.000 of 4")
    assert describe_recall(many, ()).count(" of 4") == 10


@pytest.mark.parametrize(("target", "reached"), [({"top1": 0.0}, True), ({"top1": 1.0}, False)])
def test_run_ends_with_an_error_if_the_last_evaluation_misses_the_target(
    make: Callable[..., Config], cpu: Runtime, tmp_path: Path, target: dict[str, float], reached: bool
) -> None:
    config = make(Global__target=target)
    if reached:
        run(config, cpu)
        return
    with pytest.raises(
        MissedTargetError, match=r"epoch 2: top1 is 0\.\d{4}, but Global.target requires at least 1;"
    ):
        run(config, cpu)
    assert (tmp_path / "run/latest").is_dir()
    # A finished run that is started again evaluates nothing, but its result is still too bad.
    again = make(Global__target=target, Global__checkpoints="auto")
    with pytest.raises(MissedTargetError, match="requires at least"):
        run(again, cpu)


def test_target_of_one_class(make: Callable[..., Config], cpu: Runtime) -> None:
    per_class = [{"PerClassRecall": {"each": True}}, {"ConfusionMatrix": {"each": True}}]
    run(make(Metric__Eval=per_class, Global__target={"recall_0": 0.0, "f1_3": 0.0}), cpu)
    perfect = {f"recall_{label}": 1.0 for label in range(4)}
    with pytest.raises(MissedTargetError, match=r"recall_\d is 0\.\d{4}, but Global.target requires"):
        run(make("missed", Metric__Eval=per_class, Global__target=perfect), cpu)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"Metric__Eval": [{"PerClassRecall": {"each": True}}], "Global__target": {"recall_4": 0.5}},
            "Global.target.recall_4: Metric.Eval does not report it",
        ),
        (
            {"Metric__Eval": [{"PerClassRecall": {}}], "Global__target": {"recall_0": 0.5}},
            "Global.target.recall_0: Metric.Eval does not report it",
        ),
        ({"Global__target": {"accuracy": 0.5}}, "Global.target.accuracy: Metric.Eval does not report it"),
        ({"Global__target": {"top1": "high"}}, "Global.target.top1"),
        ({"Global__target": {}}, "Global.target"),
        ({"Global__target": {"top1": 94}}, "Global.target.top1: expected at most 1, got 94"),
        ({"Global__target": {"top1": 0.5}, "Global__eval_during_train": False}, "needs evaluations"),
    ],
)
def test_target_is_checked_before_the_run(
    make: Callable[..., Config], changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make(**changes)
