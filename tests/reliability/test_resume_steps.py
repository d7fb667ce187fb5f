"""Go on from each step of two epochs, with both loaders: the run ends with the undisturbed one's bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from figures import Figure
from runs import assert_same_files
from small_net import build_net

from ppcls.engine.checkpoint.checkpoints import Checkpoints
from ppcls.engine.train import train
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime


def evaluations(output: Path) -> list[str]:
    """Returns what was evaluated, all but how long it took."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [line.partition('"seconds"')[0] for line in lines if '"eval"' in line]


@pytest.mark.parametrize(
    "arch", ["Net", pytest.param("ResNet18", marks=pytest.mark.reliability)], ids=["small", "ResNet18"]
)
@pytest.mark.parametrize(
    "use_dali", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["dali", "paddle.io"]
)
def test_run_resumed_from_any_step_ends_with_the_same_bits(
    make_config: Callable[..., Config],
    cpu: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    figure: Figure,
    use_dali: bool,
    arch: str,
) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Net", build_net)
    changes: dict[str, Any] = {
        "Global__use_dali": use_dali,
        "Global__save_steps": 1,
        "Arch__name": arch,
        "EMA__decay": 0.9,
    }
    whole, kept = Checkpoints.save, dict[int, Path]()

    def save(self: Checkpoints, state: Any, roles: Any, score: float | None = None, **_: bool) -> None:
        whole(self, state, roles, score)
        if state.update not in kept:  # also the end of an epoch is one of its steps
            kept[state.update] = tmp_path / f"from_{state.update}"
            shutil.copytree(tmp_path / "straight", kept[state.update], symlinks=True)

    straight = make_config("straight", **changes)
    (tmp_path / "straight").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        total = train(straight, cpu, tmp_path / "straight").update
    assert sorted(kept) == list(range(1, total + 1))
    for update in range(1, total):
        output = kept[update]
        again = make_config(output.name, **{**changes, "Global__save_steps": 100}, Global__checkpoints="auto")
        assert train(again, cpu, output).update == total
        assert f"update {update}\n" in (output / "train.log").read_text()
        for role in ("latest", "best_model"):
            assert_same_files(tmp_path / "straight" / role, output / role)
        assert evaluations(output) == evaluations(tmp_path / "straight")
        shutil.rmtree(output)
    figure(
        f"resume, {'dali' if use_dali else 'paddle.io'}, {arch}: from each of {total - 1} steps of two "
        "epochs; all ended with the undisturbed run's bits"
    )
