"""Checkpoints go over from PaddleClas, and weights come back to it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paths import SUPPORT
from run_checkpoints import checkpoints_of
from small_net import Net, assert_equal, content, make_state, train_epochs

from ppcls.arch.build import build_model
from ppcls.cli.export import export
from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.checkpoint.paddleclas import is_paddleclas, write_pdparams
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.optimizer.state import optimizer_state
from ppcls.recipe.schema import Config
from ppcls.weights.files import read_weights

REFERENCE = SUPPORT / "paddleclas_reference.py"


def save_as_paddleclas(state: TrainState, prefix: Path, epoch: int, average: bool = False) -> None:
    """Writes what PaddleClas's ``save_load.save_model`` writes."""
    weights = state.model.state_dict()
    paddle.save(weights, f"{prefix}.pdema" if average else f"{prefix}.pdparams")
    if average:
        assert state.ema is not None
        paddle.save({**weights, **state.ema.state_dict()}, f"{prefix}.pdparams")
    paddle.save([state.optimizer.state_dict()], f"{prefix}.pdopt")
    paddle.save({"metric": 0.75, "epoch": epoch}, f"{prefix}.pdstates")


def optimizer_content(state: TrainState) -> dict[str, np.ndarray]:
    tensors = optimizer_state(state.optimizer, state.model)
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", [paddle.optimizer.Momentum, paddle.optimizer.AdamW, paddle.optimizer.SGD])
@pytest.mark.parametrize("average", [False, True])
def test_paddleclas_checkpoint_resumes(
    tmp_path: Path, make_config: Callable[..., Config], kind: type, average: bool
) -> None:
    decay = 0.9 if average else None
    state = train_epochs(make_state(kind=kind, decay=decay), 2)
    prefix = tmp_path / "epoch_2"
    save_as_paddleclas(state, prefix, epoch=2, average=average)
    again = make_state(seed=2, kind=kind, decay=decay)
    found = checkpoints_of(tmp_path, make_config()).find(str(prefix))
    assert found == prefix
    plan = resume(again, prefix)
    assert plan[0] == f"resumed {prefix}: epoch 3, batch 0, update 6"
    assert_equal(content(again.model), content(state.model))
    assert_equal(optimizer_content(again), optimizer_content(state))
    if average:
        assert again.ema is not None
        assert state.ema is not None
        assert_equal(again.ema.state_dict(), state.ema.state_dict())
    assert (again.epoch, again.step, again.update, again.progress.best) == (2, 0, 6, 0.75)
    assert_equal(content(train_epochs(again).model), content(train_epochs(state).model))


def test_resume_from_another_folder_resets_the_best_metric(tmp_path: Path) -> None:
    prefix = tmp_path / "epoch_1"
    save_as_paddleclas(train_epochs(make_state()), prefix, epoch=1)
    assert "best metric" in resume(make_state(), prefix)[1]
    again = make_state()
    plan = resume(again, prefix, best_score=-math.inf)
    assert again.progress.best is None
    assert "best metric" not in plan[1]
    assert plan[-1].startswith("  reset: the best metric")


def test_resume_restores_master_weights_and_their_accumulators(tmp_path: Path) -> None:
    """As AMP O2 saves them; the names of their accumulators have the master's name within."""
    state = train_epochs(make_state())
    prefix = tmp_path / "epoch_1"
    save_as_paddleclas(state, prefix, epoch=1)
    saved = state.optimizer.state_dict()
    name = state.model.fc.weight.name
    saved[f"{name}_fp32_master_0_velocity_0"] = saved.pop(f"{name}_velocity_0")
    saved["master_weights"] = {name: state.model.fc.weight}
    paddle.save([saved], f"{prefix}.pdopt")
    again = make_state(seed=2)
    resume(again, prefix)
    assert_equal(optimizer_content(again), optimizer_content(state))


@pytest.mark.parametrize("ending", ["pdparams", "pdopt", "pdstates"])
def test_paddleclas_checkpoint_error_names_missing_or_damaged_file(tmp_path: Path, ending: str) -> None:
    prefix = tmp_path / "epoch_1"
    save_as_paddleclas(train_epochs(make_state()), prefix, epoch=1)
    assert is_paddleclas(prefix)
    path = Path(f"{prefix}.{ending}")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=f"{path}: damaged, or not a .{ending} file"):
        resume(make_state(), prefix)
    path.unlink()
    assert is_paddleclas(prefix) == (ending == "pdstates")


@pytest.mark.parametrize("epoch", [-1, 10**6, 1 << 20_000, "1"], ids=["negative", "many", "huge", "text"])
def test_paddleclas_checkpoint_with_an_impossible_epoch_is_an_error(tmp_path: Path, epoch: Any) -> None:
    save_as_paddleclas(train_epochs(make_state()), tmp_path / "epoch_1", epoch=epoch)
    with pytest.raises(UserError, match=r"epoch_1.pdstates: expected a mapping with an integer 'epoch'"):
        resume(make_state(), tmp_path / "epoch_1")


@pytest.mark.parametrize("metric", [math.inf, math.nan, -1.0])
def test_paddleclas_checkpoint_with_an_impossible_metric_has_no_best_metric(
    tmp_path: Path, metric: float
) -> None:
    save_as_paddleclas(train_epochs(make_state()), tmp_path / "epoch_1", epoch=1)
    paddle.save({"metric": metric, "epoch": 1}, str(tmp_path / "epoch_1.pdstates"))
    resume(state := make_state(), tmp_path / "epoch_1")
    assert state.progress.best is None


def test_resume_with_another_optimizer_or_model_is_an_error(tmp_path: Path) -> None:
    prefix = tmp_path / "epoch_1"
    save_as_paddleclas(train_epochs(make_state()), prefix, epoch=1)
    with pytest.raises(UserError, match=r"epoch_1\.pdopt: .*check that Optimizer"):
        resume(make_state(kind=paddle.optimizer.Adam), prefix)
    with pytest.raises(UserError, match=r"epoch_1\.pdparams: weights of another model"):
        resume(make_state(model=Net(width=5)), prefix)


LOAD = """
import importlib, sys, types
sys.path.insert(0, sys.argv[1])
import numpy as np, paddle
import paddleclas_reference as reference
reference.lay_out()
download = types.ModuleType("paddleclas.ppcls.utils.download")
download.get_weights_path_from_url = None
sys.modules[download.__name__] = download
del sys.modules["paddleclas.ppcls.utils.save_load"]
save_load = importlib.import_module("paddleclas.ppcls.utils.save_load")
model = reference.builder("ResNet18")(class_num=reference.CLASSES)
save_load.load_dygraph_pretrain(model, sys.argv[2])
model.eval()
np.save(sys.argv[3], model(paddle.to_tensor(reference.images(reference.SIDES))).numpy())
"""


def test_paddleclas_loads_the_weights_of_ppcls(tmp_path: Path) -> None:
    """PyPI's paddleclas, in a process of its own."""
    model = build_model("ResNet18", class_num=10)
    write_pdparams(tmp_path / "ours.pdparams", content(model))
    logits = tmp_path / "logits.npy"
    command = [sys.executable, "-c", LOAD, str(REFERENCE.parent), str(tmp_path / "ours"), str(logits)]
    subprocess.run(command, check=True)
    model.eval()
    image = np.random.default_rng(0).standard_normal((4, 3, 64, 64), dtype=np.float32)
    expected = model(paddle.to_tensor(image)).numpy()
    assert expected.std() > 0
    np.testing.assert_allclose(np.load(logits), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_pdparams_are_written_completely_and_overwrite_nothing(
    tmp_path: Path,
    make_config: Callable[..., Config],
    make_yaml: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = train_epochs(make_state())
    (tmp_path / "run").mkdir()
    checkpoints_of(tmp_path / "run", make_config()).save(state, [LATEST])
    target = tmp_path / "ours.pdparams"
    arguments = ["-c", str(make_yaml()), "--pdparams", str(target)]
    override = ["-o", f"Global.pretrained_model={tmp_path / 'run' / LATEST}"]
    assert export([*arguments, *override]) == 0
    assert "ours.pdparams: 0.0 MB" in capsys.readouterr().out
    assert_equal(read_weights(target), content(state.model))
    assert_equal(
        {name: each.numpy() for name, each in paddle.load(str(target)).items()}, content(state.model)
    )
    assert export([*arguments, *override]) == 2
    assert "expected a new file" in capsys.readouterr().err
    arguments[-1] = str(tmp_path / "none" / "ours.pdparams")
    assert export([*arguments, *override]) == 2
    assert "does not exist" in capsys.readouterr().err
