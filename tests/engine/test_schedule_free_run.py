"""Runs with ``ScheduleFreeAdamW``: which weights are evaluated, saved and exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_net import assert_equal, build_net, content

from ppcls.classifier import Classifier
from ppcls.engine.core.ema import ScheduleFreeAverage
from ppcls.engine.core.state import TrainState
from ppcls.engine.train import train
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays

LR = {"name": "Constant", "learning_rate": 0.01, "warmup_epoch": 1}
CHANGES: dict[str, Any] = {
    "Arch__name": "Small",
    "Optimizer": {"name": "ScheduleFreeAdamW", "lr": LR},
    "Global__epochs": 4,
}
PREDICTION = {
    "transforms": [
        {"DecodeImage": None},
        {"ResizeImage": {"size": 16}},
        {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.25] * 3}},
    ],
    "PostProcess": {"name": "Topk", "topk": 4},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers a network with BatchNorm that trains in milliseconds."""
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)


def run(config: Config, runtime: Runtime) -> TrainState:
    output = Path(config.Global.output_dir)
    output.mkdir(exist_ok=True)
    return train(config, runtime, output)


def weights(folder: Path, file: str) -> dict[str, np.ndarray]:
    return dict(read_arrays(folder / "latest" / f"{file}.safetensors"))


def evaluations(folder: Path) -> list[EvalRecord]:
    """Returns the evaluations of a run, the last one first."""
    records = reversed(read_records(folder / "metrics.jsonl"))
    return [record for record in records if isinstance(record, EvalRecord)]


def is_statistic(name: str) -> bool:
    return name.endswith(("._mean", "._variance"))


@pytest.mark.parametrize("precise", [0, 16])
def test_evaluations_do_not_change_the_training(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path, precise: int
) -> None:
    run(make_config("plain", **CHANGES, Global__eval_during_train=False), cpu)
    run(make_config("evaluated", **CHANGES, Global__precise_batch_norm=precise), cpu)
    for file in ("model", "optimizer"):
        assert_equal(weights(tmp_path / "evaluated", file), weights(tmp_path / "plain", file))


def test_checkpoints_have_the_weights_of_training_and_the_average(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    state = run(make_config(**CHANGES), cpu)
    assert isinstance(state.ema, ScheduleFreeAverage)
    model = weights(tmp_path / "run", "model")
    average = weights(tmp_path / "run", "ema")
    assert_equal(model, content(state.model))
    averages = {name: value.numpy() for name, value in state.ema.state_dict().items()}
    assert_equal(average, {**model, **averages})
    for name, value in model.items():
        assert (average[name] != value).any() != is_statistic(name), name


def test_evaluations_best_model_and_export_use_the_average(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path, images: Path
) -> None:
    state = run(make_config(**CHANGES, Infer=PREDICTION), cpu)
    best = next(each for each in evaluations(tmp_path / "run") if each.best)
    assert state.progress.best == best.metrics["top1"]
    trained = Classifier(tmp_path / "run", device="cpu", trust=True)
    found = trained.evaluate()
    # The layers of oneDNN, which evaluate a checkpoint, add in another order.
    assert found.metrics["top1"] == pytest.approx(best.metrics["top1"])
    assert found.loss == pytest.approx(best.loss, rel=1e-4)
    exported = Classifier(trained.export(output=tmp_path / "exported"), device="cpu")
    pictures = sorted(images.glob("eval *.jpg"))
    for one, other in zip(exported.predict(pictures, topk=4), trained.predict(pictures, topk=4), strict=True):
        assert one.class_ids == other.class_ids
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


def test_network_with_batch_norm_learns_under_evaluation(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    """The statistics of BatchNorm are those of the weights of training, not those of the average."""
    changes = {
        **CHANGES,
        "Global__epochs": 20,
        "Global__eval_interval": 20,
        "Optimizer__lr__learning_rate": 0.03,
    }
    for name, images in (("run", 0), ("precise", 26)):
        run(make_config(name, **changes, Global__precise_batch_norm=images), cpu)
    (current,) = evaluations(tmp_path / "run")
    (precise,) = evaluations(tmp_path / "precise")
    assert current.metrics["top1"] > 0.8
    assert abs(current.loss - precise.loss) < 0.3
