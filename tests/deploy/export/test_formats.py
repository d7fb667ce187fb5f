"""The registry of formats. The other tests of this folder export to each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_classifier import config_tree, write_weights

from ppcls.deploy.export.export import export_model
from ppcls.deploy.export.formats import EXPORTERS, ModelToWrite, PaddleExporter, find_exporter
from ppcls.deploy.export.precision import CALIBRATION_METHODS
from ppcls.deploy.models.source import source_of_config
from ppcls.errors import UserError
from ppcls.recipe.load import validate


def test_onnx_lists_all_calibration_methods() -> None:
    assert EXPORTERS["onnx"].calibrations == CALIBRATION_METHODS


def test_unknown_format_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="format: expected one of paddle, ppcls, onnx, openvino, got 'onx'"):
        find_exporter("onx")


def test_new_format_is_one_class(tmp_path: Path) -> None:
    known = dict(EXPORTERS)

    class NotedExporter(PaddleExporter):
        name = "noted"
        description = "programs of Paddle with a note"

        def write(self, model: ModelToWrite, folder: Path) -> Path:
            (folder / "note.txt").write_text(model.name)
            return super().write(model, folder)

    try:
        tree = config_tree(write_weights(tmp_path / "model.safetensors"), None)
        exported = export_model(source_of_config(validate(tree, "test")), tmp_path / "noted", "noted")
    finally:
        EXPORTERS.clear()
        EXPORTERS.update(known)
    assert "note.txt" in exported.files
    assert exported.difference is not None


def test_the_command_lists_formats_without_paddle() -> None:
    code = "import sys; import ppcls.cli.export; print('paddle' in sys.modules, 'onnxruntime' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"
