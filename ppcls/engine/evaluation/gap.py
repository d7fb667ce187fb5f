"""Warns if evaluations are much worse than training, as with statistics of BatchNorm that lag behind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paddle import nn

from ppcls.arch.batch_statistics import largest_momentum
from ppcls.engine.core.ema import INITIAL_SHARE
from ppcls.errors import counted
from ppcls.report.record import EvalRecord, StepRecord

_GAP = 0.5  # difference of an accuracy that overfitting rarely causes
_ACCURACIES = ("top1", "top5", "acc1", "acc5")
_LAG = 3.0  # number of time constants after which an average has forgotten its start
_SHORT_MEMORY = 0.9  # momentum that is suggested, with which statistics follow the weights in 10 updates


class GapMonitor:
    """Compares the accuracy of training with that of evaluations. Warns once per process.

    Args:
        momentum_key: Key of the config that sets the momentum of BatchNorm.
    """

    def __init__(self, momentum_key: str = "Arch.batch_norm_momentum") -> None:
        self._momentum_key = momentum_key
        self._epoch = 0
        self._sums: dict[str, float] = {}
        self._records = 0
        self._warned = False

    def add(self, record: StepRecord) -> None:
        """Adds results of training."""
        if record.epoch != self._epoch:
            self._epoch = record.epoch
            self._sums = dict.fromkeys(record.metrics, 0.0)
            self._records = 0
        for name, value in record.metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._records += 1

    def trained(self, name: str) -> float | None:
        """Returns the mean of a metric in the latest epoch of training; None if it is unknown."""
        return self._sums[name] / self._records if self._records and name in self._sums else None

    def describe(self, record: EvalRecord, model: nn.Layer, initial_share: float = 0.0) -> str:
        """Returns a warning if an evaluation is much worse than training in the same epoch; else "".

        Args:
            record: Results of the evaluation.
            model: Bare model.
            initial_share: Share of the initial weights in the moving average that was evaluated. If it is
                high, it is the cause, which the log has named at the start of the run.
        """
        if self._warned or not self._records or initial_share > INITIAL_SHARE:
            return ""
        trained = {name: total / self._records for name, total in self._sums.items()}
        name = _worst(trained, record.metrics)
        if name is None:
            return ""
        self._warned = True
        text = (
            f"warning: epoch {record.epoch}: {name} is {trained[name]:.2f} in training, but "
            f"{record.metrics[name]:.2f} in the evaluation"
        )
        return f"{text}; {_causes(largest_momentum(model), record.update, self._momentum_key)}"


def _worst(trained: Mapping[str, float], evaluated: Mapping[str, float]) -> str | None:
    """Returns the first accuracy whose value in the evaluation is much lower; None if there is none."""
    for name in _ACCURACIES:
        value = trained.get(name, math.nan)
        if name in evaluated and value - evaluated[name] >= _GAP:
            return name
    return None


def _causes(momentum: float | None, updates: int, key: str) -> str:
    other = "check that DataLoader.Eval has the labels and the normalization of DataLoader.Train"
    if momentum is None:
        return f"{other}, or whether the model overfits"
    lags = momentum > _SHORT_MEMORY
    lower = f"{key}={_SHORT_MEMORY:g} or " if lags else ""
    memory = _LAG / (1.0 - momentum)
    state = f"they follow the weights within about {counted(round(memory), 'update')}"
    if updates < memory:
        state += f", and this run has had {updates:,}"
    return (
        f"the statistics of BatchNorm may lag behind the weights (momentum {momentum:g}: {state}); set "
        f"{lower}Global.precise_batch_norm=2000; otherwise {other}, or whether the model overfits"
    )
