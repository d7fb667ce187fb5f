"""A user's modules: how they are imported, and what they register."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from paths import ROOT

from ppcls.config import custom
from ppcls.config.base.errors import ConfigError
from ppcls.config.base.section import Section
from ppcls.config.custom import register
from ppcls.data.transforms.base import CustomTransform, ImageState
from ppcls.engine.core.hooks import load_hooks
from ppcls.errors import UserError
from ppcls.loss import Loss
from ppcls.loss.classification import CELoss
from ppcls.recipe.load import load_config
from ppcls.registry import LOSSES, TRANSFORMS

CONFIG = ROOT / "configs" / "quickstart.yaml"
PARTS = """
from ppcls.loss import Loss

class ZeroLoss{number}(Loss):
    factor: int = 1

    def build(self, data):
        return lambda logits, label: logits.sum() * 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_module_of_the_current_folder_registers_a_loss(folder: Path) -> None:
    (folder / "zero_parts_1.py").write_text(PARTS.format(number=1))
    overrides = ["Global.import_modules=[zero_parts_1]", "Loss.Train=[ZeroLoss1: {factor: 3}]"]
    for _ in range(2):  # modules are imported once
        (loss,) = load_config(CONFIG, overrides).Loss.Train
        assert isinstance(loss, Loss)
        assert loss.model_dump()["factor"] == 3
    with pytest.raises(ConfigError, match=r"ZeroLoss1\.factr: unknown key; did you mean 'factor'"):
        load_config(CONFIG, [overrides[0], "Loss.Train=[ZeroLoss1: {factr: 3}]"])


def test_missing_module_is_an_error_with_the_folder(folder: Path) -> None:
    with pytest.raises(UserError, match=r"Global\.import_modules: no module 'no_such_parts' in .*PYTHONPATH"):
        load_config(CONFIG, ["Global.import_modules=[no_such_parts]"])


def test_missing_import_inside_a_module_keeps_its_traceback(folder: Path) -> None:
    (folder / "broken_parts.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load_config(CONFIG, ["Global.import_modules=[broken_parts]"])


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("Global.import_modules=[../parts.py]", "expected the name of a Python module"),
        ("Global.import_modules=[1]", "expected text, got 1"),
        ("Global.hooks=[my parts]", "expected module:Class"),
    ],
)
def test_invalid_names_are_reported_at_their_key(override: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(CONFIG, [override])


def test_register_rejects_other_classes_and_repeated_names() -> None:
    with pytest.raises(TypeError, match="Section: expected a subclass of Loss, DatasetMetric"):
        register(Section)
    with pytest.raises(ValueError, match="registered twice"):
        type("CELoss", (Loss,), {})
    assert LOSSES["CELoss"] is CELoss


def test_former_name_of_custom_transform_and_register_still_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"use ppcls\.data\.transforms\.base\.CustomTransform"):
        former = custom.CustomTransform
    with pytest.warns(DeprecationWarning, match="registers itself"):
        own = custom.register(type("OwnTransform", (former,), {}))
    assert issubclass(own, CustomTransform)
    assert TRANSFORMS["OwnTransform"] is own


def test_former_names_of_the_field_types_still_work() -> None:
    from ppcls.config.base import fields

    with pytest.warns(DeprecationWarning, match="moved to ppcls.config.base.section"):
        assert fields.Section is Section
    for name in fields._MOVED:
        with pytest.warns(DeprecationWarning, match=f"fields.{name} moved to"):
            assert getattr(fields, name)
    with pytest.raises(AttributeError, match="no attribute 'Sectoin'"):
        _ = fields.Sectoin


def test_custom_transform_needs_pixels() -> None:
    with pytest.raises(ValueError, match="put DecodeImage before it"):
        CustomTransform().after(ImageState())
    assert CustomTransform().after(ImageState(encoded=False)) == ImageState(encoded=False)


@pytest.mark.hostile
@pytest.mark.parametrize("override", ["Global.import_modules=[NAME]", "Global.hooks=[NAME:Hook]"])
def test_module_that_exits_when_it_is_imported_is_an_error(folder: Path, override: str) -> None:
    name = f"exiting_parts_{len(override)}"
    (folder / f"{name}.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match=rf"the module '{name}' ends the process \(sys.exit\)"):
        load_hooks(load_config(CONFIG, [override.replace("NAME", name)]).Global.hooks)
