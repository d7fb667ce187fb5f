"""Commands whose runs and models are in object storage of each kind, in processes of their own.

The servers run on this machine: moto for S3, azurite for Azure, gcp-storage-emulator for Google.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from cloud_servers import CLOUDS, Cloud
from few_digits import write_few_digits
from numpy.typing import NDArray

from ppcls.files.objects import Objects
from ppcls.weights.files import read_arrays

pytestmark = pytest.mark.slow
SMALL = (
    *("--model", "MobileNetV3_small_x0_35", "--image-size", "32", "--device", "cpu", "--epochs", "1"),
    *("-o", "Global.autotune=False", "Arch.pretrained=False"),
)


class Machine:
    """Runs commands, each with an empty folder for copies, as on a new machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._homes = map(folder.joinpath, map("home{}".format, itertools.count()))
        write_few_digits(folder / "digits", 40, 20)
        self.data = self._class_folders(folder / "digits")
        self.image = next((self.data / "1").iterdir())

    def _class_folders(self, digits: Path) -> Path:
        data = self.folder / "classes"
        for listing in ("train_list.txt", "val_list.txt"):
            for line in (digits / listing).read_text().splitlines():
                name, label = line.split()
                (data / label).mkdir(parents=True, exist_ok=True)
                os.link(digits / name, data / label / Path(name).name)
        return data

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command of ppcls."""
        home = next(self._homes)
        return subprocess.run(
            [sys.executable, "-m", "ppcls", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "PPCLS_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )

    def outputs(self, *arguments: str | Path) -> str:
        """Runs a command that succeeds, and returns its standard output."""
        result = self.run(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def copy(self, name: str) -> Path:
        """Returns the folder of a run on the machine that trained it."""
        return next(self.folder.glob(f"home*/storage/{name}-????????????/latest")).parent

    def train(self, output: str, *more: str) -> str:
        """Trains on the digits."""
        return self.outputs("train", self.data, "--output", output, *SMALL, *more)


@pytest.fixture(params=["s3", "azure", "google"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with CLOUDS[request.param](monkeypatch, tmp_path / "home") as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def checkpoint_weights(folder: Path) -> dict[str, NDArray[Any]]:
    """Returns the trained weights of a run, without the statistics of BatchNorm."""
    arrays = read_arrays(folder / "latest" / "model.safetensors")
    return {name: array for name, array in arrays.items() if not name.endswith(("_mean", "_variance"))}


def test_commands_use_a_run_in_storage_like_a_folder(cloud: Cloud, machine: Machine) -> None:
    url = f"{cloud.url}/run"
    log = machine.train(url)
    assert f"predict: ppcls infer --model {url} IMAGE" in log
    copy = machine.copy("run")
    expected = machine.outputs("infer", "--model", copy, machine.image)
    assert machine.outputs("infer", "--model", url, machine.image) == expected
    local, remote = (
        machine.outputs("eval", "--model", model, "--data", machine.data).partition(": loss")
        for model in (copy, url)
    )
    assert remote[2].split(", ")[:2] == local[2].split(", ")[:2]
    assert remote[0] == local[0].replace(str(copy), url)
    exported = machine.outputs("export", "--model", url, "--output", machine.folder / "exported")
    assert exported.startswith(f"[Export] {url}/")
    assert str(machine.folder / "home") not in exported
    for number, key in enumerate(("Global.pretrained_model", "Arch.pretrained")):
        machine.train(f"{cloud.url}/from{number}", f"{key}={url}", "Optimizer.lr.learning_rate=1e-30")
        found = checkpoint_weights(machine.copy(f"from{number}"))
        for name, array in checkpoint_weights(copy).items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6)


def test_run_that_was_not_evaluated_has_a_latest_model(cloud: Cloud, machine: Machine) -> None:
    url = f"{cloud.url}/run"
    log = machine.train(url, "Global.eval_during_train=False")
    assert f"predict: ppcls infer --model {url} IMAGE" in log
    result = machine.run("infer", "--model", url, machine.image)
    assert result.returncode == 0
    assert "has no best_model; using" in result.stderr
    assert "latest: loss" in machine.outputs("eval", "--model", url, "--data", machine.data)
    machine.train(f"{cloud.url}/from", f"Global.pretrained_model={url}", "Optimizer.lr.learning_rate=1e-30")
    found = checkpoint_weights(machine.copy("from"))
    for name, array in checkpoint_weights(machine.copy("run")).items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6)


def test_credentials_that_expire_are_read_again_or_end_with_the_code_for_another_try(
    cloud: Cloud, machine: Machine
) -> None:
    url = f"{cloud.url}/run"
    machine.train(url)
    expected = machine.outputs("infer", "--model", url, machine.image)
    start = cloud.proxy.count
    cloud.proxy.fault = lambda method, path, number: "expired" if start + 3 <= number < start + 5 else None
    assert machine.outputs("infer", "--model", url, machine.image) == expected
    cloud.proxy.fault = lambda method, path, number: "expired"
    other = f"{cloud.url}/other"
    for command in (
        ("infer", "--model", url, machine.image),
        ("eval", "--model", url, "--data", machine.data),
        ("train", machine.data, "--output", other, *SMALL, f"Global.pretrained_model={url}"),
        ("train", machine.data, "--output", machine.folder / "local", *SMALL, f"Arch.pretrained={url}"),
    ):
        result = machine.run(*command)
        assert result.returncode == 75, result.stderr
        assert "can't read this object" in result.stderr
        assert "Traceback" not in result.stderr


def test_weights_that_are_replaced_during_the_download_are_not_used(cloud: Cloud, machine: Machine) -> None:
    """The checkpoint is compared with its digests, and the run is usable again afterwards."""
    url = f"{cloud.url}/run"
    machine.train(url)
    expected = machine.outputs("infer", "--model", url, machine.image)
    run = Objects(url)
    # Read before the download: a request within `replace` would call it again.
    contents = {name: run.read(name) for name in run.sizes() if name.endswith("model.safetensors")}
    replaced: dict[str, bytes] = {}

    def replace(method: str, path: str, number: int) -> None:
        read = [name for name in contents if name in unquote(path)]
        if method == "GET" and read and not replaced:
            weights = contents[read[0]]
            assert weights is not None
            replaced[read[0]] = weights
            run.write(read[0], weights[:-4] + b"else")

    cloud.proxy.fault = replace
    result = machine.run("infer", "--model", url, machine.image)
    assert replaced
    assert result.returncode == 75, result.stderr
    assert "the storage returns other data than were written" in result.stderr
    for name, weights in replaced.items():
        run.write(name, weights)
    assert machine.outputs("infer", "--model", url, machine.image) == expected
