"""Evaluations that replay a CUDA graph; a CPU does the recorded work again instead of replaying it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import pytest
from small_net import MemoryLoader, make_state

from ppcls.engine.core.precision import build_precision
from ppcls.engine.core.settings import AMP
from ppcls.engine.cuda_graph.graphed_forward import GraphedForward
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.evaluation.evaluate import Evaluator
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import TopkAcc

CRITERION, METRICS = build_criterion((CELoss(),)), build_metrics((TopkAcc(topk=(1,)),))


class Again:
    """Does the work at each replay, as a CUDA graph does."""

    replays = 0

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        type(self).replays += 1
        self._work()


def test_graphed_forward_waits_for_the_captured_step_and_then_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Again, "replays", 0)
    state = make_state(loader=MemoryLoader(size=40, batch_size=8))
    step = GraphedStep(state, Again)
    forward = GraphedForward(step.capture, lambda: step.captured)
    images = [batch.image for batch in MemoryLoader(size=40, batch_size=8, shuffle=False)]

    def evaluate() -> int:
        """Evaluates all images; returns the number of replays."""
        state.model.eval()
        before = Again.replays
        with paddle.no_grad():
            for image in images:
                np.testing.assert_array_equal(forward(state.model, image).numpy(), state.model(image).numpy())
        state.model.train()
        return Again.replays - before

    assert evaluate() == 0
    for batch in state.loader:
        step(state, batch)
    assert step.captured
    assert [evaluate(), evaluate()] == [5, 5]


def test_graphed_forward_keeps_the_graphs_of_the_first_four_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Again, "replays", 0)
    model = make_state(loader=MemoryLoader(size=40, batch_size=8)).model
    model.eval()
    forward, replays = GraphedForward(Again), []
    with paddle.no_grad():
        for _ in range(4):
            for rows in (8, 3, 1, 2, 5):
                image = paddle.randn([rows, 3, 4, 4])
                np.testing.assert_array_equal(forward(model, image).numpy(), model(image).numpy())
            replays.append(Again.replays)
    assert replays == [0, 0, 4, 8], "two eager batches per shape; the fifth shape always runs eagerly"


@pytest.mark.gpu
@pytest.mark.parametrize("amp", [None, AMP(level="O1"), AMP(level="O2")], ids=["float32", "O1", "O2"])
def test_graphed_forward_on_a_gpu_evaluates_as_eager(amp: AMP | None) -> None:
    state = make_state(loader=MemoryLoader(size=40, batch_size=8), precision=build_precision(amp, "gpu"))
    step = GraphedStep(state)
    forward, results = GraphedForward(step.capture, lambda: step.captured), []
    for _ in range(3):
        state.network.train()
        for batch in state.loader:
            step(state, batch)
        data = {"Eval": MemoryLoader(size=37, batch_size=8, shuffle=False)}
        eager = Evaluator(data, CRITERION, METRICS, state.precision)(state.model)
        replayed = Evaluator(data, CRITERION, METRICS, state.precision, forward=forward)(state.model)
        assert replayed.loss == pytest.approx(eager.loss, rel=1e-3)
        assert replayed.metrics == eager.metrics
        results.append(eager.loss)
    assert len(set(results)) == 3, "the graph reads the current weights"
