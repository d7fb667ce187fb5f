"""Imports point one way; few places read the loader's choice and the environment."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT


def test_import_contracts_are_kept() -> None:
    pytest.importorskip("importlinter")
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def attributes_in(file: Path) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}


def test_few_modules_read_use_dali() -> None:
    """Four choose the loader or the decoder, or divide the GPU's memory; the others pass it on or advise."""
    files = [*(ROOT / "ppcls").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    readers = {file.relative_to(ROOT).as_posix() for file in files if "use_dali" in attributes_in(file)}
    choosing = {
        "ppcls/data/build.py",
        "ppcls/deploy/models/source.py",
        "ppcls/engine/autotune/decoding.py",
        "ppcls/runtime/start.py",
    }
    passing = {
        "ppcls/bench/loader/advice.py",
        "ppcls/engine/dry_run.py",
        "ppcls/engine/recording.py",
        "ppcls/engine/setup.py",
    }
    assert readers == choosing | passing


def test_only_runtime_and_the_weights_cache_read_the_environment() -> None:
    """`of_libraries` each handle variables of a library, such as NNCF, or of Paddle's launcher."""
    files = [file for file in (ROOT / "ppcls").rglob("*.py") if {"environ", "getenv"} & attributes_in(file)]
    names = {file.relative_to(ROOT).as_posix() for file in files}
    outside = {name for name in names if not name.startswith("ppcls/runtime/")}
    of_libraries = {
        "ppcls/__init__.py",
        "ppcls/cli/launch.py",
        "ppcls/deploy/bundle/programs/python/predict.py",
        "ppcls/deploy/export/openvino.py",
        "ppcls/engine/trainer_status.py",
        "ppcls/files/home.py",
        "ppcls/files/object_errors.py",
        "ppcls/serve/metrics.py",
        "ppcls/serve/workers.py",
    }
    assert outside <= {"ppcls/zoo.py", "ppcls/weights/download.py", "ppcls/weights/hub.py"} | of_libraries


def test_zlib_works_after_the_import_of_paddle() -> None:
    """If Paddle 2.6 is imported before zlib, its own copy of zlib crashes the process."""
    use = "import ppcls, paddle, zlib; print(zlib.decompress(zlib.compress(b'whole')))"
    done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, check=False)
    assert done.stdout == "b'whole'\n", done.stderr


def modules_after(imports: str) -> set[str]:
    use = f"import sys, {imports}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_training_imports_neither_scipy_nor_scikit_learn() -> None:
    """Only some metrics and transforms need them, and import them when they run."""
    assert not {"scipy", "sklearn"} & modules_after("ppcls.cli.train, ppcls.engine.train")


def test_training_step_imports_few_modules_of_ppcls() -> None:
    ours = {name for name in modules_after("ppcls.engine.core.step") if name.startswith("ppcls")}
    assert len(ours) <= 70


def test_export_and_prediction_import_no_optional_package() -> None:
    """Without the extras `onnx` and `openvino`, Paddle's own format works."""
    optional = {"onnx", "onnxruntime", "openvino", "nncf", "paddle2onnx"}
    commands = "ppcls.cli.export, ppcls.deploy.export.export, ppcls.cli.infer, ppcls.deploy.predictor"
    assert not optional & modules_after(commands)
