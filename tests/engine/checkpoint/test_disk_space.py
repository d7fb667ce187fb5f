"""A run whose checkpoints do not fit on the disk warns at its start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from paddle import optimizer
from run_checkpoints import checkpoints_of
from small_net import Net, make_state

from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.checkpoint.disk_space import describe_disk_space
from ppcls.engine.core.settings import EngineSettings


def array_bytes(file: Path) -> int:
    """Returns the number of bytes of a safetensors file without its header."""
    with file.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))
    entries = json.loads(header).items()
    ends = [entry["data_offsets"][1] for name, entry in entries if name != "__metadata__"]
    return max(ends, default=0)


@pytest.mark.parametrize("decay", [None, 0.9], ids=["without average", "with average"])
@pytest.mark.parametrize("kind", [optimizer.SGD, optimizer.Momentum, optimizer.AdamW])
def test_free_space_is_compared_with_all_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Any], decay: float | None
) -> None:
    state = make_state(model=Net(width=500), kind=kind, decay=decay)
    checkpoints_of(tmp_path / "saved", state.config).save(state, [LATEST])
    size = sum(map(array_bytes, (tmp_path / "saved" / LATEST).glob("*.safetensors")))
    settings = EngineSettings(keep_best=3, save_interval=2)
    needed = (3 + 5 + 2) * size
    free = needed
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    output = tmp_path / "missing" / "run"
    assert describe_disk_space(state, settings, output, 10) == []
    free = needed - 1
    (line,) = describe_disk_space(state, settings, output, 10)
    assert line.startswith(
        f"warning: {output}: {free / 1e6:.1f} MB are free, but up to 10 checkpoints of {size / 1e6:.1f} MB"
    )
    assert "increase Global.save_interval (now 2)" in line
    assert describe_disk_space(state, settings, output, 8) == []
