"""Ranks exchange groups of gradients during captured backward passes, with the weights of one group."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import paddle
import pytest
from exchange_cases import CASES, EPOCHS, GPU_CASES, GROUP_SIZE, Again, Case, Tied, make_loader, train
from hypothesis import given
from hypothesis import strategies as st
from launched_run import run
from paddle import nn, optimizer
from paddle.base import core
from paths import SUPPORT
from small_net import assert_equal, make_state

from ppcls.arch.build import build_model
from ppcls.engine.core.gradients import ParameterGradients
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.core.precision import FP32, AmpO1
from ppcls.engine.core.settings import AMP
from ppcls.engine.cuda_graph import graph, graphed_step
from ppcls.engine.cuda_graph.exchange_groups import (
    ExchangeSettings,
    consecutive_ranges,
    divide_into_groups,
)
from ppcls.engine.cuda_graph.flat_gradients import FlatGradients
from ppcls.engine.cuda_graph.graph import Capture, CudaGraph, GraphCapture, cut
from ppcls.engine.cuda_graph.graphed_step import EAGER_UPDATES, GraphedStep
from ppcls.engine.profiling.scaling import ScalingMeter
from ppcls.errors import UserError
from ppcls.optimizer.state import trained
from ppcls.runtime.start import Runtime

TWO_RANKS = Runtime(world_size=2)


class EqualRanks:
    """An exchange between two ranks with equal gradients.

    The sum is that of the values at the start, and replaces them in ``wait``.

    Attributes:
        events: "exchange" and "wait" in their order, and what a test adds.
        sizes: Numbers of elements of the exchanged tensors, in their order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.sizes: list[int] = []
        monkeypatch.setattr(paddle.distributed, "all_reduce", self._all_reduce)
        monkeypatch.setattr(ParameterGradients, "all_reduce", lambda _: None)  # the mean of equal gradients
        monkeypatch.setattr(graphed_step, "all_gather", lambda values, world: [values] * world)

    def _all_reduce(self, tensor: paddle.Tensor, *, sync_op: bool) -> Any:
        assert not sync_op
        self.events.append("exchange")
        self.sizes.append(tensor.size)
        total = tensor * 2

        def wait() -> None:
            self.events.append("wait")
            tensor.copy_(total, False)

        return SimpleNamespace(wait=wait)


class Scaled(AmpO1):
    """Loss scaling alone, in float32: the part of mixed precision that a CPU can do."""

    def forward(self):  # type: ignore[no-untyped-def]
        return paddle.amp.auto_cast(enable=False)


def train_alone(case: Case, group_size: int | None, capture: Capture, run: Runtime, **options: Any) -> Any:
    """Returns the weights of a training on the batches of one rank."""
    return train(case, group_size, capture, run, make_loader(case, Runtime()), **options)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_groups_train_the_weights_of_one_group_and_of_one_rank(
    case: Case, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor of 1/2 on the loss and the sum of two equal gradients change no bit."""

    def weights(group_size: int | None, run: Runtime) -> Any:
        precision = Scaled(AMP(scale_loss=2.0**10)) if scaled else FP32()
        return train_alone(case, group_size, Again, run, precision=precision)

    exchange = EqualRanks(monkeypatch)
    alone = weights(GROUP_SIZE, Runtime())
    assert not exchange.events
    assert_equal(weights(None, TWO_RANKS), alone)
    exchanges = len(exchange.events)
    assert_equal(weights(GROUP_SIZE, TWO_RANKS), alone)
    assert len(exchange.events) > 2 * exchanges
    assert exchange.events.count("exchange") == exchange.events.count("wait")


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("sam", [False, True])
def test_exchange_begins_within_the_last_backward_pass_of_an_update(
    accumulate: int, sam: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = EqualRanks(monkeypatch)

    def before_step(model: nn.Layer) -> None:
        exchange.events.append("step")
        if exchange.events.count("step") == 1:
            for name, parameter in model.named_parameters():
                if not parameter.stop_gradient:
                    parameter.register_hook(lambda _, name=name: exchange.events.append(name))

    case = Case(accumulate=accumulate, sam=sam)
    train_alone(case, GROUP_SIZE, Again, TWO_RANKS, before_step=before_step)
    steps = " ".join(exchange.events).split("step")[1:]
    flat = [step.split() for step in steps[EAGER_UPDATES * accumulate :]]
    assert len(flat) == 3 * accumulate * (EPOCHS - 1)
    for number, events in enumerate(flat):
        passes = [place for place, event in enumerate(events) if event == "first.weight"]
        assert len(passes) == 1 + sam
        started = [place for place, event in enumerate(events) if event == "exchange"]
        # An epoch has 3 batches, so its last update may have fewer steps.
        assert bool(started) == (number % 3 == 2 or number % 3 % accumulate == accumulate - 1)
        if started:
            assert started[0] < passes[-1] < started[-1]
            assert not sam or passes[0] < started[0]


def test_without_overlap_the_exchange_follows_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of the scaling time the exchange alone."""
    exchange = EqualRanks(monkeypatch)
    model = Tied()
    state = make_state(model=model, loader=make_loader(Case(), Runtime()))
    state = replace(state, criterion=model.loss, runtime=TWO_RANKS)
    step = GraphedStep(state, Again, group_size=GROUP_SIZE)
    meter = ScalingMeter(state, 18, lambda _: "")  # updates 9 to 12 are samples
    run_step = meter.choose_step(step)
    model.first.weight.register_hook(lambda _: exchange.events.append("backward"))
    overlapping = []
    for _ in range(5):
        for batch in state.loader:
            exchange.events.clear()
            run_step(state, batch, NO_HOOKS)
            overlapping.append("exchange" in exchange.events[: exchange.events.index("backward")])
    assert overlapping == [False] * EAGER_UPDATES + [True] * 6 + [False] * 4 + [True] * 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rank_without_valid_rows_exchanges_the_same_groups(
    accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a rank does not capture its steps, while others already replay theirs."""
    exchange = EqualRanks(monkeypatch)
    model = Tied()
    loader = make_loader(Case(accumulate=accumulate), Runtime())
    state = make_state(model=model, loader=loader)
    state = replace(state, criterion=model.loss, runtime=TWO_RANKS)
    step = GraphedStep(state, Again, group_size=GROUP_SIZE)
    found = []
    for number in range(12):
        for batch in loader:
            exchange.sizes.clear()
            step(state, replace(batch, valid=0) if number < 8 else batch)
            if exchange.sizes:
                found.append((step.captured, list(exchange.sizes)))
    assert {captured for captured, _ in found} == {False, True}
    assert len(found[0][1]) > 4
    assert all(sizes == found[0][1] for _, sizes in found)


SHAPES = st.lists(st.integers(1, 400), min_size=1, max_size=12)


@given(SHAPES, st.lists(st.sampled_from([1.0, 2.0]), min_size=12, max_size=12), st.integers(4, 5000))
def test_groups_have_each_weight_once_in_the_order_of_the_backward_pass(
    sizes: list[int], rates: list[float], group_size: int
) -> None:
    weights = [paddle.create_parameter([size], "float32") for size in sizes]
    groups = divide_into_groups(weights, group_size)
    assert [weight.name for group in groups[::-1] for weight in group] == [weight.name for weight in weights]
    whole = [sum(4 * weight.size for weight in group) for group in groups]
    assert all(size >= group_size for size in whole[1:])  # all but the group of the last layers
    assert all(size - 4 * group[-1].size < group_size for size, group in zip(whole, groups, strict=True))
    for weight, rate in zip(weights, rates, strict=False):
        weight.optimize_attr["learning_rate"] = rate
    ordered = trained(optimizer.SGD(parameters=weights))
    place_of = {weight.name: place for place, weight in enumerate(ordered)}
    covered = []
    for group in groups:
        for first, last in consecutive_ranges(ordered, [place_of[weight.name] for weight in group]):
            covered += range(first, last + 1)
    assert sorted(covered) == list(range(len(weights)))


def test_ranges_end_at_another_dtype() -> None:
    weights = [paddle.create_parameter([2], dtype) for dtype in ("float64", "float32", "float32", "float32")]
    assert consecutive_ranges(weights, [3, 0, 1]) == [(0, 0), (1, 1), (3, 3)]
    assert consecutive_ranges(weights, [2, 1, 0]) == [(0, 0), (1, 2)]


@pytest.mark.parametrize("megabytes", [1, 8, 25])
def test_groups_are_those_of_data_parallel(megabytes: int) -> None:
    weights = build_model("ResNet50", 1000, "NCHW").parameters()
    limits = [1 << 20, megabytes << 20]
    expected = core.eager_assign_group_by_size(weights, [False] * len(weights), limits)
    place_of = {weight.name: place for place, weight in enumerate(weights)}
    groups = divide_into_groups(weights, megabytes << 20)
    assert [[place_of[weight.name] for weight in group] for group in groups[::-1]] == expected
    assert len(divide_into_groups(weights, 1000 << 20)) == 1


def test_gradient_missing_in_a_group_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(400, 4), nn.Linear(4, 4))
    flat = FlatGradients(optimizer.SGD(parameters=model.parameters()), None, 1, ExchangeSettings(2, 64))
    with pytest.raises(UserError, match="has no gradient, so the step cannot be captured"), flat.collecting():
        model[1](paddle.ones([1, 4])).sum().backward()


class FakeGraph:
    """Records what happens to a graph of Paddle."""

    events: ClassVar[list[str]] = []
    count = 0

    def __init__(self, _place: object) -> None:
        FakeGraph.count += 1
        self._number = FakeGraph.count

    def capture_begin(self) -> None:
        self.events.append(f"begin {self._number}")

    def capture_end(self) -> None:
        self.events.append(f"end {self._number}")

    def replay(self) -> None:
        self.events.append(f"replay {self._number}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events of graphs that are captured by `FakeGraph`."""
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(paddle.device.cuda, name, lambda: None)
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle, "CUDAPlace", lambda number: number)
    monkeypatch.setattr(graph, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(FakeGraph, "events", [])
    monkeypatch.setattr(FakeGraph, "count", 0)
    return FakeGraph.events


def test_cut_divides_a_capture_into_parts(events: list[str]) -> None:
    workspace: Any = SimpleNamespace(lent=nullcontext)

    def work() -> None:
        for number in (1, 2, 3):
            events.append(f"work {number}")
            if number < 3:
                cut(lambda number=number: events.append(f"between {number}"))

    captured = CudaGraph(work, workspace)
    assert events == [f"{event} {number}" for number in (1, 2, 3) for event in ("begin", "work", "end")]
    events.clear()
    captured.replay()
    assert events == ["replay 1", "between 1", "replay 2", "between 2", "replay 3"]
    events.clear()
    work()
    assert events == ["work 1", "between 1", "work 2", "between 2", "work 3"]


def test_cut_after_a_failed_capture_calls_the_function(events: list[str]) -> None:
    def fail() -> None:
        raise RuntimeError("not permitted when stream is capturing")

    with pytest.raises(UserError, match="not permitted when stream is capturing"):
        CudaGraph(fail, SimpleNamespace(lent=nullcontext))  # type: ignore[arg-type]
    cut(lambda: events.append("between"))
    assert events[-1] == "between"


def test_two_ranks_train_the_weights_of_one_group(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    config = make_yaml("run", Global__device="cpu")
    run(SUPPORT / "exchange_run.py", str(config), str(tmp_path), ranks=2, logs=tmp_path / "log")
    one, other = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    assert one == other
    assert one.keys() == CASES.keys()


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CASES, *GPU_CASES])
def test_cuda_graphs_of_groups_train_the_weights_of_one_group(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one GPU, with an exchange between the parts that doubles the gradients."""
    case = (CASES | GPU_CASES)[name]
    exchange = EqualRanks(monkeypatch)
    one = train_alone(case, None, GraphCapture(), TWO_RANKS)
    exchanges = len(exchange.events)
    assert_equal(train_alone(case, GROUP_SIZE, GraphCapture(), TWO_RANKS), one)
    assert len(exchange.events) > 2 * exchanges
