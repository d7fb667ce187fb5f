"""Imports point one way; few places read the loader's choice and the environment."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT


def test_import_contracts_are_kept() -> None:
    pytest.importorskip("importlinter")
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@cache
def attributes_in(file: Path) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}


@cache
def package() -> list[Path]:
    return [*(ROOT / "ppcls").rglob("*.py")]


def test_few_modules_read_use_dali() -> None:
    """Four choose the loader or the decoder, or divide the GPU's memory; the others pass it on or advise."""
    files = [*package(), *(ROOT / "tools").rglob("*.py")]
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
    files = [file for file in package() if {"environ", "getenv"} & attributes_in(file)]
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


IMPORTS = """
import ppcls, paddle, zlib
whole = zlib.decompress(zlib.compress(b"whole"))
import json, sys
modules = []
import ppcls.engine.core.step
modules.append(list(sys.modules))
import ppcls.cli.train, ppcls.engine.train
modules.append(list(sys.modules))
import ppcls.cli.export, ppcls.deploy.export.export, ppcls.cli.infer, ppcls.deploy.predictor
modules.append(list(sys.modules))
print(json.dumps([whole.decode(), *modules]))
"""


@pytest.fixture(scope="module")
def imports() -> list[Any]:
    """The text that zlib returned after the import of Paddle, and the modules of three steps."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_zlib_works_after_the_import_of_paddle(imports: list[Any]) -> None:
    """If Paddle 2.6 is imported before zlib, its own copy of zlib crashes the process."""
    assert imports[0] == "whole"


def test_training_step_imports_few_modules_of_ppcls(imports: list[Any]) -> None:
    assert len([name for name in imports[1] if name.startswith("ppcls")]) <= 70


def test_training_imports_neither_scipy_nor_scikit_learn(imports: list[Any]) -> None:
    """Only some metrics and transforms need them, and import them when they run."""
    assert not {"scipy", "sklearn"} & set(imports[2])


def test_export_and_prediction_import_no_optional_package(imports: list[Any]) -> None:
    """Without the extras `onnx` and `openvino`, Paddle's own format works."""
    assert not {"onnx", "onnxruntime", "openvino", "nncf", "paddle2onnx"} & set(imports[3])
