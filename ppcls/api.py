"""Functions that build, train and evaluate a model from a config. The command line uses them too.

Paddle reads some settings of a run when it is imported. Therefore this module imports Paddle only after it
has read the config. Import Paddle in your own code after the first call of `build_loader`, `build_state`,
`fit`, `evaluate` or `Predictor`. `UserError` reports a setting that Paddle can no longer adopt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.config.base.problems import show
from ppcls.deploy.models.source import find_weights
from ppcls.engine.autotune.autotune import autotune, choose_cpu_kernels
from ppcls.engine.autotune.decoding import choose_decoder
from ppcls.engine.autotune.record import choose_inference, training_settings
from ppcls.engine.core.hooks import RunHook
from ppcls.errors import UserError, counted
from ppcls.files import create_output_dir
from ppcls.files.urls import local_path, naming_addresses
from ppcls.recipe.class_folders import checked_output_dir
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.runtime import session
from ppcls.runtime.signals import interruptible
from ppcls.storage.run_copy import open_run
from ppcls.weights.store import BEST, LATEST, newest

if TYPE_CHECKING:  # these modules import Paddle
    from paddle.nn import Layer

    from ppcls.arch.distillation_model import AnyArch
    from ppcls.data.loaders.batch import Loader
    from ppcls.data.views import ViewKind
    from ppcls.engine.core.hooks import ProfileWindow
    from ppcls.engine.core.networks import Losses
    from ppcls.engine.core.settings import CheckpointSettings
    from ppcls.engine.core.state import TrainState
    from ppcls.engine.evaluation.evaluate import EvalResult
    from ppcls.runtime.start import Runtime

__all__ = ["FitResult", "RunHook", "build_loader", "build_state", "evaluate", "fit", "load_config"]


@dataclass(frozen=True)
class FitResult:
    """The result of a training run.

    Attributes:
        best: Value of the first metric of ``Metric.Eval`` in the best evaluation; None without evaluation.
        output_dir: Output folder of the run, with ``train.log`` and ``report.html``.
        best_model: Checkpoint of the best evaluation; None without evaluation.
        latest: Checkpoint of the last epoch; None if there is none on this machine.
        history: Records of ``metrics.jsonl`` in chronological order. Each record is a dictionary with the key
            ``kind`` (``train`` or ``eval``) and the fields of the class in `ppcls.report.record`. If the file
            is larger than 16 MiB, the list has only some of the training records. It is empty on ranks other
            than 0.
    """

    best: float | None
    output_dir: Path
    best_model: Path | None
    latest: Path | None
    history: list[dict[str, Any]]


def build_loader(config: Config, split: str = "Train") -> Loader:
    """Builds the loader of a split, for a loop of your own: ``for batch in loader`` yields one epoch.

    The batches are those of a training run or an evaluation with this config, on its device; see
    `ppcls.data.loaders.batch.Batch`. DALI loads them if ``Global.use_dali`` is True.

    Args:
        config: Config of the run.
        split: Key of the split in ``DataLoader``: ``Train`` or ``Eval``; or ``Eval.Query`` or
            ``Eval.Gallery``.

    Raises:
        UserError: The config has no such split, or its data or transforms are invalid.
    """
    if not isinstance(config, Config):
        raise UserError(f"expected a config from load_config, got {show(config)}")
    splits = config.DataLoader.splits
    if split not in splits:
        raise UserError(f"DataLoader.{split}: missing; the config has {', '.join(splits) or 'no split'}")
    with session.embedded(config.Global) as runtime:
        from ppcls.data import build

        classes = config.class_count(training=split == "Train")
        return build.build_loader(splits[split], split, runtime, config.Global, config.Arch, classes)


@naming_addresses()
def build_state(config: Config) -> TrainState:
    """Builds the initial state of a run: model, optimizer and data.

    The model has the weights of ``Global.pretrained_model``. You can change them in place before you call
    `fit`. Only `fit` reads a checkpoint of ``Global.checkpoints``.

    Raises:
        UserError: The config, the data or the weights are invalid.
    """
    if not isinstance(config, Config):
        raise UserError(f"expected a config from load_config, got {show(config)}")
    with session.embedded(config.Global) as runtime:
        from ppcls.engine.core import build
        from ppcls.engine.core.networks import beside_prefixes
        from ppcls.engine.initial_weights import InitialWeights
        from ppcls.runtime.collectives import fail_together

        source = config.Global.pretrained_model
        beside = beside_prefixes(config.Arch, config.Loss.Train)
        weights = InitialWeights(config.Arch, source, config.chains, config.Optimizer.freezes, beside)
        with fail_together(runtime):
            return build.build_state(config, runtime, weights.load, load_beside=weights.load_beside)


@naming_addresses()
def fit(
    run: Config | TrainState,
    *,
    profiled: ProfileWindow | None = None,
    own_process: bool = False,
    hooks: Sequence[RunHook] = (),
) -> FitResult:
    """Trains, evaluates and saves a model as a config specifies. Resumes if ``Global.checkpoints`` is set.

    At the end, the function restores signal handlers, output streams and Paddle's settings, so that another
    run can follow. The first Ctrl-C saves and stops the run at the next update. A second Ctrl-C interrupts
    the run immediately.

    Args:
        run: The config, or a state from `build_state`, which is trained in place.
        profiled: Steps to profile; None for no profile.
        own_process: Whether the process exists only for this run, as in tools/train.py. If True,
            ``Global.hang_timeout`` and a second signal end the process.
        hooks: Hooks in addition to those of ``Global.hooks``.

    Raises:
        UserError: The config, the data or a checkpoint is invalid.
        SignalExit: A signal stopped the run, and its state was saved.
        KeyboardInterrupt: The user pressed Ctrl-C twice.
    """
    config, state = _config_and_state(run)
    if state is not None and (state.update or state.epoch):
        raise UserError(
            f"this state has been trained for {counted(state.update, 'update')}; build a new one with "
            "build_state, or resume its run with a config that has Global.checkpoints: auto"
        )
    output_dir = create_output_dir(checked_output_dir(config.Global, config.used_splits))
    copy = open_run(config.Global.output_dir, resumes=config.Global.checkpoints is not None)
    if state is None and config.LinearHead is None:
        checkpoint = _resumed_checkpoint(config.Global, output_dir)
        config = choose_decoder(autotune(config, checkpoint), checkpoint)
    start = session.dedicated if own_process else session.embedded
    with start(training_settings(config.Global, config.Global.autotuned), output_dir) as runtime:
        from ppcls.engine.recording import Recording
        from ppcls.engine.train import train
        from ppcls.report.jsonlines import as_dict, read_history

        if state is not None:
            state = replace(state, runtime=runtime)
        elif config.LinearHead is not None and runtime.device == "cpu":
            way = choose_cpu_kernels(config.Global, config.Global, config.Arch, config.AMP)
            if way is not None:
                config = config.model_copy(update=way.sections(config.Global, config.Arch))
        trained = train(config, runtime, output_dir, Recording(hooks, profiled, copy), state)
        fallback = config.Global.checkpoint_fallback_dir
        best, latest = (newest(role, output_dir, fallback) for role in (BEST, LATEST))
        records = [*read_history(output_dir / "metrics.jsonl")] if runtime.is_main else []
        records.sort(key=lambda record: record.update)  # stable
        return FitResult(
            trained.progress.best, output_dir, best, latest, [as_dict(record) for record in records]
        )


def _resumed_checkpoint(settings: CheckpointSettings, output_dir: Path) -> Path | None:
    """Returns the checkpoint from which a run is probably resumed, before Paddle is imported."""
    requested = settings.checkpoints
    if requested is None:
        return None
    if requested != "auto":
        return Path(requested)
    return newest(LATEST, output_dir, settings.checkpoint_fallback_dir)


@naming_addresses()
def evaluate(
    run: Config | TrainState,
    *,
    sample_by_sample: bool = False,
    own_process: bool = False,
    tta: ViewKind | None = None,
) -> EvalResult:
    """Evaluates a model on ``DataLoader.Eval``.

    Args:
        run: State or config. For a state, its model is evaluated, with the moving average of the weights if
            there is one. For a config, the weights are those of ``Global.pretrained_model`` if it is set,
            otherwise those of the best model in ``Global.output_dir``.
        sample_by_sample: Whether to also return the result of each sample. Requires one label per sample.
        own_process: Whether the process exists only for this evaluation, as in tools/eval.py. If True,
            ``Global.hang_timeout`` ends the process.
        tta: Views of each image for test-time augmentation, which averages the probabilities of the views.
            Requires a config as ``run``.

    Raises:
        UserError: The config, the data or the weights are invalid.
    """
    config, state = _config_and_state(run)
    if tta is not None and state is not None:
        raise UserError("evaluate(tta=…): expected a config to evaluate, got a state; pass the run's config")
    if state is not None:
        with session.embedded(config.Global) as runtime:
            return _evaluate_state(state, runtime, sample_by_sample)
    weights = find_weights(config.Global)
    start = session.embedded(config.Global)
    if own_process:
        start = session.dedicated(config.Global, local_path(config.Global.output_dir), logged=False)
    with start as runtime, interruptible() if own_process else nullcontext():
        from ppcls.arch.fuse import InferenceLayers
        from ppcls.data.bad_images.lists import suggest_skipping
        from ppcls.data.views import ImageViews
        from ppcls.engine.core.precision import build_precision
        from ppcls.engine.evaluation.evaluate import build_evaluator
        from ppcls.engine.evaluation.labels import label_by_names, warn_of_labels
        from ppcls.engine.evaluation.views import AveragedLogits, data_for_views
        from ppcls.report.console import count_batches

        runtime.progress.mark_first_step()  # only the first training step needs the longer timeout
        data, notes = label_by_names(config.DataLoader, config.Arch.class_num, weights)
        if runtime.is_main:
            warn_of_labels(notes)
        precision = build_precision(config.AMP, runtime.device)
        kernels, data_format = choose_inference(config.Global)
        layers = InferenceLayers.choose(config.Arch, kernels, runtime.device, precision.name, data_format)
        model = _load_model(layers.arch, config.Loss.Train, weights)
        precision.prepare(model, None)
        layers.apply(model)
        if tta is not None:
            data = data_for_views(data, tta, embeds=config.Arch.embeds)
        config = config.model_copy(update={"DataLoader": data})
        with suggest_skipping(data.evaluated):
            evaluator = build_evaluator(config, runtime, precision, sample_by_sample)
            if tta is not None:
                labels = next(iter(evaluator.loaders.values())).index.labels
                _, height, width = config.Global.image_shape
                views = ImageViews(tta, (height, width), config.Arch.data_format)
                model = AveragedLogits(model, views, several_labels=labels.ndim == 2)
            if not runtime.is_main:
                return evaluator(model)
            with count_batches("evaluation", evaluator.batches) as after_batch:
                return evaluator(model, after_batch)


def _evaluate_state(state: TrainState, runtime: Runtime, sample_by_sample: bool) -> EvalResult:
    from ppcls.data.bad_images.lists import suggest_skipping
    from ppcls.engine.evaluation.evaluate import build_evaluator

    config = state.config
    average = state.ema.applied() if state.ema is not None else nullcontext()
    with average, suggest_skipping(config.DataLoader.evaluated):
        return build_evaluator(config, runtime, state.precision, sample_by_sample)(state.model)


def _load_model(arch: AnyArch, losses: Losses, weights: Path) -> Layer:
    """Returns the trained model, without parallel branches that one convolution can replace.

    Args:
        arch: The section ``Arch``.
        losses: Losses of training, whose weights a checkpoint contains too.
        weights: File or folder of the weights.
    """
    from ppcls.arch.layers.reparameterize import reparameterize
    from ppcls.engine.core.networks import build_network, read_inferred
    from ppcls.weights.files import fill_model

    model = build_network(arch)
    fill_model(model, read_inferred(arch, losses, weights), weights)
    reparameterize(model)
    return model


def _config_and_state(run: Any) -> tuple[Config, TrainState | None]:
    """Returns the config of a run, and its state if it was built; None for a config.

    Raises:
        UserError: ``run`` is neither.
    """
    if isinstance(run, Config):
        return run, None
    config = getattr(run, "config", None)
    if not isinstance(config, Config):
        raise UserError(f"expected a config from load_config, or a state from build_state, got {show(run)}")
    return config, run
