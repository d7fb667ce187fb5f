"""The commands ``ppcls eval`` and ``ppcls calibrate``, and their scripts in tools/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ppcls.cli.arguments.options import Exclusive, option, required
from ppcls.cli.command import command, write_output
from ppcls.cli.shared_options import (
    ConfigOptions,
    Device,
    Views,
    amp_option,
    device_option,
    image_size_option,
    load_or_print,
    on_error_option,
    override_option,
    trust_option,
    views_option,
    workers_option,
)
from ppcls.cli.short_options import (
    PART_KEYS,
    apply_options,
    is_other_folder,
    key_options,
    part_overrides,
    set_eval_data,
    set_eval_splits,
)
from ppcls.cli.train import TrainOptions
from ppcls.commands import set_keys
from ppcls.config.base.tree import node_at
from ppcls.errors import UserError, counted
from ppcls.files import one_line, print_error, real_path
from ppcls.files.outputs import check_suffix
from ppcls.files.urls import is_url

if TYPE_CHECKING:  # not needed for --help
    from ppcls.deploy.export.samples import ImageSamples
    from ppcls.deploy.foreign_images import FittedRejection
    from ppcls.engine.evaluation.evaluate import EvalResult
    from ppcls.recipe.load import ConfigSource

_ALL = 1 << 40  # number of images that is larger than any data set
_SOURCE = Exclusive(required=True)
_PART = "DataLoader.Eval.dataset.part"
_ROOT = "DataLoader.Eval.dataset.image_root"


@dataclass(frozen=True, kw_only=True)
class EvalOptions(ConfigOptions):
    """Evaluate an image classifier."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls eval --model runs/pets --trust",
        "ppcls eval --model runs/pets --trust --errors errors.csv",
        "ppcls eval -c configs/ResNet50.yaml --confusion confusion.csv",
    )

    config: str | None = option(None, "config file (YAML)", names=["-c"], exclusive=_SOURCE)
    model: str | None = option(
        None,
        "output folder of a run, whose best model is used, or a checkpoint folder; needs no config",
        metavar="PATH",
        exclusive=_SOURCE,
    )
    data: str | None = option(
        None,
        "folder of the images; all of them are evaluated, except if it is the training folder, of which only "
        "the validation part is evaluated",
        metavar="FOLDER",
        key="DataLoader.Eval.dataset.image_root and part",
        sets=set_eval_data,
    )
    batch_size: int | None = option(
        None,
        "number of images per batch, on each process",
        gt=0,
        key="DataLoader.Eval.sampler.batch_size",
        sets=set_eval_splits("sampler.batch_size"),
    )
    image_size: int | None = image_size_option()
    device: Device | None = device_option()
    amp: Literal["O1", "O2"] | None = amp_option("evaluate")
    workers: int | None = workers_option()
    on_error: Literal["raise", "skip"] | None = on_error_option()
    confusion: Path | None = option(
        None,
        "write the confusion matrix to FILE, a .csv file with the names of the classes",
        metavar="FILE",
    )
    errors: Path | None = option(
        None,
        "write all mistakes to FILE, a .csv file: path, label, prediction and score, the worst first",
        metavar="FILE",
    )
    tta: Views | None = views_option()
    trust: bool = trust_option()


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Find the temperature that makes the probabilities of a model match its accuracy on DataLoader.Eval.

    The temperature divides the logits. It is stored in the checkpoint; infer, serve and export use it. The
    predicted classes do not change. With --unknown, the command also finds thresholds below which infer,
    serve and exported models answer unknown.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls calibrate --model runs/pets --trust",
        "ppcls calibrate --model runs/pets --trust -o DataLoader.Eval.dataset.image_root=held_out/",
        "ppcls calibrate --model runs/pets --trust --unknown --foreign other_photos/",
    )

    model: str = required(
        "output folder of a run, whose best model is used, or a checkpoint folder", metavar="PATH"
    )
    unknown: Literal["global", "per-class"] | None = option(
        None,
        "also find the smallest score of images that belong to a class, one for all classes or one per "
        "class; images below it are unknown",
        without_value="global",
    )
    score: Literal["max_probability", "energy", "distance"] = option(
        "max_probability",
        "for --unknown: score of an image. max_probability: the probability of the best class; energy: the "
        "logarithm of the sum of the exponentials of the logits; distance: the negative distance of the "
        "features to the nearest mean of a class",
    )
    keep: float = option(
        0.95,
        "for --unknown: share of the evaluation images that are not unknown",
        metavar="SHARE",
        gt=0,
        lt=1,
    )
    foreign: tuple[Path, ...] = option(
        (),
        "for --unknown: folder, file or pattern of images of no class, on which the thresholds are "
        "measured; can be repeated",
        metavar="PATH",
        repeated=True,
    )
    on_error: Literal["raise", "skip"] | None = on_error_option()
    override: tuple[str, ...] = override_option("DataLoader.Eval.dataset.image_root=held_out")
    trust: bool = trust_option()


@command("eval", EvalOptions, elsewhere={each.name: "train" for each in key_options(TrainOptions)})
def evaluate(options: EvalOptions) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    from ppcls.recipe.load import ConfigSource
    from ppcls.storage.models import model_path

    if options.model is not None:
        source = read_checkpoint_config(model_path(options.model), trust=options.trust)
    else:
        assert options.config is not None  # one of the two is required
        source = ConfigSource.read(options.config)
    part = node_at(source.tree, _PART)
    apply_options(options, source)
    source.apply(part_overrides(options.override, source.tree))
    config = load_or_print(source, options)
    if config is None:
        return
    check_data(source)
    if options.model is not None:
        check_images(source)
    _report_part(part, source)
    from ppcls import api
    from ppcls.deploy.models.source import find_weights
    from ppcls.metric.single_label import MAX_CONFUSION_CLASSES
    from ppcls.runtime.launch import read_launch

    classes = config.Arch.class_num
    tables = {"--confusion": options.confusion, "--errors": options.errors}
    requested = {name: path for name, path in tables.items() if path is not None}
    for name, path in requested.items():
        _check_file(name, path)
        if config.Global.eval_mode == "retrieval":
            raise UserError(f"{name}: an evaluation of embeddings predicts no classes; remove this option")
    if options.confusion is not None and classes > MAX_CONFUSION_CLASSES:
        raise UserError(f"--confusion: expected at most {MAX_CONFUSION_CLASSES} classes, got {classes}")
    weights = find_weights(config.Global)
    result = api.evaluate(config, sample_by_sample=bool(requested), own_process=True, tta=options.tta)
    if read_launch().rank > 0:
        return
    if requested:
        _write_tables(options.confusion, options.errors, result, _read_class_names(weights, classes))
    metrics = " ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    amount = f"{counted(result.images, 'image')}, {result.seconds:.1f} s"
    write_output(f"[Eval] {weights}: loss {result.loss:.4f} {metrics}, {amount}\n")


def _write_tables(
    confusion: Path | None, errors: Path | None, result: EvalResult, names: Sequence[str]
) -> None:
    """Writes the confusion matrix and the mistakes of an evaluation to files, if they are not None."""
    from ppcls.data.index.protocol import sample_name
    from ppcls.files import write_text
    from ppcls.files.tables import BYTE_ORDER_MARK
    from ppcls.report.confusion import confusion_csv, mistakes_csv
    from ppcls.report.record import Outcomes

    outcomes = result.outcomes
    assert outcomes is not None  # because they were requested
    if errors is not None:
        index = result.index
        assert index is not None  # because the images were loaded
        table = mistakes_csv(outcomes, names, lambda position: sample_name(index, position))
        write_text(errors, table.encode("utf-8", "replace").decode("utf-8"))
    if confusion is not None:
        if not isinstance(outcomes, Outcomes):
            raise UserError("--confusion: expected one label per image, found several")
        assert outcomes.confusion is not None  # because there are few enough classes
        write_text(confusion, BYTE_ORDER_MARK + confusion_csv(outcomes.confusion, names))


def _report_part(before: str | None, source: ConfigSource) -> None:
    """Prints a note about which images are evaluated, if the folder was named and the config has a part.

    Args:
        before: Part in the config of the model.
        source: Config with all options.
    """
    folder = node_at(source.tree, _ROOT)
    if before is None or _ROOT not in source.origins:
        return
    part = node_at(source.tree, _PART)
    if part is None:
        note = f"{folder}: all images are evaluated; part: {before} of the config is only for its own folder"
        trained = node_at(source.tree, "DataLoader.Train.dataset.image_root")
        if isinstance(trained, str) and not is_url(trained) and not Path(trained).exists():
            keys = ", ".join(PART_KEYS)
            note += f"; if this is a moved copy of {trained}, set {keys} as in the config of the run"
    elif is_other_folder(source.tree, folder):
        everything = set_keys({_PART: "null"})
        note = f"{folder}: only part: {part} is evaluated, as in the config; for all images: {everything}"
    else:  # an evaluation of images that the run was trained on is an error
        note = f"{folder}: only part: {part} is evaluated, not the images for training"
    print_error(note)


@command("calibrate", CalibrateOptions)
def calibrate(options: CalibrateOptions) -> None:
    """Fits the temperature of a checkpoint on ``DataLoader.Eval``, and stores it in the checkpoint."""
    from ppcls.config.base.overrides import Override
    from ppcls.storage.models import model_path

    if is_url(options.model):
        raise UserError(
            f"{options.model}: expected a model on this machine, because its temperature is written to a "
            "file of the model; copy the run to a folder first"
        )
    checkpoint = need_checkpoint(model_path(options.model), trust=options.trust)
    source = read_checkpoint_config(model_path(options.model), trust=options.trust)
    part = node_at(source.tree, _PART)
    apply_options(options, source)
    source.apply(part_overrides(options.override, source.tree))
    source.apply(map(Override.parse, options.override))
    config = source.load()
    check_data(source)
    check_images(source)
    _report_part(part, source)
    if config.Arch.embeds:
        raise UserError(f"{checkpoint}: returns embeddings, which have no probabilities to calibrate")
    from ppcls import api
    from ppcls.deploy.export.samples import read_files
    from ppcls.deploy.models.rejection import remove_rejection
    from ppcls.deploy.models.temperature import (
        describe_limit,
        round_temperature,
        scaling_for,
        write_temperature,
    )
    from ppcls.runtime.launch import read_launch

    if options.unknown is None and (options.foreign or options.score != "max_probability"):
        raise UserError(f"{'--foreign' if options.foreign else '--score'} needs --unknown")
    activation = "softmax" if config.Infer is None else config.Infer.PostProcess.activation
    if options.unknown is not None and activation != "softmax":
        raise UserError(
            f"{checkpoint}: --unknown needs a model with one label per image, but it ends in {activation}"
        )
    foreign = read_files(options.foreign) if options.foreign else None  # before the evaluation, which is slow
    scaling = scaling_for(None if config.Infer is None else config.Infer.PostProcess)
    metric = config.Metric.model_copy(update={"Eval": (scaling,)})
    result = api.evaluate(config.model_copy(update={"Metric": metric}), own_process=True)
    if read_launch().rank > 0:
        return
    metrics = result.metrics
    if not math.isfinite(metrics["temperature"]):
        raise UserError(f"{checkpoint}: the model returns NaN or infinite values; use another checkpoint")
    if warning := describe_limit(metrics["temperature"], result.images, scaling.lowest):
        print_error(f"warning: {warning}")
    # Both are written only if both are known, so that an error leaves the checkpoint as it was.
    temperature = round_temperature(metrics["temperature"])
    fitted = None
    if options.unknown is not None:
        fitted = _fit_rejection(options, source, checkpoint, temperature, foreign)
    file = write_temperature(checkpoint, temperature)
    write_output(
        f"[Calibrate] {file}: temperature {metrics['temperature']:.3f}; {counted(result.images, 'image')}: "
        f"ece {metrics['ece']:.4f} -> {metrics['ece_scaled']:.4f}, "
        f"nll {metrics['nll']:.4f} -> {metrics['nll_scaled']:.4f}\n"
    )
    # Thresholds are for one temperature.
    removed = remove_rejection(checkpoint)
    if fitted is not None:
        _write_rejection(checkpoint, fitted)
    elif removed:
        write_output(
            f"[Calibrate] {checkpoint}: the thresholds for unknown are removed, because they were for the "
            "previous temperature\n"
        )


def _fit_rejection(
    options: CalibrateOptions,
    source: ConfigSource,
    checkpoint: Path,
    temperature: float,
    foreign: ImageSamples | None,
) -> FittedRejection:
    """Finds the thresholds for the answer ``unknown``."""
    from ppcls.deploy.export.export import read_evaluation
    from ppcls.deploy.foreign_images import RejectionSettings, fit_on_images
    from ppcls.deploy.models.source import source_of_config

    assert options.unknown is not None
    config = source.load()
    samples, reason = read_evaluation(config.DataLoader, config.Arch, checkpoint, _ALL)
    if samples is None:
        raise UserError(f"--unknown needs evaluation images: {reason}")
    model = source_of_config(config)
    description = model.description.with_temperature(temperature).with_rejection(None)
    settings = RejectionSettings(options.score, options.unknown, options.keep)
    return fit_on_images(replace(model, description=description), samples, foreign, settings)


def _write_rejection(checkpoint: Path, fitted: FittedRejection) -> None:
    """Writes the thresholds for the answer ``unknown`` into a checkpoint, and prints their quality."""
    from ppcls.deploy.models.rejection import write_rejection

    file = write_rejection(checkpoint, fitted.rule, fitted.means)
    limits = fitted.rule.threshold if isinstance(fitted.rule.threshold, tuple) else (fitted.rule.threshold,)
    text = f"{min(limits):.4f}" if len(set(limits)) == 1 else f"{min(limits):.4f} to {max(limits):.4f}"
    quality = fitted.qualities[fitted.rule.score]
    write_output(
        f"[Calibrate] {file}: unknown if the score {fitted.rule.score} is below {text}; {quality.kept:.2%} "
        f"of {counted(quality.known, 'evaluation image is', 'evaluation images are')} "
        "kept\n"
    )
    for name, each in fitted.qualities.items():
        if each.auroc is not None:
            write_output(
                f"[Calibrate] {name}: {each.rejected:.2%} of "
                f"{counted(each.foreign, 'foreign image is', 'foreign images are')} unknown; AUROC "
                f"{each.auroc:.4f}, false positive rate at 95 % recall {each.false_positives:.4f}\n"
            )
    if fitted.missing is not None:
        write_output(f"[Calibrate] distance: not measured: {fitted.missing}\n")


def need_checkpoint(folder: Path, *, trust: bool) -> Path:
    """Returns the checkpoint in a folder: the folder itself, or the best model of a run's output folder.

    Args:
        folder: Folder of a checkpoint or of a run.
        trust: See `ppcls.deploy.models.source.find_checkpoint`.

    Raises:
        UserError: There is no checkpoint, or its config is missing.
    """
    from ppcls.deploy.models.source import find_checkpoint, suggest_run

    checkpoint = find_checkpoint(folder, trust=trust)
    if checkpoint is None:
        raise UserError(
            f"--model {folder}{suggest_run(folder)}: expected a run's output folder, or a checkpoint folder "
            "with model.safetensors and config.yaml"
        )
    return checkpoint


def read_checkpoint_config(folder: Path, *, trust: bool) -> ConfigSource:
    """Reads the config of a checkpoint, and sets the checkpoint as its weights.

    Args:
        folder: Folder of a checkpoint or of a run.
        trust: Whether the config may name modules and paths.

    Raises:
        UserError: There is no checkpoint, or it contains links that lead out of it.
    """
    from ppcls.config.base.overrides import Override
    from ppcls.deploy.models.untrusted import check_links, read_model_config

    checkpoint = need_checkpoint(folder, trust=trust)
    if not trust:
        real = real_path(checkpoint)
        check_links(real, [path.name for path in real.iterdir()])
    source = read_model_config(checkpoint / "config.yaml", trust=trust)
    source.apply([Override.of_value("Global.pretrained_model", str(checkpoint), f"--model {checkpoint}")])
    return source


def check_data(source: ConfigSource) -> None:
    """Checks that the data sets to evaluate on were not removed from the config of a model from elsewhere.

    Args:
        source: Config after `ConfigSource.load`.

    Raises:
        UserError: They were removed.
    """
    from ppcls.deploy.models.untrusted import TRUST, UntrustedConfig

    unread = source.unread if isinstance(source, UntrustedConfig) else []
    keys = [key for key in unread if key.startswith("DataLoader.Eval")]
    if keys:
        keys.sort(key=lambda key: not key.endswith(".image_root"))  # the short option first
        options = ("--data FOLDER" if key.endswith(".image_root") else "-o" for key in keys)
        settings = ", and ".join(f"{key} with {option}" for key, option in zip(keys, options, strict=True))
        raise UserError(
            f"{source.name}: the data sets that the config of a model names are not read. Set {settings}, "
            f"or, if you trust the model, for example because you trained it, use {TRUST}"
        )


def check_images(source: ConfigSource) -> None:
    """Checks that the folder of the images to evaluate a model on exists.

    Args:
        source: Config of the model after `ConfigSource.load`.

    Raises:
        UserError: There is no such folder, for example because it was moved after the training.
    """
    from ppcls.recipe.folder_hints import describe_missing_folder

    key = "DataLoader.Eval.dataset.image_root"
    folder = node_at(source.tree, key)
    if isinstance(folder, str) and not is_url(folder) and not Path(folder).exists():
        if key in source.origins:
            raise UserError(describe_missing_folder(folder, key, of_classes=False))
        raise UserError(
            f"{one_line(folder)}: no such folder ({key}); if the images were moved, name their new folder "
            "with --data FOLDER"
        )


def _read_class_names(weights: Path, classes: int) -> tuple[str, ...]:
    """Returns the class names that are stored with the weights; an empty tuple without them."""
    from ppcls.data.index.class_names import read_class_names
    from ppcls.engine.evaluation.stored_names import find_label_list

    listing = find_label_list(weights)
    return () if listing is None else read_class_names(listing, classes)


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{option} {path}: expected a file, found a folder")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{option} {path}: no such folder: {path.parent}")
    check_suffix(option, path, ".csv")
