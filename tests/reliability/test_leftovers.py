"""Commands that are stopped or killed leave no temporary files, neither beside their output nor in TMPDIR."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundles import export_bundle
from paths import ROOT
from runs import GUARD
from small_classifier import config_tree, export_model, write_config, write_image, write_names, write_weights
from small_embedding import embedding_tree, write_model

pytestmark = [pytest.mark.hostile, pytest.mark.slow]

COMMANDS = {
    "export": "export -c config.yaml --format onnx --output written",
    "export of a bundle": "export -c config.yaml --format bundle --golden-data data --output written",
    "conversion of an export": "export --model paddle --format onnx --output written",
    "conversion": "dataset convert webdataset data --out written",
    "smaller copies": "dataset resize data --max-size 16 --out written",
    "duplicates": "dataset split data --out written --group-duplicates",
    "index": "index build written data --model embedder.yaml",
    "verification": "verify bundle.zip",
    "server": "serve --model paddle --port 0 --workers 2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leftovers")
    for label in ("a", "b"):
        for seed in range(200):
            write_image(folder / "data" / label / f"{seed}.png", seed, 200, 200)
    tree = config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))
    write_config(folder / "config.yaml", tree)
    (folder / "other").mkdir()
    export_model(folder / "other", "paddle").rename(folder / "paddle")
    embedder = embedding_tree(folder / "embedder.safetensors")
    write_model(embedder)
    write_config(folder / "embedder.yaml", embedder)
    (folder / "bundles").mkdir()
    export_bundle(folder / "bundles")
    shutil.move(next((folder / "bundles").glob("*.zip")), folder / "bundle.zip")
    return folder


def temporary(folder: Path) -> list[Path]:
    """Returns all temporary files and folders of ppcls, and large files of libraries in TMPDIR."""
    hidden = [path for path in folder.rglob(".*") if re.match(r"\.[0-9a-f]{8}\.", path.name)]
    large = [path for path in (folder / "tmp").rglob("*") if path.is_file() and path.stat().st_size > 1 << 20]
    return [*hidden, *(folder / "tmp").glob("ppcls-*"), *large]


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "ppcls", *command.split()]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


CASES = [
    (name, number)
    for name in COMMANDS
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
    if (name, number) != ("server", signal.SIGHUP)  # ends it at once, so the next command removes the files
]


def stop_with_temporary_files(command: str, number: int, folder: Path) -> tuple[int, str]:
    """Sends a signal to a command while it has temporary files, and returns its exit code and its output.

    On a busy machine, the command may end before this process runs again. It is then started once more.
    """
    output = ""
    for _ in range(10):
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        shutil.rmtree(folder / "written", ignore_errors=True)
        (folder / "tmp").mkdir()
        with start(command, folder) as process:
            while process.poll() is None and not temporary(folder):
                time.sleep(0.001)
            missed = process.poll() is not None
            process.send_signal(number)
            output, _ = process.communicate(timeout=GUARD)
        if not missed:
            return process.returncode, output
        assert process.returncode == 0, output
    raise AssertionError(f"no temporary file was seen: {output}")


@pytest.mark.parametrize(("name", "number"), CASES)
def test_stopped_command_leaves_no_temporary_files(name: str, number: int, folder: Path) -> None:
    code, output = stop_with_temporary_files(COMMANDS[name], number, folder)
    assert "Traceback" not in output
    if number == signal.SIGKILL:
        assert code == -number
        # The next command removes them.
        with start(COMMANDS[name], folder) as process:
            if name == "server":
                assert process.stdout is not None
                while " served on " not in process.stdout.readline():
                    assert process.poll() is None
                process.terminate()
            output, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0, output
    elif name != "server":
        assert code == 128 + number, output
    assert temporary(folder) == []
