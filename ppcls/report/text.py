"""Records as lines for people."""

from __future__ import annotations

import math

from ppcls.report.record import EvalRecord, StepRecord


def _number(value: float) -> str:
    """Returns four decimals, or as many digits where the value is large."""
    return f"{value:.4f}" if abs(value) < 10_000 else f"{value:.4g}"


def _measures(loss: float, metrics: dict[str, float]) -> str:
    return " ".join(f"{name} {_number(value)}" for name, value in {"loss": loss, **metrics}.items())


def clock(seconds: float) -> str:
    """Returns ``h:mm:ss``, or ``?`` where ``seconds`` is not known (NaN, infinite or negative)."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def figures(record: StepRecord) -> str:
    """Returns what was measured: ``loss 0.1234 top1 0.9876 lr 0.00123 1234 img/s data 3%``."""
    speed = f"{record.images_per_second:.{0 if record.images_per_second >= 10 else 1}f} img/s"
    return (
        f"{_measures(record.loss, record.metrics)} lr {record.learning_rate:.4g} {speed} "
        f"data {record.data_wait:.0%}"
    )


def describe(record: StepRecord | EvalRecord) -> str:
    """Returns the record as one line.

    Such as ``[Train] epoch 3/20 step 40/90 loss 0.1234 top1 0.9876 lr 0.00123 1234 img/s data 3% eta
    0:01:12`` or ``[Eval] epoch 3 loss 0.1200 top1 0.9861 360 images 1.2 s (best)``.
    """
    if isinstance(record, StepRecord):
        return (
            f"[Train] epoch {record.epoch}/{record.epochs} step {record.step}/{record.steps_per_epoch} "
            f"{figures(record)} eta {clock(record.eta_seconds)}"
        )
    return (
        f"[Eval] epoch {record.epoch} {_measures(record.loss, record.metrics)} "
        f"{record.images} images {record.seconds:.1f} s{' (best)' if record.best else ''}"
    )
