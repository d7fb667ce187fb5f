"""``ppcls eval`` and ``tools/eval.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from ppcls.cli.command import Arguments, command
from ppcls.cli.options import config_parser, read_config
from ppcls.errors import UserError


@command
def evaluate(argv: Arguments = None) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    parser = config_parser("Evaluate an image classifier.")
    parser.add_argument(
        "--confusion", type=Path, metavar="FILE", help="write the confusion matrix to FILE, as CSV"
    )
    arguments = parser.parse_args(argv)
    config = read_config(arguments)
    if config is None:
        return
    from ppcls import api
    from ppcls.config.sections.objective import MAX_CONFUSION_CLASSES
    from ppcls.deploy.models.source import find_weights
    from ppcls.runtime.launch import read_launch

    confusion: Path | None = arguments.confusion
    if confusion is not None:
        _check_file("--confusion", confusion)
        classes = config.Arch.class_num
        if classes > MAX_CONFUSION_CLASSES:
            raise UserError(f"--confusion: expected at most {MAX_CONFUSION_CLASSES} classes, got {classes}")
    source = find_weights(config)
    result = api.evaluate(config, sample_by_sample=confusion is not None, own_process=True)
    if read_launch().rank > 0:
        return
    if confusion is not None:
        from ppcls.files import write_text
        from ppcls.report.confusion import confusion_csv

        if result.outcomes is None:
            raise UserError("--confusion: expected images with one label, these have several labels each")
        assert result.outcomes.confusion is not None  # because there are few enough classes
        write_text(confusion, confusion_csv(result.outcomes.confusion))
    metrics = " ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    amount = f"{result.images} images, {result.seconds:.1f} s"
    sys.stdout.write(f"[Eval] {source}: loss {result.loss:.4f} {metrics}, {amount}\n")


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{option} {path}: expected a file, found a folder")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{option} {path}: no such folder: {path.parent}")
