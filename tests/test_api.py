"""Training from Python: results, errors, and a process that is restored afterwards."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
import pytest
from paddle import nn
from paths import ROOT
from small_tree import small_tree

import ppcls
from ppcls import api, build_loader, build_state, evaluate, files, fit, load_config
from ppcls.cli import train as cli
from ppcls.engine import loop
from ppcls.errors import SignalExit, UserError
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.signals import SignalRequests
from ppcls.weights.files import read_arrays

TRAIN, EVAL = 18, 7


def linear(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * input_image_channel, class_num), nn.Dropout(0.1))


@pytest.fixture(autouse=True)
def _linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Linear", linear)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    chance = np.random.default_rng(7)
    for name, count in (("train", TRAIN), ("eval", EVAL)):
        files = [f"{name}{i}.jpg" for i in range(count)]
        for file in files:
            cv2.imwrite(str(folder / file), chance.integers(0, 256, (20, 24, 3)).astype(np.uint8))
        (folder / f"{name}.txt").write_text("".join(f"{file} {i % 4}\n" for i, file in enumerate(files)))
    return folder


@pytest.fixture
def tree(images: Path, tmp_path: Path) -> dict[str, Any]:
    made = small_tree(images, tmp_path / "run")
    made["Arch"]["name"] = "Linear"
    return made


def process_state() -> dict[str, Any]:
    """Returns what a run must restore."""
    gc.collect()  # an exception keeps references to its frames
    files = [(each.st_dev, each.st_ino) for each in map(os.fstat, (1, 2))]
    return {
        "handlers": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.excepthook, *files),
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "path": list(sys.path),
        "filters": list(warnings.filters),
        "threads": {each.name for each in threading.enumerate() if not each.name.startswith("Dummy")},
        "random": (random.getstate(), np.random.get_state()[1].tolist()),
        "paddle": (paddle.get_device(), paddle.get_default_dtype(), paddle.is_grad_enabled()),
    }


def test_fit_returns_checkpoints_of_the_fallback_folder(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY_DELAYS", ())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").touch()  # where the folder should be
    result = fit(load_config(tree, {"Global.checkpoint_fallback_dir": str(tmp_path / "elsewhere")}))
    (kept,) = (tmp_path / "elsewhere").iterdir()
    assert (result.best_model, result.latest) == (kept / "best_model", kept / "latest")


def test_fit_returns_best_metric_files_and_history(tree: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(tree, {"Global.epochs": 3})
    paddle.seed(5)
    expected = paddle.rand([3]).numpy()
    paddle.seed(5)
    before = process_state()
    state = build_state(config)
    result = fit(state)
    assert process_state() == before
    np.testing.assert_array_equal(paddle.rand([3]).numpy(), expected)

    evaluations = [each for each in result.history if each["kind"] == "eval"]
    assert [each["epoch"] for each in evaluations] == [1, 2, 3]
    assert result.best == max(each["metrics"]["top1"] for each in evaluations)
    assert result.output_dir == tmp_path / "run"
    assert result.best_model == tmp_path / "run" / "best_model"
    assert result.latest == tmp_path / "run" / "latest"
    json.dumps(result.history)

    last = evaluate(state)
    assert (last.loss, last.images) == (pytest.approx(evaluations[-1]["loss"], rel=1e-6), EVAL)
    assert evaluate(config).metrics["top1"] == result.best
    with pytest.raises(UserError, match=r"this state has been trained for 9 updates; build a new one"):
        fit(state)


def test_two_runs_in_a_process_equal_the_run_of_the_command(
    tree: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("one", "two", "tool")
    fit(load_config(tree, {"Global.output_dir": tmp_path / "one"}))
    fit(build_state(load_config(tree, {"Global.output_dir": tmp_path / "two"})))
    (tmp_path / "tool.yaml").write_text(json.dumps(tree))
    assert cli.train(["-c", str(tmp_path / "tool.yaml"), "-o", f"Global.output_dir={tmp_path / 'tool'}"]) == 0
    one, two, tool = (read_arrays(tmp_path / name / "latest" / "model.safetensors") for name in names)
    for name, value in tool.items():
        np.testing.assert_array_equal(one[name], value)
        np.testing.assert_array_equal(two[name], value)


def test_fit_trains_the_weights_set_in_a_state(tree: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(tree, {"Optimizer.lr.learning_rate": 1e-12, "Global.epochs": 1})
    state = build_state(config)
    (first, *_) = state.model.parameters()
    first.set_value(paddle.full_like(first, 0.125))
    result = fit(state)
    assert result.latest is not None
    arrays = read_arrays(result.latest / "model.safetensors")
    np.testing.assert_allclose(arrays["1.weight"], 0.125, atol=1e-6)


def test_fit_without_evaluation_returns_no_best(tree: dict[str, Any]) -> None:
    result = fit(load_config(tree, {"Global.epochs": 1, "Global.eval_during_train": False}))
    assert (result.best, result.best_model) == (None, None)
    assert {each["kind"] for each in result.history} == {"train"}


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch, *, again: bool = False) -> None:
    """Sends Ctrl-C at a step of the first epoch, and a second one if ``again`` is true."""
    seed, handle_signals = loop.seed_batch, loop.handle_signals
    found: list[SignalRequests] = []

    @contextmanager
    def caught(*arguments: Any) -> Iterator[SignalRequests]:
        with handle_signals(*arguments) as signals:
            found.append(signals)
            yield signals

    def seed_batch(number: int, rank: int, epoch: int, at: int) -> None:
        if (epoch, at) == (0, step):
            os.kill(os.getpid(), signal.SIGINT)
            while not found[0].stop:
                time.sleep(0.01)
            if again:
                found[0]._grace = 0.0
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(30)
        seed(number, rank, epoch, at)

    monkeypatch.setattr(loop, "handle_signals", caught)
    monkeypatch.setattr(loop, "seed_batch", seed_batch)


def test_interrupted_run_is_saved_and_resumed(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process_state()
    with monkeypatch.context() as patch:
        interrupt_at(1, patch)
        with pytest.raises(SignalExit, match="stopped by SIGINT"):
            fit(load_config(tree))
    assert process_state() == before
    result = fit(load_config(tree, ["Global.checkpoints=auto"]))
    assert [each["epoch"] for each in result.history if each["kind"] == "eval"] == [1, 2]
    straight = fit(load_config(tree, {"Global.output_dir": tmp_path / "straight"}))
    assert result.latest is not None
    assert straight.latest is not None
    expected = read_arrays(straight.latest / "model.safetensors")
    for name, value in read_arrays(result.latest / "model.safetensors").items():
        np.testing.assert_array_equal(value, expected[name])


def test_second_interrupt_raises_and_restores_the_process(
    tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process_state()
    interrupt_at(1, monkeypatch, again=True)
    with pytest.raises(KeyboardInterrupt):
        fit(load_config(tree))
    assert process_state() == before


def test_fit_works_in_another_thread(tree: dict[str, Any]) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fit(load_config(tree, {"Global.epochs": 1}))))
    thread.start()
    thread.join()
    assert found[0].best is not None


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda tree: load_config(tree, {"Global.epoch": 2}),
            "Global.epoch: unknown key; did you mean 'epochs'",
        ),
        (
            lambda tree: fit(tree),
            "expected a config from load_config, or a state from build_state, got {",
        ),
        (lambda tree: build_state("mine.yaml"), "expected a config from load_config, got 'mine.yaml'"),
        (lambda tree: evaluate(load_config(tree)), "does not exist; set Global.pretrained_model"),
        (
            lambda tree: fit(load_config(tree, {"Global.output_dir": "/dev/null/x"})),
            "can't write to this output",
        ),
        (
            lambda tree: build_state(load_config(tree, {"DataLoader.Train": None})),
            "DataLoader.Train: missing; add a data set for training to the config",
        ),
        (
            lambda tree: build_state(load_config(tree, {"Global.pretrained_model": "gone.pdparams"})),
            "gone.pdparams",
        ),
        (
            lambda tree: build_state(load_config(tree, {"Global.cpu_threads": 77})),
            "Global.cpu_threads 77: Paddle uses ",
        ),
    ],
)
def test_invalid_input_raises_and_restores_the_process(tree: dict[str, Any], act: Any, message: str) -> None:
    before = process_state()
    with pytest.raises(UserError) as caught:
        act(tree)
    assert message in str(caught.value)
    assert process_state() == before


def test_output_folder_of_another_run_is_rejected(tree: dict[str, Any]) -> None:
    config = load_config(tree, {"Global.epochs": 1})
    fit(config)
    with pytest.raises(UserError, match="already holds a run; resume it with"):
        fit(build_state(config))


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ppcls' has no attribute 'train'"):
        _ = ppcls.train
    assert set(api.__all__) - {"FitResult"} <= set(ppcls.__all__)


def output_of(code: str, *arguments: object) -> list[str]:
    """Returns the lines that a new process prints."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    found = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=kept | {"PYTHONPATH": found},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "now always track" not in done.stderr
    return done.stdout.splitlines()


FRESH = """
import json, sys
import ppcls
light = not {"numpy", "pydantic"} & set(sys.modules)
from ppcls import build_state, evaluate, fit, load_config
paddles = ["paddle" in sys.modules]
config = load_config(json.loads(sys.argv[1]))
paddles.append("paddle" in sys.modules)
state = build_state(config)
paddles.append("paddle" in sys.modules)
print(json.dumps([light, paddles, state.runtime.threads, state.runtime.describe()]))
"""


def test_paddle_is_imported_only_with_known_settings(tree: dict[str, Any]) -> None:
    tree["Global"]["cpu_threads"] = 3
    tree["Arch"]["name"] = "ResNet18"
    light, paddles, threads, described = json.loads(output_of(FRESH, json.dumps(tree))[-1])
    assert light, "importing the package imports nothing else"
    assert paddles == [False, False, True]
    assert threads == 3
    assert described.endswith("Paddle uses 3 threads")


# zlib first: after Paddle 2.6.2, which has its own copy, it crashes.
EARLY = """
import json, sys, zlib
import paddle
from ppcls import build_state, load_config
from ppcls.errors import UserError
tree = json.loads(sys.argv[1])
print(json.dumps(build_state(load_config(tree)).runtime.describe()))
for change in ({"Global.cpu_threads": 3}, {"Global.deterministic": True}):
    try:
        build_state(load_config(tree, change))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def test_paddle_imported_too_early_limits_the_settings(tree: dict[str, Any]) -> None:
    tree["Arch"]["name"] = "ResNet18"
    described, threads, deterministic = map(json.loads, output_of(EARLY, json.dumps(tree)))
    early = " (Paddle was imported before ppcls could set more)" if "; 1 core " not in described else ""
    assert described.endswith(f"Paddle uses 1 thread{early}")
    assert threads.startswith(
        "Global.cpu_threads 3: Paddle uses 1, which can't be changed after its import, which came before"
    )
    assert deterministic.startswith(
        "Global.deterministic True: Paddle is not deterministic, which can't be changed after"
    )


ON_A_GPU = """
import json, os, sys
from ppcls import build_state, fit, load_config
from ppcls.errors import UserError
tree, folder = json.loads(sys.argv[1]), sys.argv[2]
shares = []
for name in ("one", "two"):
    state = build_state(load_config(tree, {"Global.output_dir": f"{folder}/{name}", "Global.epochs": 1}))
    shares.append(state.runtime.budget.share)
    fit(state)
import paddle
flag = "FLAGS_gpu_memory_limit_mb"
print(json.dumps([shares, paddle.get_flags(flag)[flag], flag in os.environ]))
try:
    build_state(load_config(tree, {"Global.gpu_memory_fraction": 0.3}))
except UserError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.gpu
def test_two_runs_on_a_gpu_share_one_division_of_its_memory(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["Arch"]["name"] = "ResNet18"
    tree["Global"]["device"] = "gpu"
    (shares, limit, left), refused = [
        json.loads(line)
        for line in output_of(ON_A_GPU, json.dumps(tree), tmp_path)
        if line.startswith(("[[", '"'))
    ]
    assert shares == [limit, limit]
    assert not left, "a child process would take it for the user's"
    assert refused.startswith(
        "Global.gpu_memory_fraction 0.3: Paddle has 0.8, which can't be changed after the first run"
    )


@pytest.mark.parametrize("use_dali", [True, False])
def test_build_loader_yields_batches_of_a_run(tree: dict[str, Any], use_dali: bool) -> None:
    config = load_config(tree, {"Global.use_dali": use_dali})
    sizes = {}
    for split in ("Train", "Eval"):
        loader = build_loader(config, split)
        sizes[split] = sum(batch.valid for batch in loader)
        loader.release()
    assert sizes == {"Train": TRAIN, "Eval": EVAL}


def test_build_loader_explains_wrong_arguments(tree: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"DataLoader.Test: missing; the config has Train, Eval"):
        build_loader(load_config(tree), "Test")
    with pytest.raises(UserError, match="expected a config from load_config"):
        build_loader({})  # type: ignore[arg-type]
