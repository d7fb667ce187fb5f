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
    ("images", "pretrained", "head", "parts"),
    [
        (
            60,
            True,
            False,
            ("a head is expected to be better", "6 training images per class are few", "--head"),
        ),
        (60, True, True, ("a head, as here, is expected", "-o LinearHead=null --epochs 20 --pretrained")),
        (600, True, False, ("fine-tuning, as here, is expected", "60 training images per class ")),
        (
            600,
            True,
            True,
            ("fine-tuning is expected to be better", "start it from this head", "--pretrained"),
        ),
        (60, False, False, ("needs the features of pretrained weights", "--model EfficientNet_lite0")),
        (20_001, True, False, ()),
        (5, True, False, ()),  # more classes than images, as in an index without labels
    ],
)
def test_expectation(
    images: int,
    pretrained: bool,
    head: bool,
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expectation, "installed_models", lambda: ["EfficientNet_lite0"])
    text = "".join(Choice(images, 10, pretrained, head, Path("runs/pets")).describe())
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
    (line,) = Choice(20 if few else 2000, 10, pretrained, head, output).describe()
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
