"""A run whose checkpoints do not fit on the disk warns at its start."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paddle
import pytest

from ppcls.engine.checkpoint.disk_space import describe_disk_space


def test_free_space_is_compared_with_all_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = paddle.nn.Linear(999, 1000)  # 1 million weights
    state: Any = SimpleNamespace(model=model, ema=None)
    settings: Any = SimpleNamespace(keep_best=3, save_interval=2)
    needed = (3 + 5 + 2) * 8 * 10**6
    free = needed
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    output = tmp_path / "missing" / "run"
    assert describe_disk_space(state, settings, output, 10) == []
    free = needed - 1
    (line,) = describe_disk_space(state, settings, output, 10)
    assert line.startswith(f"warning: {output}: 0.1 GB are free, but up to 10 checkpoints of at least 0.0 GB")
    assert "increase Global.save_interval (now 2)" in line
    assert describe_disk_space(state, settings, output, 8) == []
