"""Builds the programs of a bundle, and verifies the bundle with each."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from bundles import export_bundle

from ppcls.deploy.bundle.runners import RUNNERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_bundle(tmp_path_factory.mktemp("bundle"), "--runners", ",".join(RUNNERS))


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_runner_has_a_short_readme(bundle: Path) -> None:
    for name in RUNNERS:
        text = (bundle / "runners" / name / "README.md").read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert len(text.splitlines()) <= 7


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_node_runner_verifies(bundle: Path) -> None:
    folder = bundle / "runners/js"
    run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    assert run("node", folder / "predict.mjs", "verify").startswith("PASS: 4 of 4")
    answer = run("node", folder / "predict.mjs", bundle / "golden/00.png")
    assert "café" in answer or "shark" in answer or "cat" in answer


@pytest.mark.skipif(
    shutil.which("cmake") is None or find_spec("openvino") is None,
    reason="cmake or OpenVINO is not installed",
)
def test_cpp_runner_verifies(bundle: Path, tmp_path: Path) -> None:
    import openvino.utils

    folder = openvino.utils.get_cmake_path()
    run("cmake", "-S", bundle / "runners/cpp", "-B", tmp_path, f"-DOpenVINO_DIR={folder}")
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "predict", bundle, "verify").startswith("PASS: 4 of 4")
