from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from small_net import CLASSES, MemoryLoader, evaluate

from ppcls.engine.core.precision import FP32, AmpO1, AmpO2, Precision
from ppcls.engine.core.settings import AMP
from ppcls.engine.evaluation.evaluate import EvalResult
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import TopkAcc

CRITERION, METRICS = build_criterion((CELoss(),)), build_metrics((TopkAcc(topk=(1,)),))


class HalfLinear(nn.Layer):
    """A linear layer whose weights and outputs are float16; images with a large first pixel overflow."""

    def __init__(self, dtype: str = "float16") -> None:
        super().__init__()
        self.fc = nn.Linear(48, CLASSES)
        self.fc.weight.set_value(self.fc.weight * 200.0)
        self.to(dtype=dtype)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        weight = self.fc.weight
        logits = image.astype("float32").flatten(1) @ weight.astype("float32")
        return logits.astype(weight.dtype).astype("float32")


class Half(FP32):
    """Float16 weights, without the automatic casting that a CPU lacks."""

    may_overflow = True


def run(precision: Precision, model: nn.Layer, scale: float) -> EvalResult:
    loader = MemoryLoader(size=20, batch_size=8, shuffle=False)
    loader.images[9] *= scale  # in the second batch
    return evaluate(model, loader, CRITERION, METRICS, precision)


@pytest.mark.parametrize(("scale", "recomputed"), [(1.0, 0), (1e3, 1)])
def test_evaluation_batch_that_overflows_is_evaluated_again_in_float32(scale: float, recomputed: int) -> None:
    half, exact = HalfLinear(), HalfLinear("float32")
    exact.fc.weight.set_value(half.fc.weight.astype("float32"))
    expected = run(FP32(), exact, scale)
    found = run(Half(), half, scale)
    assert np.isfinite(found.loss)
    assert found.loss == pytest.approx(expected.loss, rel=1e-3)
    assert (found.metrics, found.images) == (expected.metrics, 20)
    assert (found.recomputed, expected.recomputed) == (recomputed, 0)
    assert half.fc.weight.dtype == paddle.float16, "the model itself keeps its weights"


def test_evaluation_outputs_that_are_nan_in_float32_stay_nan() -> None:
    result = run(Half(), HalfLinear(), float("nan"))
    assert np.isnan(result.loss)
    assert result.recomputed == 1


@pytest.mark.parametrize(
    ("precision", "overflows"),
    [
        (AmpO1(AMP()), True),
        (AmpO1(AMP(use_fp16_test=False)), False),
        (AmpO1(AMP(dtype="bfloat16", use_fp16_test=True)), False),
        (AmpO2(AMP(level="O2", use_fp16_test=False)), True),
        (FP32(), False),
    ],
)
def test_precision_may_overflow_only_if_it_evaluates_in_float16(
    precision: Precision, overflows: bool
) -> None:
    assert precision.may_overflow is overflows
