"""The commands ``ppcls train`` and ``ppcls tune``, and their scripts in tools/."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ppcls.cli.arguments.options import Exclusive, OptionsError, argument, option
from ppcls.cli.arguments.training import (
    read_optimizer,
    set_auto_augment,
    set_class_weights,
    set_color_jitter,
    set_cutmix,
    set_drop_path,
    set_dropout,
    set_freeze,
    set_label_smoothing,
    set_mixup,
    set_random_erasing,
    set_val_split,
    set_weight_decay,
)
from ppcls.cli.command import command, write_output, write_status
from ppcls.cli.shared_options import (
    ConfigOptions,
    Device,
    RequiredConfigOptions,
    amp_option,
    device_option,
    image_size_option,
    load_or_print,
    on_error_option,
    workers_option,
)
from ppcls.cli.short_options import (
    apply_options,
    apply_values,
    set_head,
    set_learning_rate,
    set_model,
    set_next_output,
    set_pretrained,
    set_train_data,
)
from ppcls.config.base.tree import Tree, node_at
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import one_line
from ppcls.files.outputs import check_suffix
from ppcls.files.urls import is_url, local_path
from ppcls.recipe.places import set_output, splits

if TYPE_CHECKING:  # not needed for --help
    from ppcls.recipe.load import ConfigSource
    from ppcls.recipe.schema import Config

_DEFAULT_CONFIG = str(Path(__file__).parents[1] / "configs" / "finetune.yaml")
# Not dataset/photos, where `ppcls dataset photos` writes: a folder holds only one set of photographs.
_DEMO_FOLDER = Path("dataset/demo-photos")
_DEMO_IMAGES = 256  # ResNet50 trains on about 0.6 images/s on two cores, so an epoch takes minutes
_TUNED_SECONDS = 600  # of --time, from which it pays to measure how to execute a run
_IMAGENET_HINT = (
    "the images of ImageNet come from https://image-net.org (ILSVRC 2012, after registration), and "
    "docs/recipes.md#imagenet has the commands that write train_list.txt and val_list.txt; to try this "
    "config on generated photographs, add --demo-data"
)
_MODE = Exclusive()  # what to do with the config instead of training


def _read_duration(text: str) -> float:
    """Returns the value of ``--time`` in seconds."""
    from ppcls.search.time_plan import read_duration

    try:
        return read_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ConfigOptions):
    """Train an image classifier."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls train pictures/ --model ResNet18 --epochs 20 --output runs/pets",
        "ppcls train -c configs/ResNet50.yaml -o Global.use_dali=True --dry-run",
        "ppcls train -c configs/ResNet50.yaml -o Global.checkpoints=auto",
    )

    folder: str | None = argument(
        "folder of the images, same as --data; put it before any -o", default=None, metavar="DATA"
    )
    data: str | None = option(
        None,
        "folder of the images; with the default config, one subfolder per class; if the config reads IDX "
        "files, the folder with files of the same names",
        metavar="FOLDER",
        key="DataLoader.Train.dataset.image_root",
        sets=set_train_data,
    )
    demo_data: bool = option(
        False,
        f"train on {_DEMO_IMAGES} generated photographs in {_DEMO_FOLDER} instead of the config's images, "
        "for one epoch unless --epochs is set: tries a config whose data set you do not have",
    )
    model: str | None = option(
        None,
        "architecture, such as ResNet50, and the preprocessing of its published weights",
        metavar="NAME",
        key="Arch.name, NormalizeImage.mean and std, ResizeImage.interpolation",
        sets=set_model,
    )
    pretrained: str | bool | None = option(
        None,
        "initial weights: a file, a checkpoint folder, or the folder of a run, for its best model; without a "
        "value: the published weights. Without this option, the default config uses the published weights "
        "for small data sets if they can be downloaded; -o Arch.pretrained=False trains from scratch",
        metavar="PATH",
        without_value=True,
        key="Global.pretrained_model; Arch.pretrained without a value",
        sets=set_pretrained,
    )
    head: bool = option(
        False,
        "fit only the last layer, on features of the pretrained weights, which are computed once; takes "
        "seconds to minutes",
        key="LinearHead, Global.epochs 1, Arch.pretrained",
        sets=set_head,
    )
    time: float | None = option(
        None,
        "plan epochs, image size, and head or fine-tuning from a short measurement, so that the run ends "
        "within this duration, such as 90s, 10m or 1h",
        metavar="DURATION",
        read=_read_duration,
    )
    epochs: int | None = option(None, "number of epochs", gt=0, key="Global.epochs")
    batch_size: int | None = option(
        None,
        "number of images per training batch, on each process",
        gt=0,
        key="DataLoader.Train.sampler.batch_size",
    )
    lr: float | None = option(
        None,
        "learning rate; scales all rates of a schedule that lists several",
        metavar="RATE",
        gt=0,
        key="Optimizer.lr.learning_rate",
        sets=set_learning_rate,
    )
    optimizer: str | None = option(
        None,
        "optimizer, such as AdamW or SGD; choose --lr for it, such as 1e-4 for AdamW",
        metavar="NAME",
        read=read_optimizer,
        key="Optimizer.name",
    )
    weight_decay: float | None = option(
        None,
        "weight decay",
        metavar="X",
        ge=0,
        key="Optimizer.regularizer.coeff or weight_decay",
        sets=set_weight_decay,
    )
    warmup_epochs: float | None = option(
        None,
        "number of epochs in which the learning rate rises at the start",
        metavar="N",
        ge=0,
        key="Optimizer.lr.warmup_epoch",
    )
    freeze: bool = option(False, "train only the last layer", key="Optimizer.train_only", sets=set_freeze)
    image_size: int | None = image_size_option()
    output: str | None = option(
        None, "output folder of the run", metavar="FOLDER", key="Global.output_dir", sets=set_output
    )
    increment_output: bool = option(
        False,
        "if the output folder is in use, write to the first free folder of OUTPUT-2, OUTPUT-3 and so on",
        key="Global.output_dir",
        sets=set_next_output,
    )
    resume: str | None = option(
        None,
        "continue the run in the output folder PATH, or from the checkpoint PATH, with the settings of the "
        "run, which other options change; without a value: the run in --output, or a new run if it is empty",
        metavar="PATH",
        without_value="auto",
        key="Global.checkpoints",
    )
    device: Device | None = device_option()
    amp: Literal["O1", "O2"] | None = amp_option("train")
    workers: int | None = workers_option()
    on_error: Literal["raise", "skip"] | None = on_error_option()
    patience: int | None = option(
        None,
        "number of consecutive evaluations without an improvement after which training stops",
        gt=0,
        key="Global.early_stopping",
    )
    label_smoothing: float | None = option(
        None,
        "label smoothing: share of the uniform distribution in the target, such as 0.1",
        metavar="SHARE",
        ge=0,
        key="Loss.Train.*.epsilon",
        sets=set_label_smoothing,
    )
    class_weights: Literal["balanced", "effective_number"] | None = option(
        None,
        "weigh the loss of each class by its number of training images, for unbalanced classes",
        without_value="balanced",
        key="Loss.Train.*.class_weight",
        sets=set_class_weights,
    )
    mixup: float | None = option(
        None,
        "mix pairs of images (Mixup), with this parameter of the Beta distribution, such as 0.2; 0: never",
        metavar="ALPHA",
        ge=0,
        key="DataLoader.Train.dataset.batch_transform_ops",
        sets=set_mixup,
    )
    cutmix: float | None = option(
        None,
        "copy a window of another image into each image (CutMix), with this parameter of the Beta "
        "distribution, such as 1; 0: never. With --mixup, each batch gets one of the two",
        metavar="ALPHA",
        ge=0,
        key="DataLoader.Train.dataset.batch_transform_ops",
        sets=set_cutmix,
    )
    auto_augment: Literal["AutoAugment", "RandAugment", "TrivialAugment", "AugMix"] | None = option(
        None,
        "augment the training images with this policy",
        key="DataLoader.Train.dataset.transform_ops",
        sets=set_auto_augment,
    )
    color_jitter: float | None = option(
        None,
        "change brightness, contrast and saturation at random by up to this share, such as 0.4; 0: never",
        metavar="SHARE",
        ge=0,
        key="DataLoader.Train.dataset.transform_ops",
        sets=set_color_jitter,
    )
    random_erasing: float | None = option(
        None,
        "fill a random rectangle in this share of the images, such as 0.25; 0: never",
        metavar="SHARE",
        ge=0,
        le=1,
        key="DataLoader.Train.dataset.transform_ops",
        sets=set_random_erasing,
    )
    dropout: float | None = option(
        None,
        "dropout rate, if the architecture has one",
        metavar="RATE",
        ge=0,
        lt=1,
        key="Arch.*",
        sets=set_dropout,
    )
    drop_path: float | None = option(
        None,
        "rate of stochastic depth, if the architecture has it",
        metavar="RATE",
        ge=0,
        lt=1,
        key="Arch.drop_path_rate",
        sets=set_drop_path,
    )
    val_split: float | None = option(
        None,
        "share of the images of each class that is used for evaluation, without folders train and val",
        metavar="SHARE",
        gt=0,
        lt=1,
        key="DataLoader.Train.dataset.val_share",
        sets=set_val_split,
    )
    grad_accum: int | None = option(
        None, "number of batches per update of the weights", gt=0, key="Global.update_freq"
    )
    ema: float | None = option(
        None,
        "evaluate and save a moving average of the weights, with this decay; without a value: 0.999",
        metavar="DECAY",
        without_value=0.999,
        ge=0,
        key="EMA.decay",
    )
    seed: int | None = option(None, "seed of all random choices", ge=0, key="Global.seed")
    explain_data: bool = option(
        False, "print how images are loaded and transformed, without training", exclusive=_MODE
    )
    dry_run: bool = option(
        False,
        "train for a few updates, and print the expected duration and memory of the whole run",
        exclusive=_MODE,
    )
    learning_curve: bool = option(
        False,
        "first train with an eighth, a quarter and a half of the images, so that report.html shows the "
        "accuracy over the number of images; takes about twice as long",
    )
    figures: Path | None = option(
        None, "file to which --dry-run also writes its figures, as JSON (docs/performance.md)", metavar="FILE"
    )
    find_lr: bool = option(
        False,
        "train for at most 100 updates with a rising learning rate, plot the loss, and suggest a learning "
        "rate",
        exclusive=_MODE,
    )
    find_batch_size: bool = option(
        False,
        "try batch sizes, and print the largest one that fits into memory and the matching "
        "Global.update_freq",
        exclusive=_MODE,
    )
    folds: int | None = option(
        None,
        "cross-validate: train K models, each on K - 1 parts of DataLoader.Train, and evaluate it on the "
        "remaining part",
        metavar="K",
        ge=2,
        le=100,
        exclusive=_MODE,
    )
    profile: str | None = option(
        None,
        "profile the updates from START to STOP - 1, counted from 0 at the start of this run, and print the "
        "duration of each phase",
        metavar="START:STOP",
        exclusive=_MODE,
    )

    @property
    def replaces_training(self) -> bool:
        """Whether the options ask for something else than one training run."""
        modes = (self.dry_run, self.find_lr, self.find_batch_size, self.explain_data)
        return any(modes) or self.folds is not None

    def __post_init__(self) -> None:
        """Rejects options that contradict each other.

        Raises:
            OptionsError: There is no data, or it is named twice.
        """
        if self.folder is not None and "=" in self.folder and not Path(self.folder).exists():
            raise OptionsError(f"{self.folder}: no such folder", [self.folder])
        if self.folder is not None and self.data is not None:
            raise OptionsError(f"--data: not allowed with the folder {self.folder}")
        if self.time is not None and (self.resume is not None or self.replaces_training):
            raise OptionsError("--time: expected a new training run, without --resume and other modes")
        if self.time is not None and (self.epochs is not None or self.head):
            raise OptionsError("--time: not allowed with --epochs and --head, which it chooses")
        if self.learning_curve and (
            self.resume is not None or self.time is not None or self.replaces_training
        ):
            raise OptionsError(
                "--learning-curve: expected a new training run, without --resume, --time and other modes"
            )
        if self.figures is not None and not self.dry_run:
            raise OptionsError("--figures: expected --dry-run, whose figures it writes")
        if self.increment_output and self.resume is not None:
            raise OptionsError(
                "--increment-output: not allowed with --resume, which continues in the same folder"
            )
        if self.config is None and self.folder is None and self.data is None and self.resume is None:
            raise OptionsError("expected a folder of images, or -c CONFIG")


@dataclass(frozen=True, kw_only=True)
class TuneOptions(RequiredConfigOptions):
    """Search for the best settings with Optuna.

    Each trial trains with different values of the searched keys. To resume a search, run the same command
    again.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls tune -c configs/quickstart.yaml --search Optimizer.lr.learning_rate=log:0.01..1",
        "ppcls tune -c configs/quickstart.yaml --space examples/tune.yaml --trials 50",
    )

    search: tuple[str, ...] = option(
        (),
        "values to try for a key: LOW..HIGH, log:LOW..HIGH, or a list such as [AdamW, Lion]; can be repeated",
        metavar="KEY=SPACE",
        repeated=True,
    )
    space: Path | None = option(None, "YAML file with one line 'KEY: SPACE' per searched key", metavar="FILE")
    trials: int = option(20, "total number of trials", gt=0)
    on_error: Literal["raise", "skip"] | None = on_error_option()


@command("train", TrainOptions, elsewhere={"--confusion": "eval"})
def train(options: TrainOptions) -> None:
    """Trains a model."""
    options = replace(options, data=options.data or options.folder, folder=None)
    profiled = None
    if options.profile is not None:
        from ppcls.engine.core.hooks import read_profile_window

        profiled = read_profile_window(options.profile)
    config = _read_train_config(options) if options.time is None else _plan(options, options.time)
    if config is None:
        return
    if options.replaces_training:
        _run_instead(options, config)
        return
    if options.learning_curve:
        from ppcls.files import create_output_dir
        from ppcls.recipe.class_folders import checked_output_dir
        from ppcls.search.learning_curve import measure_curve

        _need_folder(config.Global.output_dir)
        output_dir = create_output_dir(checked_output_dir(config.Global, config.used_splits))
        tree = config.model_dump(mode="json")
        measure_curve(tree, config.DataLoader, config.class_count(training=True), output_dir, _report)
    if options.head:  # takes so little time that the present load of the cores matters
        from ppcls.runtime.paddle_import import choose_threads

        settings = config.Global.model_copy(update={"cpu_threads": choose_threads(config.Global.cpu_threads)})
        config = config.model_copy(update={"Global": settings})
    from ppcls import api

    api.fit(config, profiled=profiled, own_process=True)


def _plan(options: TrainOptions, seconds: float) -> Config | None:
    """Returns the config of a run that ends within the time; None after printing the user's config.

    Loads Paddle, and measures the speed in this process.

    Args:
        options: Options of the command. Their config is not read again from plain data: defaults would then
            look like choices of the user, and kernels would not be chosen.
        seconds: Duration of the whole command, from its start.

    Raises:
        UserError: There are several processes, training would fail, or no run ends in time.
    """
    from ppcls.cli.short_options import set_image_size
    from ppcls.config.base.overrides import Override
    from ppcls.engine.autotune.autotune import autotune, choose_cpu_kernels
    from ppcls.engine.autotune.record import training_settings
    from ppcls.recipe.load import load_config
    from ppcls.recipe.warmup import WARMUP, fit_warmup
    from ppcls.runtime.launch import check_single_process
    from ppcls.runtime.paddle_import import choose_threads
    from ppcls.runtime.signals import interruptible
    from ppcls.runtime.start import start
    from ppcls.search.time_plan import plan_run, smaller_sides
    from ppcls.zoo import architecture

    config = _read_train_config(options)
    if config is None:
        return None
    check_single_process("--time")
    if config.LinearHead is not None:
        raise UserError("--time: expected a config without LinearHead, because the plan chooses it")
    if seconds >= _TUNED_SECONDS:
        config = autotune(config)
    else:
        settings = config.Global.model_copy(update={"cpu_threads": choose_threads(config.Global.cpu_threads)})
        config = config.model_copy(update={"Global": settings})
    with interruptible():
        runtime = start(training_settings(config.Global, config.Global.autotuned))
        if runtime.device == "cpu":
            way = choose_cpu_kernels(config.Global, config.Global, config.Arch, config.AMP)
            if way is not None:
                config = config.model_copy(update=way.sections(config.Global, config.Arch))
        config = config.model_copy(update={"Global": config.Global.model_copy(update={"autotune": False})})
        from ppcls.data.bad_images.lists import suggest_skipping
        from ppcls.engine.profiling.peak_memory import explain_out_of_memory
        from ppcls.engine.setup import build_run
        from ppcls.search.run_speed import measure_speed

        tree = config.model_dump(mode="json")
        side = int(node_at(tree, "Global.image_shape")[1])
        try:
            set_image_size(tree, side)
            resizable = not architecture(str(node_at(tree, "Arch.name"))).patch
        except UserError:
            resizable = False
        smallest = min(smaller_sides(side), default=side) / side if resizable else 1.0
        classes = config.class_count(training=True) or 1
        output = local_path(config.Global.output_dir)
        with (
            explain_out_of_memory(runtime, config.used_splits, config.Global, config.AMP),
            suggest_skipping(config.DataLoader.splits),
        ):
            measured = measure_speed(lambda: build_run(config, runtime, output), classes, seconds, smallest)
    plan = plan_run(measured, seconds, side, resizable=resizable)
    write_status(plan.describe())
    overrides: dict[str, Any] = {"Global.epochs": plan.epochs, "Global.time_limit": seconds}
    typed = [Override.parse(text).path for text in options.override]
    typed += [] if options.warmup_epochs is None else [WARMUP]
    overrides |= fit_warmup(tree, typed, plan.epochs)
    if plan.side != side:
        overrides |= set_image_size(tree, plan.side)
    if plan.head:
        overrides |= {**set_head(tree, True), "LinearHead": {"views": plan.views}}
    return load_config(tree, overrides)


def _run_instead(options: TrainOptions, config: Config) -> None:
    """Does what the options ask for instead of one training run, and prints the result on rank 0."""
    from ppcls.files import create_output_dir, write_text
    from ppcls.recipe.class_folders import checked_output_dir
    from ppcls.runtime import session
    from ppcls.runtime.signals import interruptible

    settings = config.Global
    if not (options.dry_run or options.explain_data):
        _need_folder(settings.output_dir)
    if options.dry_run:
        from ppcls.runtime.start import start

        if options.figures is not None:
            check_suffix("--figures", options.figures, ".json")
        _check_output_dir(local_path(settings.output_dir))
        runtime = start(settings)
        from ppcls.engine.dry_run import dry_run

        with interruptible():
            measured = dry_run(config, runtime)
        if runtime.is_main:
            if options.figures is not None:
                write_text(options.figures, measured.as_json())
            write_output(measured.text)
    elif options.find_batch_size:
        from ppcls.search.batch_size import find_batch_size

        sampler = config.DataLoader.need_train().sampler
        tree = config.model_dump(mode="json")
        write_output(find_batch_size(tree, sampler, settings.update_freq, _report) + "\n")
    elif options.explain_data:
        with session.dedicated(settings, local_path(settings.output_dir), logged=False) as runtime:
            if not runtime.is_main:
                return
            from ppcls.explain.describe import describe
            from ppcls.explain.description import print_descriptions

            with interruptible():
                splits = config.used_splits
                classes = {name: config.class_count(training=name == "Train") for name in splits}
                descriptions = describe(splits, classes, settings, config.Arch, runtime)
            print_descriptions(descriptions, sys.stdout)
    else:
        output_dir = create_output_dir(checked_output_dir(settings, config.used_splits))
        if options.folds is not None:
            from ppcls.search.folds import cross_validate

            tree = config.model_dump(mode="json")
            text = cross_validate(tree, config.DataLoader, config.Arch, options.folds, output_dir, _report)
            write_output(text)
            return
        with session.dedicated(settings, output_dir) as runtime, interruptible():
            from ppcls.engine.find_lr import find_lr

            text = find_lr(config, runtime, output_dir)
            if runtime.is_main:
                write_output(text)


def _need_folder(output_dir: str) -> None:
    """Checks that the output folder is on a disk. Only a training run uploads its files.

    Raises:
        UserError: It is an address in object storage.
    """
    if is_url(output_dir):
        raise UserError(
            f"Global.output_dir {output_dir}: expected a local folder, because only a training run is "
            "uploaded; set --output FOLDER"
        )


def _read_train_config(options: TrainOptions) -> Config | None:
    """Returns the config of a run; None after printing it for ``--print-config``.

    Raises:
        UserError: The config is invalid, or a file or folder that the run needs cannot be used. The message
            lists all these problems, so that the user can fix them together.
    """
    from ppcls.recipe.resume_config import choose_config

    source, applied = choose_config(options, _DEFAULT_CONFIG)
    remaining = {name: value for name, value in vars(options).items() if name not in applied}
    apply_values(TrainOptions, remaining, source)
    if options.demo_data:
        _use_demo_data(source, options.epochs)
    try:
        config = load_or_print(source, options)
    except UserError as error:
        problems = _find_problems(options, source.tree)
        lines = [str(error), *(line for line in problems if line not in str(error))]
        if len(lines) == 1:
            raise  # with its exit code, which is another one for a storage that does not answer
        combined = UserError("\n".join(lines))
        combined.has_own_lines = error.has_own_lines
        raise combined from None
    raise_line_errors(_find_problems(options, source.tree))
    return config


@command("tune", TuneOptions)
def tune(options: TuneOptions) -> None:
    """Searches for the best settings of a config."""
    from ppcls.recipe.load import ConfigSource

    source = ConfigSource.read(options.config)
    apply_options(options, source)
    config = load_or_print(source, options)
    if config is None:
        return
    from ppcls.config.base.yaml import parse_yaml, read_yaml
    from ppcls.files import create_output_dir
    from ppcls.recipe.class_folders import checked_output_dir
    from ppcls.search.space import read_space
    from ppcls.search.tune import tune as search

    ranges = read_yaml(options.space) if options.space is not None else {}
    for text in options.search:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--search {text}: expected KEY=SPACE, such as Global.epochs=5..20")
        ranges[key] = parse_yaml(value, f"--search {text}") if value.strip().startswith("[") else value
    space = read_space(ranges)
    _need_folder(config.Global.output_dir)
    output_dir = create_output_dir(checked_output_dir(config.Global, config.used_splits))
    evaluates = config.Global.eval_during_train and config.DataLoader.evaluated
    metric = config.Metric.Eval[0] if evaluates else None
    tree = config.model_dump(mode="json")
    write_output(search(tree, metric, space, options.trials, output_dir, _report))


def _report(line: str) -> None:
    write_status(line)


def _find_problems(options: TrainOptions, tree: Tree) -> list[str]:
    """Returns one line per file or folder that the run cannot use. Does not load Paddle.

    Args:
        options: Options of the command.
        tree: Config to which all options are applied. It may be invalid.
    """
    from ppcls.runtime.launch import read_launch

    if options.print_config:
        return []  # a config can be printed on a machine without its data
    if read_launch().world_size > 1:
        return []  # the ranks check together, after the start
    return [*_missing_data(tree), *(() if options.replaces_training else _used_output(tree))]


def _use_demo_data(source: ConfigSource, epochs: int | None) -> None:
    """Creates the photographs, and sets them as images of all data sets.

    Raises:
        UserError: A data set of the config has no list of images, or the photographs can't be created.
    """
    from ppcls.config.base.overrides import Override
    from ppcls.dataset_tools.photos import make_photos
    from ppcls.files import print_error
    from ppcls.weights.download import lock_file

    values: dict[str, Any] = {} if epochs is not None else {"Global.epochs": 1}
    source.fits_warmup = source.fits_warmup or epochs is None
    for split in splits(source.tree):
        if node_at(source.tree, f"{split}.dataset.cls_label_path") is None:
            raise UserError(
                f"--demo-data: expected {split}.dataset.cls_label_path, a list of images, in the config"
            )
        name = "train_list.txt" if split == "DataLoader.Train" else "val_list.txt"
        values[f"{split}.dataset.image_root"] = _DEMO_FOLDER
        values[f"{split}.dataset.cls_label_path"] = _DEMO_FOLDER / name
    _DEMO_FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(_DEMO_FOLDER.with_suffix(".lock")):  # of several ranks, the first one creates them
        if make_photos(_DEMO_FOLDER, _DEMO_IMAGES):
            print_error(f"{_DEMO_FOLDER}: created {_DEMO_IMAGES} photographs")
    source.apply(Override.of_value(path, value, "--demo-data") for path, value in values.items())


def _missing_data(tree: Tree) -> Iterator[str]:
    """Yields one line per missing image folder or list file that training reads."""
    from ppcls.recipe.class_folders import FOLDER_DATASET
    from ppcls.recipe.folder_hints import describe_missing_folder

    reported = set[str]()
    evaluates = node_at(tree, "Global.eval_during_train") is not False
    resumed = node_at(tree, "Global.checkpoints")
    for key in ("image_root", "cls_label_path"):
        for split in splits(tree) if evaluates else ("DataLoader.Train",):
            path = node_at(tree, f"{split}.dataset.{key}")
            if not isinstance(path, str) or is_url(path):
                continue
            if path not in reported and not Path(path).exists():
                reported.add(path)
                place = f"{split}.dataset.{key}"
                if key == "cls_label_path":
                    yield f"{one_line(path)}: no such list file; expected lines of 'path label' ({place})"
                elif resumed:  # the run has found it before, so its name is correct
                    yield f"{one_line(path)}: no such folder ({place})"
                else:
                    of_classes = node_at(tree, f"{split}.dataset.name") == FOLDER_DATASET
                    yield describe_missing_folder(path, place, of_classes=of_classes)
    if reported and resumed:
        yield "if the data of this run were moved, name their new folder with --data FOLDER"
    if any("ILSVRC2012" in path for path in reported):
        yield _IMAGENET_HINT


def _used_output(tree: Tree) -> Iterator[str]:
    """Yields one line if the output folder contains a run that is not to be resumed, or unsuitable files."""
    from ppcls.weights.store import LATEST, Store

    folder = node_at(tree, "Global.output_dir")
    if not isinstance(folder, str) or is_url(folder):
        return
    if node_at(tree, "Global.checkpoints"):
        return  # a copied folder may have lost its links, which the start restores
    if node_at(tree, "Global.checkpoint_fallback_dir") is None:
        try:
            Store(Path(folder)).check_places()
        except UserError as error:
            yield str(error)
    if (Path(folder) / LATEST).is_symlink():
        yield (
            f"{folder} already holds a run; resume it with --resume (Global.checkpoints=auto), or choose "
            "another folder with --output (Global.output_dir)"
        )


def _check_output_dir(folder: Path) -> None:
    """Checks, without creating anything, that an output folder can be created and written."""
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "can't be written" if existing.is_dir() else "is not a folder"
        raise UserError(
            f"{folder}: can't write to this output folder: {existing} {reason}; set Global.output_dir"
        )
