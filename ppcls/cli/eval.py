"""``ppcls eval`` and ``tools/eval.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ppcls.cli.command import Arguments, command
from ppcls.cli.options import EVAL_FLAGS, TRAIN_FLAGS, add_flags, config_parser, flag_overrides, read_config
from ppcls.config.load import read_tree
from ppcls.errors import UserError


@command
def evaluate(argv: Arguments = None) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    parser = config_parser(
        "Evaluate an image classifier.",
        ("ppcls eval --model runs/pets", "ppcls eval -c configs/ResNet50.yaml --confusion confusion.csv"),
        model="output folder of a run, for its best model, or checkpoint folder; needs no config",
    )
    add_flags(parser, EVAL_FLAGS)
    parser.elsewhere = {f"--{name}": "train" for name in TRAIN_FLAGS}
    parser.add_argument(
        "--confusion", type=Path, metavar="FILE", help="write the confusion matrix to FILE, as CSV"
    )
    arguments = parser.parse_args(argv)
    weights = []
    if arguments.model is not None:
        checkpoint = find_checkpoint(Path(arguments.model))
        arguments.config = checkpoint / "config.yaml"
        weights = [f"Global.pretrained_model={json.dumps(str(checkpoint))}"]
    overrides = flag_overrides(EVAL_FLAGS, arguments, read_tree(Path(arguments.config)))
    config = read_config(arguments, [*weights, *overrides])
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


def find_checkpoint(folder: Path) -> Path:
    """Returns the checkpoint in a folder: the folder itself, or the best model of a run's output folder.

    Raises:
        UserError: There is no checkpoint with its config.
    """
    from ppcls.weights.store import BEST, newest

    weights, config = "model.safetensors", "config.yaml"
    found = folder if (folder / weights).is_file() else newest(BEST, folder, None)
    if found is None or not (found / config).is_file():
        raise UserError(
            f"--model {folder}: expected a run's output folder, or a checkpoint folder "
            f"with {weights} and {config}"
        )
    return found


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{option} {path}: expected a file, found a folder")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{option} {path}: no such folder: {path.parent}")
