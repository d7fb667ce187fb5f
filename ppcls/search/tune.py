"""Implements ``ppcls tune``, which searches hyperparameters with Optuna and runs each trial in a process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.commands import set_keys
from ppcls.config.base.tree import Tree, leaves
from ppcls.config.base.yaml import dump_yaml, read_yaml
from ppcls.errors import UserError
from ppcls.files import write_text
from ppcls.metric.base import Metric
from ppcls.runtime.launch import check_single_process
from ppcls.search.page import render_page
from ppcls.search.space import Dimension, NumberRange
from ppcls.search.trials import (
    last_lines,
    read_evaluations,
    start_training,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

PAGE = "tune.html"
STORAGE = "tune.log"
_POLL_SECONDS = 0.5
_FAILED_AT_FIRST = 3  # trials that fail before any other one ends, which end the search
_SHOWN = 5  # number of changed keys that a warning lists


def tune(
    tree: Tree,
    metric: Metric | None,
    space: Mapping[str, Dimension],
    trials: int,
    output_dir: Path,
    report: Callable[[str], None],
) -> str:
    """Runs trials until ``trials`` of them have finished. Trials of earlier searches in the folder count.

    Each trial trains the config with other values of the searched keys, and has its own output folder. Its
    score is the best value of the first metric of ``Metric.Eval``. A trial is stopped early if it is worse
    than the median of the other trials at the same evaluation.

    Args:
        tree: Config of the runs as plain data.
        metric: First metric of the evaluations during training; None without evaluation.
        space: Search space of each key.
        trials: Total number of trials.
        output_dir: Existing folder for the trials, Optuna's storage and the page.
        report: Function that receives a line about each trial.

    Returns:
        A line of text with the best settings.

    Raises:
        UserError: Optuna is missing, the config has no evaluation, or every trial fails.
    """
    check_single_process("ppcls tune")
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise UserError("ppcls tune needs the package optuna: pip install '.[tune]'") from None
    if metric is None:
        raise UserError(
            "ppcls tune needs DataLoader.Eval and Global.eval_during_train: True; set them in the config"
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="ppcls",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(output_dir / STORAGE))),
        direction="minimize" if metric.lower_is_better else "maximize",
        sampler=optuna.samplers.TPESampler(seed=tree["Global"]["seed"] + _count(output_dir)),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        load_if_exists=True,
    )
    _restart_interrupted(study)
    file = output_dir / "config.yaml"
    if study.trials and (changed := _changed_keys(file, tree)):
        report(
            f"warning: {output_dir} has trials with other settings, whose scores may not be comparable: "
            f"{'; '.join(changed)}; choose another Global.output_dir"
        )
    write_text(file, dump_yaml(tree))
    name = metric.names[0]

    def objective(trial: Trial) -> float:
        values = {key: dimension.suggest(trial, key) for key, dimension in space.items()}
        return _train(trial, values, file, name, output_dir)

    def finish(_study: Study, trial: FrozenTrial) -> None:
        report(_describe(trial, name))
        _write_page(study, name, space, output_dir)
        done = _finished(study)
        if len(done) >= _FAILED_AT_FIRST and all(each.state.name == "FAIL" for each in done):
            study.stop()

    if (left := trials - len(_finished(study))) > 0:
        study.optimize(objective, n_trials=left, callbacks=[finish], catch=(UserError,))
    if not any(trial.state.name == "COMPLETE" for trial in study.trials):
        raise UserError(f"every trial failed; the last error: {study.trials[-1].user_attrs.get('error')}")
    best = study.best_trial
    changes = set_keys(best.user_attrs["values"])
    return f"best trial {best.number}: {name} {best.value:.4f}: {changes}; results: {output_dir / PAGE}\n"


def _changed_keys(file: Path, tree: Tree) -> list[str]:
    """Returns a text for each key whose value differs from that of the earlier search, at most five.

    Args:
        file: Config of the earlier search, which may be missing.
        tree: Config of this search as plain data.
    """
    before = dict(leaves(read_yaml(file))) if file.is_file() else {}
    changes = [
        f"{key} was {before[key]!r} and is now {value!r}"
        for key, value in leaves(tree)
        if before.get(key, value) != value
    ]
    return [*changes[:_SHOWN], *(["…"] if len(changes) > _SHOWN else [])]


def _count(output_dir: Path) -> int:
    """Returns the number of trials in the folder, which gives a resumed search another seed."""
    return len(list(output_dir.glob("trial_*")))


def _finished(study: Study) -> list[FrozenTrial]:
    return [trial for trial in study.trials if trial.state.is_finished() and not _is_interrupted(trial)]


def _is_interrupted(trial: FrozenTrial) -> bool:
    return trial.state.name == "FAIL" and "error" not in trial.user_attrs


def _restart_interrupted(study: Study) -> None:
    """Enqueues the settings of trials that were still running when an earlier search ended."""
    from optuna.trial import TrialState

    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
    trials = study.trials
    known = [trial.params for trial in trials if not _is_interrupted(trial)]
    known += [trial.system_attrs.get("fixed_params", {}) for trial in trials]
    for trial in filter(_is_interrupted, trials):
        if trial.params and trial.params not in known:
            study.enqueue_trial(trial.params)


def _train(trial: Trial, values: dict[str, str], config: Path, name: str, output_dir: Path) -> float:
    """Runs a trial and returns its score. Stops the trial early if Optuna's pruner suggests it."""
    import optuna

    trial.set_user_attr("values", values)
    folder = output_dir / f"trial_{trial.number:04d}"
    folder.mkdir(exist_ok=True)
    log = folder / "output.log"
    seen = 0
    overrides = [*(f"{key}={value}" for key, value in values.items())]
    overrides.append(f"Global.output_dir={json.dumps(str(folder))}")
    with start_training(config, overrides, log) as process:
        while True:
            ended = process.poll() is not None
            records = read_evaluations(folder)
            for record in records[seen:]:
                trial.report(record.metrics[name], record.epoch)
                if not ended and trial.should_prune():
                    raise optuna.TrialPruned
            seen = len(records)
            if ended:
                break
            time.sleep(_POLL_SECONDS)
    if process.returncode or not records:
        error = last_lines(log)
        trial.set_user_attr("error", error)
        raise UserError(error)
    scores = [record.metrics[name] for record in records]
    return min(scores) if trial.study.direction.name == "MINIMIZE" else max(scores)


def _describe(trial: FrozenTrial, name: str) -> str:
    values = trial.user_attrs.get("values", {})
    settings = " ".join(f"{key}={value}" for key, value in values.items())
    result = f"{name} {trial.value:.4f}" if trial.state.name == "COMPLETE" else trial.state.name.lower()
    if trial.state.name == "FAIL":
        result = f"failed: {trial.user_attrs.get('error', 'interrupted')}"
    return f"trial {trial.number}: {result}: {settings}"


def _write_page(study: Study, name: str, space: Mapping[str, Dimension], output_dir: Path) -> None:
    trials = [trial for trial in study.trials if trial.state.is_finished()]
    sign = -1.0 if study.direction.name == "MAXIMIZE" else 1.0
    trials.sort(key=lambda trial: (trial.state.name != "COMPLETE", sign * (trial.value or 0.0), trial.number))
    rows = [
        [
            str(trial.number),
            "" if trial.value is None else f"{trial.value:.4f}",
            trial.state.name.lower(),
            *(str(trial.user_attrs.get("values", {}).get(key, "")) for key in space),
        ]
        for trial in trials
    ]
    page = render_page(
        f"Search for settings: {name}",
        [
            "The table lists the trials from best to worst. Pruned trials were stopped early. "
            f"The runs are in {output_dir}/trial_*."
        ],
        ["trial", name, "state", *space],
        rows,
        [0],
        _draw(trials, name, space),
    )
    write_text(output_dir / PAGE, page)


def _draw(trials: list[FrozenTrial], name: str, space: Mapping[str, Dimension]) -> Figure:
    """Returns charts that plot the metric against the number of the trial and against each key."""
    from matplotlib.figure import Figure

    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    values: list[Any] = [trial.value for trial in done]
    figure = Figure(figsize=(4 * (1 + len(space)), 3.2), layout="constrained")
    for position, key in enumerate(["trial", *space], start=1):
        axes = figure.add_subplot(1, 1 + len(space), position)
        axes.scatter([trial.number if key == "trial" else trial.params[key] for trial in done], values, s=14)
        dimension = space.get(key)
        if isinstance(dimension, NumberRange) and dimension.log:
            axes.set_xscale("log")
        axes.set_xlabel(key.rpartition(".")[2])
        axes.set_ylabel(name)
        axes.grid(alpha=0.25)
    title = f"{name} after training, one point per complete trial ({len(done)}), {date.today()}"
    figure.suptitle(title, fontsize="small", x=0.02, ha="left", parse_math=False)
    return figure
