"""Notes of ``ppcls eval``."""

from __future__ import annotations

import pytest

from ppcls.cli.eval import _report_part, calibrate
from ppcls.config.base.overrides import Override
from ppcls.recipe.load import ConfigSource

DATASET = "DataLoader.Eval.dataset"


@pytest.mark.parametrize(
    ("before", "overrides", "note"),
    [
        ("val", {}, ""),
        (None, {"image_root": "new"}, ""),
        (
            "val",
            {"image_root": "new"},
            "new: only part: val is evaluated, as in the config; for all images: ",
        ),
        ("val", {"image_root": "old"}, "old: only part: val is evaluated, not the images for training\n"),
        (
            "val",
            {"image_root": "new", "part": None},
            "new: all images are evaluated; part: val of the config is only for its own folder",
        ),
    ],
)
def test_note_says_which_part_of_a_named_folder_is_evaluated(
    before: str | None, overrides: dict[str, str | None], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {
        "Train": {"dataset": {"image_root": "old", "part": "train"}},
        "Eval": {"dataset": {"image_root": "old", "part": before}},
    }
    source = ConfigSource({"DataLoader": splits}, "c")
    source.apply([Override.of_value(f"{DATASET}.{key}", value) for key, value in overrides.items()])
    _report_part(before, source)
    printed = capsys.readouterr().err
    assert note in printed
    assert bool(note) == bool(printed)


def test_calibrated_model_is_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """The temperature would be written to a copy, and lost."""
    assert calibrate(["--model", "s3://bucket/run"]) == 2
    assert "s3://bucket/run: expected a model on this machine" in capsys.readouterr().err
