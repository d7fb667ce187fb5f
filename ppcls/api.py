"""Training from Python: a config to a state, a trained model, its figures. The command line calls the same.

Nothing here imports Paddle before a run's settings tell what it must read at its import. So import it
after the first call of `build_state`, `fit`, `evaluate` or `Predictor`; a setting that comes too late is an
error that says so.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.config.base.fields import show
from ppcls.config.load import load_config
from ppcls.config.schema import Config
from ppcls.config.sections.run import Global
from ppcls.deploy.models.source import find_weights
from ppcls.errors import UserError
from ppcls.runtime import session
from ppcls.runtime.signals import interruptible
from ppcls.weights.store import BEST, LATEST, newest

if TYPE_CHECKING:
    from ppcls.engine.core.hooks import ProfileWindow
    from ppcls.engine.core.state import TrainState
    from ppcls.engine.evaluation.evaluate import Result

__all__ = ["FitResult", "build_state", "evaluate", "fit", "load_config"]


@dataclass(frozen=True)
class FitResult:
    """What a run has come to.

    Attributes:
        best: The first metric of ``Metric.Eval`` in the best evaluation; None where there was none.
        output_dir: Folder of the run, with ``train.log`` and ``report.html``.
        best_model: Checkpoint of the best evaluation; None where there was none.
        latest: Checkpoint of the last epoch; None where this machine has none.
        history: The records of ``metrics.jsonl`` in order of time, as plain data: ``{"kind": "train", …}``
            and ``{"kind": "eval", …}`` with the fields of `ppcls.report.record`. Empty on ranks other than 0.
    """

    best: float | None
    output_dir: Path
    best_model: Path | None
    latest: Path | None
    history: list[dict[str, Any]]


def build_state(config: Config) -> TrainState:
    """Builds what a run begins with: model, optimizer, data, at their start.

    Weights of ``Global.pretrained_model`` are filled in; a checkpoint of ``Global.checkpoints`` is read by
    `fit`. Change the weights in place, if at all.

    Raises:
        UserError: Whatever the user must put right.
    """
    if not isinstance(config, Config):
        raise UserError(f"expected a config, as of load_config; got {show(config)}")
    with session.embedded(config.Global) as runtime:
        from ppcls.engine.checkpoint.pretrained import load_pretrained
        from ppcls.engine.core import build
        from ppcls.runtime.collectives import fail_together

        with fail_together(runtime):
            return build.build_state(config, runtime, lambda model: load_pretrained(config, model))


def fit(
    run: Config | TrainState, *, profiled: ProfileWindow | None = None, own_process: bool = False
) -> FitResult:
    """Trains, evaluates and saves as the config says, from the start or from a checkpoint.

    Afterwards signals, streams and Paddle's settings are as they were, and another run may follow. Ctrl-C
    saves and ends the run at the next update; a second one breaks it off.

    Args:
        run: The config, or a state that `build_state` made of it, to be trained in place.
        profiled: Steps to profile; None for none.
        own_process: Whether the process is there for this run alone, as tools/train.py's: then
            ``Global.hang_timeout`` and a second signal end it.

    Raises:
        UserError: Whatever the user must put right.
        SignalExit: A signal has ended the run; its state is saved.
        KeyboardInterrupt: Ctrl-C came twice.
    """
    config = _config_of(run)
    state = None if isinstance(run, Config) else run
    if state is not None and (state.update or state.epoch):
        raise UserError(
            f"this state has been trained for {state.update} updates; build another one by build_state, or "
            "go on with its run by a config with Global.checkpoints: auto"
        )
    output_dir = create_output_dir(Path(config.Global.output_dir))
    start = session.dedicated if own_process else session.embedded
    with start(config.Global, output_dir) as runtime:
        from ppcls.engine.train import train

        if state is not None:
            state.runtime = runtime
        trained = train(config, runtime, output_dir, profiled, state)
        return _fitted(trained, config.Global, output_dir)


def _fitted(state: TrainState, settings: Global, output_dir: Path) -> FitResult:
    from ppcls.report.jsonlines import as_dict, read_records

    best, latest = (newest(role, output_dir, settings.checkpoint_fallback_dir) for role in (BEST, LATEST))
    records = read_records(output_dir / "metrics.jsonl") if state.runtime.is_main else []
    return FitResult(
        best=state.best,
        output_dir=output_dir,
        best_model=best,
        latest=latest,
        history=[as_dict(record) for record in records],
    )


def evaluate(
    run: Config | TrainState, *, sample_by_sample: bool = False, own_process: bool = False
) -> Result:
    """Evaluates a model on ``DataLoader.Eval``.

    Args:
        run: A state, whose model is evaluated as it stands, or its average where it has one; or a config,
            whose ``Global.pretrained_model`` is, or without one the best model of its ``output_dir``.
        sample_by_sample: Whether to collect what became of each sample, where each has one label.
        own_process: Whether the process is there for this evaluation alone, as tools/eval.py's: then
            ``Global.hang_timeout`` ends it.

    Raises:
        UserError: Whatever the user must put right.
    """
    config = _config_of(run)
    source = find_weights(config) if isinstance(run, Config) else Path()
    output_dir = Path(config.Global.output_dir)
    with (
        (
            session.dedicated(config.Global, output_dir, logged=False)
            if own_process
            else session.embedded(config.Global)
        ) as runtime,
        interruptible() if own_process else nullcontext(),
    ):
        from ppcls.arch.layers.reparameterize import reparameterize
        from ppcls.data.bad_images.lists import suggest_skipping
        from ppcls.engine.core.networks import build_network, read_inferred
        from ppcls.engine.core.precision import build_precision
        from ppcls.engine.evaluation.evaluate import build_evaluator
        from ppcls.weights.files import fill_model

        advised = suggest_skipping(config.DataLoader.evaluated)
        if not isinstance(run, Config):
            with run.ema.applied() if run.ema is not None else nullcontext(), advised:
                return build_evaluator(config, runtime, run.precision, sample_by_sample)(run.model)
        runtime.progress.mark_first_step()  # no step is to come that may take longer than an evaluated batch
        model, precision = build_network(config.Arch), build_precision(config.AMP, runtime.device)
        fill_model(model, read_inferred(config, source), source)
        reparameterize(model)
        precision.prepare(model, None)
        with advised:
            return build_evaluator(config, runtime, precision, sample_by_sample)(model)


def _config_of(run: Config | TrainState) -> Config:
    if isinstance(run, Config):
        return run
    config = getattr(run, "config", None)
    if not isinstance(config, Config):
        raise UserError(
            f"expected a config, as of load_config, or a state, as of build_state; got {show(run)}"
        )
    return config


def create_output_dir(folder: Path, setting: str = "set Global.output_dir") -> Path:
    """Makes the output folder, and shows that it can be written.

    Args:
        folder: Of the output.
        setting: What says which it is, for the error.

    Raises:
        UserError: It can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{folder}: can't write to this output folder: {error.strerror}; {setting}") from None
    return folder
