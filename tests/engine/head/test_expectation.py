"""The line about a head and fine-tuning: what is expected, why, and a command that is valid."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import pytest

from ppcls.cli.main import main
from ppcls.config.base.yaml import read_yaml
from ppcls.engine.head import expectation
from ppcls.engine.head.expectation import Choice


@pytest.mark.parametrize(
    ("images", "epochs", "updates", "pretrained", "head", "parts"),
    [
        (
            60,
            20,
            4,
            True,
            False,
            (
                "a head is expected to be better, because 80 updates (20 epochs) are too few to adapt all "
                "layers (limit 300). They suffice with --epochs 75. To compare: ",
                "--head",
            ),
        ),
        (60, 75, 4, True, False, ("fine-tuning, as here, is expected", "300 updates (75 epochs) suffice")),
        (
            16,
            100,
            1,
            True,
            False,
            (
                "a head is expected",
                "100 updates (100 epochs) are too few to adapt all layers (limit 300). To",
            ),
        ),
        (60, 20, 2, True, False, ("40 updates (20 epochs) are too few to adapt all layers (limit 300). To",)),
        (
            16,
            1,
            1,
            True,
            True,
            ("a head, as here, is expected", "-o LinearHead=null --epochs 100 --pretrained"),
        ),
        (60, 1, 4, True, True, ("fine-tuning is expected to be better", "-o LinearHead=null --epochs 75 ")),
        (600, 20, 38, True, False, ("fine-tuning, as here, is expected", "760 updates (20 epochs) suffice")),
        (600, 1, 38, True, False, ("a head is expected to be better", "with --epochs 20")),
        (600, 1, 38, True, True, ("fine-tuning is expected", "start it from this head", "--epochs 20 ")),
        (
            60,
            20,
            4,
            False,
            False,
            ("better, because 80 updates (20 epochs) are too few. To", "--model EfficientNet_lite0"),
        ),
        (20_001, 20, 1251, True, False, ()),
        (5, 20, 1, True, False, ()),  # more classes than images, as in an index without labels
        (12, 20, 0, True, False, ("0 updates (20 epochs) are too few",)),
    ],
)
def test_expectation_counts_updates(
    images: int,
    epochs: int,
    updates: int,
    pretrained: bool,
    head: bool,
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expectation, "installed_models", lambda: ["EfficientNet_lite0"])
    choice = Choice(images, 10, epochs, updates, pretrained, head, Path("runs/pets"))
    text = "".join(choice.describe())
    assert bool(text) == bool(parts)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(("pretrained", "head", "few"), list(itertools.product([False, True], repeat=3)))
def test_printed_commands_are_valid(
    pretrained: bool, head: bool, few: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "installed_models", lambda: ["EfficientNet_lite0"])
    output = tmp_path / "my runs"
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "pictures" / name / f"{number}.png").write_bytes(b"")
    output.mkdir()
    printed = tmp_path / "printed.yaml"
    start = ["train", str(tmp_path / "pictures"), "--print-config", *(["--head"] if head else [])]
    (output / "config.yaml").write_text(_run(start, printed))
    (output / "best_model").mkdir()
    (line,) = Choice(2000, 10, 20, 1 if few else 125, pretrained, head, output).describe()
    command = shlex.split(line[line.index("ppcls train") :])
    config = tmp_path / "config.yaml"
    config.write_text(_run([*command[1:], "--print-config"], printed))
    tree = read_yaml(config)
    assert (tree.get("LinearHead") is None) == (head and pretrained)
    assert tree["Global"]["output_dir"] in (f"{output}-head", f"{output}-tuned")


def _run(arguments: list[str], file: Path) -> str:
    """Returns what a command prints."""
    import contextlib

    with file.open("w") as stream, contextlib.redirect_stdout(stream):
        assert main(arguments) == 0
    return file.read_text()
