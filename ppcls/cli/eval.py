"""The commands ``ppcls eval`` and ``ppcls calibrate``, and their scripts in tools/."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from ppcls.cli.command import Arguments, command
from ppcls.cli.options import EVAL_FLAGS, TRAIN_FLAGS, apply_flags, config_parser, read_config
from ppcls.config.base.overrides import Override
from ppcls.config.load import ConfigSource
from ppcls.errors import UserError


@command
def evaluate(argv: Arguments = None) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    parser = config_parser("eval")
    parser.elsewhere = {f"--{name}": "train" for name in TRAIN_FLAGS}
    arguments = parser.parse_args(argv)
    if arguments.model is not None:
        source = read_checkpoint_config(need_checkpoint(Path(arguments.model)))
    else:
        source = ConfigSource.read(arguments.config)
    apply_flags(EVAL_FLAGS, arguments, source)
    config = read_config(arguments, source)
    if config is None:
        return
    from ppcls import api
    from ppcls.deploy.models.source import find_weights
    from ppcls.metric.single_label import MAX_CONFUSION_CLASSES
    from ppcls.runtime.launch import read_launch

    confusion: Path | None = arguments.confusion
    if confusion is not None:
        _check_file("--confusion", confusion)
        classes = config.Arch.class_num
        if classes > MAX_CONFUSION_CLASSES:
            raise UserError(f"--confusion: expected at most {MAX_CONFUSION_CLASSES} classes, got {classes}")
    weights = find_weights(config.Global)
    result = api.evaluate(config, sample_by_sample=confusion is not None, own_process=True, tta=arguments.tta)
    if read_launch().rank > 0:
        return
    if confusion is not None:
        from ppcls.files import write_text
        from ppcls.report.confusion import confusion_csv

        if result.outcomes is None:
            raise UserError("--confusion: expected one label per image, found several")
        assert result.outcomes.confusion is not None  # because there are few enough classes
        write_text(confusion, confusion_csv(result.outcomes.confusion))
    metrics = " ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    amount = f"{result.images} images, {result.seconds:.1f} s"
    sys.stdout.write(f"[Eval] {weights}: loss {result.loss:.4f} {metrics}, {amount}\n")


@command
def calibrate(argv: Arguments = None) -> None:
    """Fits the temperature of a checkpoint on ``DataLoader.Eval``, and stores it in the checkpoint."""
    arguments = config_parser("calibrate").parse_args(argv)
    checkpoint = need_checkpoint(Path(arguments.model))
    source = read_checkpoint_config(checkpoint)
    source.apply(map(Override.parse, arguments.override))
    config = source.load()
    if config.Arch.embeds:
        raise UserError(f"{checkpoint}: returns embeddings, which have no probabilities to calibrate")
    from ppcls import api
    from ppcls.deploy.models.temperature import TemperatureScaling, write_temperature
    from ppcls.runtime.launch import read_launch

    metric = config.Metric.model_copy(update={"Eval": (TemperatureScaling(),)})
    result = api.evaluate(config.model_copy(update={"Metric": metric}), own_process=True)
    if read_launch().rank > 0:
        return
    metrics = result.metrics
    if not math.isfinite(metrics["temperature"]):
        raise UserError(f"{checkpoint}: the model returns NaN or infinite values; use another checkpoint")
    file = write_temperature(checkpoint, metrics["temperature"])
    sys.stdout.write(
        f"[Calibrate] {file}: temperature {metrics['temperature']:.3f}; {result.images} images: "
        f"ece {metrics['ece']:.4f} -> {metrics['ece_scaled']:.4f}, "
        f"nll {metrics['nll']:.4f} -> {metrics['nll_scaled']:.4f}\n"
    )


def need_checkpoint(folder: Path) -> Path:
    """Returns the checkpoint in a folder: the folder itself, or the best model of a run's output folder.

    Raises:
        UserError: There is no checkpoint, or its config is missing.
    """
    from ppcls.deploy.models.source import find_checkpoint

    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        raise UserError(
            f"--model {folder}: expected a run's output folder, or a checkpoint folder "
            "with model.safetensors and config.yaml"
        )
    return checkpoint


def read_checkpoint_config(checkpoint: Path) -> ConfigSource:
    """Reads the config of a checkpoint, and sets the checkpoint as its weights."""
    source = ConfigSource.read(checkpoint / "config.yaml")
    source.apply([Override.of_value("Global.pretrained_model", str(checkpoint), f"--model {checkpoint}")])
    return source


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{option} {path}: expected a file, found a folder")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{option} {path}: no such folder: {path.parent}")
