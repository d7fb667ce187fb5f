"""Sharpness-aware minimization in all kinds of runs, from the config to checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import models_run
import numpy as np
import pytest
from launched_run import CAPTURED, LINEAR, run
from small_config import put
from small_net import build_linear, content
from small_tree import CLASSES, small_tree

from ppcls.cli import train as cli
from ppcls.engine.core.build import build_state
from ppcls.engine.core.gradients import TrialGroup
from ppcls.engine.core.sam import SharpnessAware
from ppcls.engine.core.step import train_step
from ppcls.engine.dry_run import dry_run
from ppcls.errors import UserError
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import validate
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, model in models_run.MODELS.items():
            patch.setitem(ARCHITECTURES._entries, name, model)
        patch.setitem(ARCHITECTURES._entries, "Linear", build_linear)
        yield


def change(tree: dict[str, Any], **changes: Any) -> None:
    for path, value in changes.items():
        put(tree, path.replace("__", "."), value)


def semi_supervised(tree: dict[str, Any]) -> None:
    part = tree["DataLoader"]["Train"]
    part["sampler"] |= {"drop_last": True}
    strong = [*part["dataset"]["transform_ops"]]
    strong.insert(-1, {"RandAugment": None})
    tree["DataLoader"]["UnLabelTrain"] = {
        **part,
        "transform_ops_strong": strong,
        "sampler": {"batch_size": 4, "shuffle": True, "drop_last": True},
    }
    tree["SSL"] = {"threshold": 0.0}


def mutual(tree: dict[str, Any]) -> None:
    models = [{"Teacher": {"name": "PPLCNet_x0_25"}}, {"Student": {"name": "PPLCNet_x0_25"}}]
    tree["Arch"] = {"name": "DistillationModel", "class_num": CLASSES, "models": models}
    pair = {"model_name_pairs": [["Student", "Teacher"]]}
    names = {"model_names": ["Student", "Teacher"]}
    tree["Loss"] = {"Train": [{"DistillationGTCELoss": names}, {"DistillationDMLLoss": pair}]}
    tree["Loss"]["Eval"] = [{"CELoss": None}]
    accuracy = [{"DistillationTopkAcc": {"model_key": "Student", "topk": 1}}]
    tree["Metric"] = {"Train": accuracy, "Eval": accuracy}


def embedding(tree: dict[str, Any]) -> None:
    tree["Global"]["eval_mode"] = "retrieval"
    tree["Arch"] = {
        "name": "RecModel",
        "infer_output_key": "features",
        "infer_add_softmax": False,
        "Backbone": {"name": "PPLCNet_x0_25"},
        "BackboneStopLayer": {"name": "flatten"},
        "Neck": {"name": "FC", "embedding_size": 1280, "class_num": 6},
        "Head": {"name": "ArcMargin", "embedding_size": 6, "class_num": CLASSES, "margin": 0.2, "scale": 8},
    }
    center = {"CenterLoss": {"num_classes": CLASSES, "feat_dim": 6, "weight": 0.01, "center_rate": 5.0}}
    tree["Loss"] = {"Train": [{"CELoss": None}, center], "Eval": [{"CELoss": None}]}
    tree["Metric"]["Eval"] = [{"Recallk": {"topk": [1, 2]}}]


RUNS: dict[str, Callable[[dict[str, Any]], None]] = {
    "dropout": lambda tree: None,
    "accumulation": lambda tree: change(tree, Global__update_freq=2),
    "float32 average": lambda tree: change(tree, EMA={"decay": 0.5}),
    "bfloat16": lambda tree: change(tree, AMP={"dtype": "bfloat16", "level": "O2"}),
    "compiled": lambda tree: change(tree, Global__to_static=True),
    "recomputed": lambda tree: change(tree, Global__recompute=True, Arch__name="ResNet18"),
    "frozen": lambda tree: change(tree, Optimizer__freeze=["conv1.*", "blocks2.*"]),
    "semi-supervised": semi_supervised,
    "mutual": mutual,
    "embedding": embedding,
}


QUICK = ("dropout", "accumulation", "compiled", "semi-supervised")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in RUNS]
)
def test_run_with_a_radius_near_0_equals_one_without_sam(kind: str, images: Path, tmp_path: Path) -> None:
    """Random numbers, statistics of BatchNorm, gradients and losses are those of a single pass."""
    found = []
    for rho in (None, 1e-30, 0.1):
        tree = small_tree(images, tmp_path / "run")
        change(tree, Global__use_dali=False, Optimizer__sam_rho=rho)
        RUNS[kind](tree)
        state = build_state(validate(tree, "tree"), Runtime(cores=1, threads=1), lambda *_: None)
        assert (state.sam is None) == (rho is None)
        state.network.train()
        rows = [train_step(state, batch).numpy() for batch in state.loader]
        average = state.ema.state_dict() if state.ema is not None else {}
        weights = content(state.model) | {f"average {name}": each.numpy() for name, each in average.items()}
        found.append((rows, weights))
        state.loader.release()
    (rows, without), (near_rows, near), (_, far) = found
    np.testing.assert_array_equal(near_rows, rows)
    assert near.keys() == without.keys()
    for name, weight in without.items():
        np.testing.assert_array_equal(near[name], weight, err_msg=name)
    assert any(not np.array_equal(far[name], weight) for name, weight in without.items())
    assert all(np.isfinite(weight).all() for weight in far.values())


def test_fused_kernels_train_the_weights_of_separate_operators(images: Path, tmp_path: Path) -> None:
    """After one update: in a network of this size, another order of additions soon leads elsewhere."""
    found = []
    for fused, rho in ((False, None), (False, 0.1), (True, 0.1)):
        tree = small_tree(images, tmp_path / "run")
        change(tree, Global__use_dali=False, Arch__data_format="NHWC", Global__fused_kernels=fused)
        change(tree, Arch__dropout_prob=0.0, Optimizer__sam_rho=rho)
        state = build_state(validate(tree, "tree"), Runtime(cores=1, threads=1), lambda *_: None)
        state.network.train()
        train_step(state, next(iter(state.loader)))
        found.append(np.concatenate([weight.flatten() for weight in content(state.model).values()]))
        state.loader.release()
    without, separate, fused_weights = found
    assert np.linalg.norm(fused_weights - separate) < 0.02 * np.linalg.norm(separate - without)


@pytest.mark.parametrize(
    ("script", "accumulate"),
    [
        (CAPTURED, 2),
        pytest.param(LINEAR, 1, marks=pytest.mark.slow),
        pytest.param(LINEAR, 2, marks=pytest.mark.slow),
        pytest.param(CAPTURED, 1, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_train_as_one_with_twice_as_many_steps_per_update(
    make_yaml: Callable[..., Path], tmp_path: Path, script: Path, accumulate: int
) -> None:
    """Each rank climbs with the gradient of its batch, as does each step of an update."""
    common = {
        "Arch__name": "Linear",
        "Global__use_dali": False,
        "Global__epochs": 3,
        "Optimizer__sam_rho": 1.0,
        "Optimizer__clip_norm": 5.0,
        "EMA__decay": 0.5,
        "DataLoader__Train__sampler": {"batch_size": 4, "shuffle": True, "drop_last": True},
    }
    one = make_yaml("one", **common, Global__update_freq=2 * accumulate)
    two = make_yaml("two", **common, Global__update_freq=accumulate)
    without = make_yaml(
        "without", **common | {"Optimizer__sam_rho": None}, Global__update_freq=2 * accumulate
    )
    assert cli.train(["-c", str(one)]) == 0
    assert cli.train(["-c", str(without)]) == 0
    run(script, "-c", str(two), ranks=2, logs=tmp_path / "log")
    if script == CAPTURED:
        for rank in (0, 1):
            log = (tmp_path / "log" / f"workerlog.{rank}").read_text()
            assert re.search(r"^replays: [1-9]", log, re.MULTILINE)
    for file in ("model.safetensors", "ema.safetensors"):
        other, alone, together = (
            read_arrays(tmp_path / name / "latest" / file) for name in ("without", "one", "two")
        )
        for name, weight in alone.items():
            np.testing.assert_allclose(together[name], weight, rtol=0, atol=5e-6, err_msg=name)
            assert np.abs(other[name] - weight).max() > 1e-3, name


def test_linear_head_warns_that_it_has_no_second_pass(images: Path, tmp_path: Path) -> None:
    tree = small_tree(images, tmp_path / "run")
    change(tree, Optimizer__sam_rho=0.05, LinearHead={}, Global__epochs=1)
    expected = "warning: Optimizer.sam_rho has no effect, because LinearHead computes no gradients"
    assert expected in config_warnings(validate(tree, "tree"))
    change(tree, LinearHead=None)
    assert not [line for line in config_warnings(validate(tree, "tree")) if "sam_rho" in line]


def test_first_epoch_that_changes_nothing_is_reported(images: Path, tmp_path: Path) -> None:
    tree = small_tree(images, tmp_path / "run")
    change(tree, Optimizer__sam_rho=0.05, Global__epochs=3, Optimizer__sam_first_epoch=4)
    expected = (
        "warning: Optimizer.sam_rho has no effect, because sam_first_epoch (4) is after the last epoch "
        "(Global.epochs 3)"
    )
    assert expected in config_warnings(validate(tree, "tree"))
    change(tree, Optimizer__sam_first_epoch=3)
    assert not [line for line in config_warnings(validate(tree, "tree")) if "sam_rho" in line]
    change(tree, Optimizer__sam_rho=None)
    with pytest.raises(
        UserError, match=r"Optimizer\.sam_first_epoch: .* no effect without sam_rho; set sam_rho"
    ):
        validate(tree, "tree")


def test_dry_run_measures_second_passes_and_counts_single_ones_as_half(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climbs = []
    climb = SharpnessAware.climb

    def count(self: SharpnessAware, groups: Sequence[TrialGroup]) -> None:
        climbs.append(len(groups))
        climb(self, groups)

    monkeypatch.setattr(SharpnessAware, "climb", count)
    counts = []
    for first in (1, 3):
        tree = small_tree(images, tmp_path / "run")
        change(tree, Global__use_dali=False, Global__epochs=4, Optimizer__sam_rho=0.05)
        change(tree, Optimizer__sam_first_epoch=first)
        measured = dry_run(validate(tree, "tree"), Runtime(cores=1, threads=1))
        counts.append(measured.figures.full_updates)
        assert climbs
        climbs.clear()
    assert counts[1] == pytest.approx(0.75 * counts[0], rel=0.1)
