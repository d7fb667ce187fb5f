"""Runs and models on an S3 server of this machine, whose requests fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_proxy import FaultProxy
from s3_server import BUCKET, s3_server
from small_tree import small_tree

from ppcls.api import fit
from ppcls.cli import train as cli
from ppcls.engine.core.hooks import RunHook
from ppcls.engine.loop import Run
from ppcls.files import objects
from ppcls.files.objects import Objects
from ppcls.files.urls import local_path
from ppcls.recipe.load import load_config
from ppcls.storage.models import weights_path
from ppcls.storage.run_copy import RunCopy
from ppcls.weights.files import read_arrays

URL = f"s3://{BUCKET}/runs/small"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,) * 5)
    with s3_server(monkeypatch, tmp_path / "home") as proxy:
        yield proxy


@pytest.fixture
def tree(images: Path) -> dict[str, Any]:
    made = small_tree(images, Path(URL))
    made["Global"]["output_dir"] = URL
    return made


class LostMachine(RunHook):
    """Ends the run within its second epoch."""

    def on_update(self, run: Run) -> None:
        if run.state.update == 6:
            raise RuntimeError("the machine is gone")


@pytest.mark.slow
def test_run_on_two_machines_ends_with_the_bits_of_one_run(
    server: FaultProxy, tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third request fails, in each of the ways in which servers and networks fail."""
    fit(load_config(tree, {"Global.output_dir": str(tmp_path / "undisturbed")}))
    expected = read_arrays(tmp_path / "undisturbed" / "latest" / "model.safetensors")
    faults = ("busy", "reset", "internal", "expired")
    server.fault = lambda method, path, number: None if number % 3 else faults[number // 3 % 4]
    with pytest.raises(RuntimeError, match="the machine is gone"):
        fit(load_config(tree), hooks=[LostMachine()])
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "another"))
    result = fit(load_config(tree, {"Global.checkpoints": "auto"}))
    assert result.output_dir.is_relative_to(tmp_path / "another")
    assert [each["update"] for each in result.history if each["kind"] == "eval"] == [4, 8]

    server.fault = lambda method, path, number: None
    log = Objects(URL).read("train.log")
    assert log is not None
    assert b"the machine is gone" in log
    assert b"done: 2 epochs" in log
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "third"))
    assert weights_path(URL).is_relative_to(tmp_path / "third")
    RunCopy(URL).pull()
    found = read_arrays(local_path(URL) / "latest" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.slow
def test_storage_that_goes_away_ends_with_the_exit_code_for_another_try(
    server: FaultProxy,
    tree: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(json.dumps(tree))
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,))
    server.fault = lambda method, path, number: "busy" if method == "PUT" and ".probe" not in path else None
    assert cli.train(["-c", str(config)]) == 75
    errors = capsys.readouterr().err
    assert "the run continues" in errors
    assert "to upload them, start the same command again on this machine, with --resume" in errors
    server.fault = lambda method, path, number: None
    assert cli.train(["--resume", URL]) == 0
    assert "links.json" in Objects(URL).sizes()
    assert cli.train(["-c", str(config)]) == 2
    assert f"{URL} already holds a run" in capsys.readouterr().err
