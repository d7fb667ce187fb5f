"""Training from Python: build, train and evaluate a model from a config. The command line uses it, too.

Nothing here imports Paddle before the settings of a run are known, because Paddle reads some of them at
import. So import Paddle after the first call of `build_state`, `fit`, `evaluate` or `Predictor`. A setting
that comes too late is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.bench.train.autotune import autotune
from ppcls.config.base.fields import show
from ppcls.config.load import load_config
from ppcls.config.schema import Config
from ppcls.deploy.models.source import find_weights
from ppcls.engine.core.hooks import RunHook
from ppcls.errors import UserError
from ppcls.files import create_output_dir
from ppcls.runtime import session
from ppcls.runtime.signals import interruptible
from ppcls.weights.store import BEST, LATEST, newest

if TYPE_CHECKING:  # these import Paddle
    from ppcls.data.transforms.views import ViewKind
    from ppcls.engine.core.hooks import ProfileWindow
    from ppcls.engine.core.state import TrainState
    from ppcls.engine.evaluation.evaluate import EvalResult
    from ppcls.runtime.start import Runtime

__all__ = ["FitResult", "RunHook", "build_state", "evaluate", "fit", "load_config"]


@dataclass(frozen=True)
class FitResult:
    """The result of a training run.

    Attributes:
        best: First metric of ``Metric.Eval`` in the best evaluation; None without evaluation.
        output_dir: Output folder of the run, with ``train.log`` and ``report.html``.
        best_model: Checkpoint of the best evaluation; None without evaluation.
        latest: Checkpoint of the last epoch; None if there is none on this machine.
        history: Records of ``metrics.jsonl`` in chronological order, as plain data: ``{"kind": "train", …}``
            and ``{"kind": "eval", …}`` with the fields of `ppcls.report.record`. Empty on ranks other than 0.
    """

    best: float | None
    output_dir: Path
    best_model: Path | None
    latest: Path | None
    history: list[dict[str, Any]]


def build_state(config: Config) -> TrainState:
    """Builds the initial state of a run: model, optimizer and data.

    The model has the weights of ``Global.pretrained_model``, which can be changed in place. Only `fit`
    reads a checkpoint of ``Global.checkpoints``.

    Raises:
        UserError: The config, the data or the weights are invalid.
    """
    if not isinstance(config, Config):
        raise UserError(f"expected a config from load_config, got {show(config)}")
    with session.embedded(config.Global) as runtime:
        from ppcls.engine.core import build
        from ppcls.engine.setup import load_pretrained
        from ppcls.runtime.collectives import fail_together

        with fail_together(runtime):
            return build.build_state(config, runtime, partial(load_pretrained, config))


def fit(
    run: Config | TrainState,
    *,
    profiled: ProfileWindow | None = None,
    own_process: bool = False,
    hooks: Sequence[RunHook] = (),
) -> FitResult:
    """Trains, evaluates and saves as the config says, from scratch or from a checkpoint.

    Afterwards signal handlers, streams and Paddle's settings are restored, and another run can follow. Ctrl-C
    saves and stops the run at the next update; a second Ctrl-C interrupts it at once.

    Args:
        run: The config, or a state from `build_state`, which is trained in place.
        profiled: Steps to profile; None for no profile.
        own_process: Whether the process exists for this run alone, as that of tools/train.py does: then
            ``Global.hang_timeout`` and a second signal end the process.
        hooks: Hooks in addition to those of ``Global.hooks``.

    Raises:
        UserError: The config, the data or a checkpoint is invalid.
        SignalExit: A signal stopped the run after it was saved.
        KeyboardInterrupt: Ctrl-C came twice.
    """
    config = _config_of(run)
    state = None if isinstance(run, Config) else run
    if state is not None and (state.update or state.epoch):
        raise UserError(
            f"this state has been trained for {state.update} updates; build a new one with build_state, or "
            "resume its run with a config that has Global.checkpoints: auto"
        )
    output_dir = create_output_dir(Path(config.Global.output_dir))
    if state is None:
        config = autotune(config)
    start = session.dedicated if own_process else session.embedded
    with start(config.Global, output_dir) as runtime:
        from ppcls.engine.train import train
        from ppcls.report.jsonlines import as_dict, read_records

        if state is not None:
            state.runtime = runtime
        trained = train(config, runtime, output_dir, profiled, state, hooks)
        fallback = config.Global.checkpoint_fallback_dir
        best, latest = (newest(role, output_dir, fallback) for role in (BEST, LATEST))
        records = read_records(output_dir / "metrics.jsonl") if runtime.is_main else []
        return FitResult(trained.best, output_dir, best, latest, [as_dict(record) for record in records])


def evaluate(
    run: Config | TrainState,
    *,
    sample_by_sample: bool = False,
    own_process: bool = False,
    tta: ViewKind | None = None,
) -> EvalResult:
    """Evaluates a model on ``DataLoader.Eval``.

    Args:
        run: A state, whose model is evaluated, or its moving average if it has one; or a config, whose
            ``Global.pretrained_model`` is evaluated, or else the best model in its ``output_dir``.
        sample_by_sample: Whether to return the outcome of each sample; only for samples with one label.
        own_process: Whether the process exists for this evaluation alone, as that of tools/eval.py does:
            then ``Global.hang_timeout`` ends the process.
        tta: Views of each image whose probabilities are averaged (test-time augmentation); only for a config.

    Raises:
        UserError: The config, the data or the weights are invalid.
    """
    config = _config_of(run)
    if tta is not None and not isinstance(run, Config):
        raise UserError("tta: expected a config to evaluate, got a state")
    if not isinstance(run, Config):
        with session.embedded(config.Global) as runtime:
            return _evaluate_state(run, config, runtime, sample_by_sample)
    weights = find_weights(config.Global)
    if not own_process:
        with session.embedded(config.Global) as runtime:
            return _evaluate_weights(weights, config, runtime, sample_by_sample, tta)
    output_dir = Path(config.Global.output_dir)
    with session.dedicated(config.Global, output_dir, logged=False) as runtime, interruptible():
        return _evaluate_weights(weights, config, runtime, sample_by_sample, tta)


def _evaluate_state(
    state: TrainState, config: Config, runtime: Runtime, sample_by_sample: bool
) -> EvalResult:
    from ppcls.data.bad_images.lists import suggest_skipping
    from ppcls.engine.evaluation.evaluate import build_evaluator

    average = state.ema.applied() if state.ema is not None else nullcontext()
    with average, suggest_skipping(config.DataLoader.evaluated):
        return build_evaluator(config, runtime, state.precision, sample_by_sample)(state.model)


def _evaluate_weights(
    weights: Path, config: Config, runtime: Runtime, sample_by_sample: bool, tta: ViewKind | None
) -> EvalResult:
    from ppcls.arch.layers.reparameterize import reparameterize
    from ppcls.data.bad_images.lists import suggest_skipping
    from ppcls.engine.core.networks import build_network, read_inferred
    from ppcls.engine.core.precision import build_precision
    from ppcls.engine.evaluation.evaluate import build_evaluator
    from ppcls.engine.evaluation.views import average_views, config_for_views
    from ppcls.report.console import count_batches
    from ppcls.weights.files import fill_model

    runtime.progress.mark_first_step()  # there is no training step, which would be slow
    model, precision = build_network(config.Arch), build_precision(config.AMP, runtime.device)
    fill_model(model, read_inferred(config, weights), weights)
    reparameterize(model)
    precision.prepare(model, None)
    if tta is not None:
        config = config_for_views(config, tta)
    with suggest_skipping(config.DataLoader.evaluated):
        evaluator = build_evaluator(config, runtime, precision, sample_by_sample)
        if tta is not None:
            labels = next(iter(evaluator.loaders.values())).index.labels
            model = average_views(model, config, tta, several_labels=labels.ndim == 2)
        if not runtime.is_main:
            return evaluator(model)
        with count_batches("evaluation", evaluator.batches) as after_batch:
            return evaluator(model, after_batch)


def _config_of(run: Config | TrainState) -> Config:
    config = run if isinstance(run, Config) else getattr(run, "config", None)
    if not isinstance(config, Config):
        raise UserError(f"expected a config from load_config, or a state from build_state, got {show(run)}")
    return config
