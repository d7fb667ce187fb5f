"""A path without weights: the error names the checkpoint that it probably means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls.errors import UserError
from ppcls.weights.files import WEIGHTS, fetch_weights, read_weights


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output folder of a run in ``output/ResNet50``."""
    checkpoint = tmp_path / "output" / "ResNet50" / "best_model"
    checkpoint.mkdir(parents=True)
    (checkpoint / WEIGHTS).touch()
    return tmp_path / "output"


@pytest.mark.parametrize(
    "path",
    [
        "ResNet50/best_model.pdparams",
        "ResNet50/best_model.pdopt",
        "ResNet50/best_model/ppcls",
        "ResNet50/best_model/best_model.pdparams",
        "ResNet50/best_model_student",
        "ResNet50/best_model_Teacher.pdparams",
        "ResNet50/ResNet50/best_model",
        "best_model",
        "best_model.pdparams",
    ],
)
def test_paths_of_paddleclas_lead_to_the_checkpoint(output: Path, path: str) -> None:
    with pytest.raises(UserError) as raised:
        fetch_weights(output / path)
    assert str(raised.value).endswith(f"; did you mean {output / 'ResNet50' / 'best_model'}?")


@pytest.mark.parametrize("path", ["ResNet50/latest", "other/epoch_1.pdparams"])
def test_nothing_is_suggested_for_another_checkpoint(output: Path, path: str) -> None:
    with pytest.raises(UserError) as raised:
        read_weights(output / path)
    assert "did you mean" not in str(raised.value)
