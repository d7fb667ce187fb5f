"""A replayed step does what `train_step` does; a CPU does the recorded work again instead of replaying it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn, optimizer
from recording import Notes
from small_net import CLASSES, Flat, MemoryLoader, Net, assert_equal, build_net, content, make_state

from ppcls.arch.layers.drop_path import DropPath, StepMasks, attach_masks
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Order
from ppcls.engine.core.compiled import CompiledModel
from ppcls.engine.core.ema import Ema
from ppcls.engine.core.gradients import ParameterGradients
from ppcls.engine.core.hooks import NO_HOOKS, ProfileWindow, StepHooks
from ppcls.engine.core.observers import Observers, ProgressObserver
from ppcls.engine.core.precision import FP32, AmpO1, Precision, build_precision
from ppcls.engine.core.settings import AMP
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import EAGER, StepFunctions, apply_update, train_step
from ppcls.engine.cuda_graph.graph import Capture, CudaGraph, GraphCapture
from ppcls.engine.cuda_graph.graphed_step import EAGER_UPDATES, GraphedStep
from ppcls.engine.loop import Run
from ppcls.engine.profiling.profile import Profile
from ppcls.engine.train import train as run
from ppcls.errors import UserError
from ppcls.loss.layers import CenterDistance
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import factors, freeze
from ppcls.optimizer.state import changed_by_step, master_weights
from ppcls.recipe.schema import Config
from ppcls.recipe.settings import Global
from ppcls.registry import ARCHITECTURES, OPTIMIZERS
from ppcls.runtime.progress import Progress
from ppcls.runtime.start import Runtime


class Again:
    """Does the work at each replay, and none before, as a CUDA graph."""

    made, replays = 0, 0

    def __init__(self, work: Callable[[], None]) -> None:
        type(self).made += 1
        self._work = work

    def replay(self) -> None:
        type(self).replays += 1
        self._work()


class Scaled(AmpO1):
    """Loss scaling alone, in float32: the part of mixed precision that a CPU can do."""

    def forward(self):  # type: ignore[no-untyped-def]
        return paddle.amp.auto_cast(enable=False)


def scaled() -> Precision:
    return Scaled(AMP(scale_loss=2.0**10))


def train(state: TrainState, epochs: int, *, captured: bool) -> list[np.ndarray]:
    """Trains, and returns what each step returned."""
    state.network.train()
    step = GraphedStep(state, Again) if captured else train_step
    rows = []
    for _ in range(epochs):
        for batch in state.loader:
            rows.append(step(state, batch).numpy())
    return rows


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("kind", [optimizer.Momentum, optimizer.SGD, optimizer.AdamW])
@pytest.mark.parametrize("precision", [FP32, scaled])
def test_graphed_step_trains_the_same_weights(
    accumulate: int, kind: type[optimizer.Optimizer], precision: Callable[[], Precision]
) -> None:
    runs = []
    for captured in (False, True):
        loader = MemoryLoader(size=52, batch_size=8, accumulate=accumulate)  # the last batch has 4 rows
        state = make_state(kind=kind, decay=0.9, loader=loader, precision=precision())
        rows = train(state, 4, captured=captured)
        runs.append((rows, state))
    (rows, eager), (others, replayed) = runs
    np.testing.assert_array_equal(rows, others)
    assert_equal(content(replayed.model), content(eager.model))
    assert replayed.ema is not None
    assert eager.ema is not None
    assert_equal(replayed.ema.state_dict(), eager.ema.state_dict())
    assert replayed.update == eager.update
    assert replayed.precision.state_dict() == eager.precision.state_dict()


SPECS = {
    "Lamb": {"name": "Lamb", "weight_decay": 0.1, "clip_norm": 1.0},
    "LARS": {"name": "LARS", "lars_coeff": 0.1},
    "Lion": {"name": "Lion", "weight_decay": 0.1},
    "Muon": {"name": "Muon", "weight_decay": 0.1},
    "ScheduleFreeAdamW": {"name": "ScheduleFreeAdamW", "weight_decay": 0.1},
    "frozen": {"name": "Momentum", "freeze": ["conv.*", "bn.*"]},
    "by name": {
        "name": "Momentum",
        "regularizer": {"name": "L2", "coeff": 0.1},
        "by_name": [{"pattern": "fc.*", "lr_mult": 3, "decay_mult": 0.5}],
    },
}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("precision", [FP32, scaled])
def test_graphed_step_with_config_optimizers_trains_the_same_weights(
    kind: str, precision: Callable[[], Precision]
) -> None:
    fields = {**SPECS[kind], "lr": {"name": "Constant", "learning_rate": 0.1}}
    spec = OPTIMIZERS[fields.pop("name")].model_validate(fields)
    runs = []
    for captured in (False, True):
        state = make_state(loader=MemoryLoader(size=52, batch_size=8), precision=precision())
        frozen = freeze(spec, state.model)
        made = build_optimizer(spec, state.model, factors=factors(spec, state.model))
        ema = Ema(state.model, 0.9, warmup=True, frozen=frozen)
        state = replace(state, optimizer=made, frozen=frozen, ema=ema, gradients=ParameterGradients(made))
        before = content(state.model)
        rows = train(state, 2, captured=captured)
        runs.append((rows, state))
        after = content(state.model)
        assert {name for name in after if (after[name] == before[name]).all()} == frozen
    (rows, eager), (others, replayed) = runs
    np.testing.assert_array_equal(rows, others)
    assert_equal(content(replayed.model), content(eager.model))
    assert replayed.ema is not None
    assert eager.ema is not None
    assert_equal(replayed.ema.state_dict(), eager.ema.state_dict())


def test_graphed_step_captures_once_and_replays_full_and_partial_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Again, "made", 0)
    state = make_state(loader=MemoryLoader(size=20, batch_size=8))
    eager, replayed = [], []

    def noting(
        state: TrainState, batch: Batch, hooks: StepHooks, functions: StepFunctions = EAGER
    ) -> paddle.Tensor:
        (eager if functions.apply_update is apply_update else replayed).append(batch.valid)
        return train_step(state, batch, hooks, functions)

    monkeypatch.setattr("ppcls.engine.cuda_graph.graphed_step.train_step", noting)
    train(state, 3, captured=True)
    assert Again.made == 3  # forward pass; backward pass; update
    assert eager == [8, 8, 4]
    assert replayed == [8, 8, 4] * 2


def test_graphed_step_of_a_rank_without_valid_rows_trains_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The graphs are due in the fourth step, the last one of the epoch, where the rank has no valid row."""
    monkeypatch.setattr(Again, "made", 0)
    runs = []
    for captured in (False, True):
        loader = MemoryLoader(size=64 * 3 + 4, batch_size=32)
        loader.order = Order(ShuffledSampler(64 * 3 + 4), 32, rank=1, world=2, group=4)
        state = make_state(loader=loader, precision=scaled())
        runs.append((train(state, 2, captured=captured), content(state.model)))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert [row[0] == 0 for row in runs[1][0]] == [False, False, False, True] * 2
    assert_equal(runs[1][1], runs[0][1])
    assert Again.made == 3


class Named(nn.Layer):
    """Outputs of several names, of which two are the same tensor and one is not in the loss; with centers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc, self.centers = (
            nn.Linear(48, 6),
            nn.Linear(6, CLASSES),
            CenterDistance(CLASSES, 6, 0.5),
        )

    def forward(self, image: paddle.Tensor) -> dict[str, paddle.Tensor]:
        features = self.body(image.flatten(1)) + self.centers.zeros(len(image)).unsqueeze(1)
        unused = features * 2.0
        return {"features": features, "logits": self.fc(features), "backbone": features, "unused": unused}

    def loss(self, outputs: dict[str, paddle.Tensor], label: paddle.Tensor) -> paddle.Tensor:
        entropy = nn.functional.cross_entropy(outputs["logits"], label)
        return entropy + self.centers(outputs["features"], label) + outputs["backbone"].square().mean()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_graphed_step_with_weights_in_the_loss_trains_the_same_weights(accumulate: int) -> None:
    runs = []
    for captured in (False, True):
        loader = MemoryLoader(size=64 * 3 + 4, batch_size=32, accumulate=accumulate)
        # In the last step of an epoch no row is valid.
        loader.order = Order(ShuffledSampler(64 * 3 + 4), 32, rank=1, world=2, group=4, accumulate=accumulate)
        paddle.seed(1)
        model = Named()
        state = replace(make_state(loader=loader, model=model), criterion=model.loss)
        runs.append((train(state, 4, captured=captured), content(model)))
    # The features have several gradients, which the graph adds in another order.
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-5)
    for name, weight in runs[0][1].items():
        np.testing.assert_allclose(runs[1][1][name], weight, rtol=1e-4, atol=1e-6, err_msg=name)


def test_whole_run_replays_its_steps(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of tools/train.py, whose steps are also reported to the watchdog."""
    folders = [tmp_path / name for name in ("plain", "recorded")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)
    plain = content(run(make_config("plain", Arch__name="Small"), cpu, folders[0]).model)
    monkeypatch.setattr(Again, "replays", 0)
    monkeypatch.setattr(
        "ppcls.engine.execution.choose_step", lambda state, *_: (GraphedStep(state, Again), "steps: recorded")
    )
    assert_equal(content(run(make_config("recorded", Arch__name="Small"), cpu, folders[1]).model), plain)
    # Five batches after the eager updates: forward pass, backward pass, update. Then two of evaluation.
    assert Again.replays == 3 * 5 + 2


@pytest.mark.parametrize("kind", [optimizer.Momentum, optimizer.SGD])
@pytest.mark.parametrize("precision", [FP32, scaled])
def test_graphed_step_captured_tensors_never_move(
    kind: type[optimizer.Optimizer], precision: Callable[[], Precision]
) -> None:
    """A GPU works on the same memory at each replay."""
    loader, places = MemoryLoader(size=52, batch_size=8), []
    state = make_state(kind=kind, decay=0.9, loader=loader, precision=precision())

    def where() -> list[int]:
        assert state.ema is not None
        own = [*state.model.state_dict().values(), *changed_by_step(state.optimizer)]
        return [each.data_ptr() for each in [*own, *state.ema.state_dict().values()]]

    def record(work: Callable[[], None]) -> Again:
        places.append(where())
        return Again(work)

    step = GraphedStep(state, record)
    for batch in state.loader:
        step(state, batch)
    assert len(places) == 3
    assert all(each == where() for each in places)


def test_profiled_step_is_eager_and_later_steps_are_replayed(
    cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Again, "replays", 0)
    state = make_state(loader=MemoryLoader(size=80, batch_size=8))
    profile = Profile(ProfileWindow(2, 4), cpu, 8, tmp_path / "profile")
    observers = Observers([ProgressObserver(Progress(), 1), profile])
    step, notes = profile.choose_step(GraphedStep(state, Again)), Notes([])
    run = Run(state, Global(), notes, reporter=notes, step=step, observers=observers)  # type: ignore[arg-type]
    replays = []
    for batch in state.loader:
        observers.begin_batch()
        run.step(state, batch, observers)
        observers.end_batch(run, batch.update)
        replays.append(Again.replays)
    observers.on_end(run, None)
    # Four profiled or earlier steps, three eager ones before the capture, three replayed ones.
    assert replays == [0] * (4 + EAGER_UPDATES) + [3, 6, 9]


def test_graphed_step_overflow_changes_only_the_scale() -> None:
    state = make_state(loader=MemoryLoader(size=16, batch_size=8), precision=scaled())
    step = GraphedStep(state, Again)
    state.network.train()
    batches = [batch for _ in range(3) for batch in state.loader]
    for batch in batches[: EAGER_UPDATES + 1]:
        step(state, batch)
    before, scale = content(state.model), state.precision.state_dict()["scale"]
    bad = batches[EAGER_UPDATES + 1]
    bad.image.fill_(float("inf"))
    step(state, bad)
    assert_equal(content(state.model), before)
    assert state.precision.state_dict()["scale"] == scale / 2
    assert state.precision.outcomes().nonfinite.tolist() == [False] * (EAGER_UPDATES + 1) + [True]


def test_graphed_step_float32_reports_nonfinite_gradients() -> None:
    state = make_state(loader=MemoryLoader(size=16, batch_size=8), model=Flat())
    step = GraphedStep(state, Again)
    batches = [batch for _ in range(3) for batch in state.loader]
    batches[EAGER_UPDATES + 1].image.fill_(float("inf"))
    for batch in batches[: EAGER_UPDATES + 2]:
        step(state, batch)
    assert state.precision.outcomes().nonfinite.tolist() == [False] * (EAGER_UPDATES + 1) + [True]


class Noisy(Net):
    """A user's `Net` that draws random numbers without a layer that says so."""

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        kept = nn.functional.dropout(image, 0.5, training=self.training)
        return super().forward(kept + 0.1 * paddle.randn(image.shape))


def test_network_that_draws_random_numbers_is_not_captured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay would repeat the numbers."""
    monkeypatch.setattr(Again, "made", 0)
    state = make_state(model=Noisy(), loader=MemoryLoader(size=48, batch_size=8))
    train(state, 1, captured=True)
    assert Again.made == 0
    assert state.update == 6
    assert capsys.readouterr().err.count("no CUDA graph: ") == 1


def test_required_graphs_of_a_network_that_draws_random_numbers_are_an_error() -> None:
    state = make_state(model=Noisy(), loader=MemoryLoader(size=48, batch_size=8))
    step = GraphedStep(state, Again, required=True)
    batches = list(state.loader)
    for batch in batches[:EAGER_UPDATES]:
        step(state, batch)
    with pytest.raises(UserError, match=r"^Global\.cuda_graph: .* draws random numbers"):
        step(state, batches[EAGER_UPDATES])
    assert state.update == EAGER_UPDATES


class Dropping(Net):
    """A `Net` with drop path and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = DropPath(0.5)
        self.dropout = nn.Dropout(0.5)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        x = self.bn(self.conv(image))
        x = nn.functional.relu(x + self.skip(x))
        return self.fc(self.dropout(x).mean([2, 3]))


def train_dropping(amp: AMP | None, *, compiled: bool, capture: Capture | None = None) -> np.ndarray:
    """Trains a `Dropping`, and returns what each step returned. With ``capture``, the steps are captured."""
    paddle.seed(1)
    loader = MemoryLoader(size=48, batch_size=8, accumulate=2)
    model = Dropping()
    state = make_state(model=model, decay=0.9, loader=loader, precision=build_precision(amp, "gpu"))
    masks = StepMasks(1, 0)
    attach_masks(model, masks)
    network = paddle.jit.to_static(CompiledModel(model, masks), full_graph=True) if compiled else model
    state = replace(state, network=network, masks=masks)
    state.network.train()
    step = train_step if capture is None else GraphedStep(state, capture)
    return np.stack([step(state, batch, NO_HOOKS).numpy() for _ in range(4) for batch in loader])


def test_graphed_step_of_a_compiled_model_draws_the_factors_of_eager_steps() -> None:
    rows = train_dropping(None, compiled=False)
    np.testing.assert_allclose(train_dropping(None, compiled=True), rows, rtol=1e-5)
    np.testing.assert_allclose(train_dropping(None, compiled=True, capture=Again), rows, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("amp", [None, AMP(level="O1"), AMP(level="O2")], ids=["float32", "O1", "O2"])
def test_cuda_graph_of_a_compiled_model_draws_the_factors_of_eager_steps(amp: AMP | None) -> None:
    rows = train_dropping(amp, compiled=False)
    tolerance = 1e-4 if amp is None else 2e-2  # float16 sums in another order
    for capture in (None, GraphCapture()):
        others = train_dropping(amp, compiled=True, capture=capture)
        np.testing.assert_allclose(others, rows, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_cuda_graph_with_config_optimizers_trains_the_same_weights(kind: str, level: str) -> None:
    fields = {**SPECS[kind], "lr": {"name": "Constant", "learning_rate": 0.01}}
    spec = OPTIMIZERS[fields.pop("name")].model_validate(fields)
    runs = []
    for captured in (False, True):
        precision = build_precision(AMP(level=level), "gpu")
        state = make_state(loader=MemoryLoader(size=52, batch_size=8))
        frozen = freeze(spec, state.model)
        made = build_optimizer(
            spec, state.model, precision.master_weights, factors=factors(spec, state.model)
        )
        precision.prepare(state.model, made)
        ema = Ema(state.model, 0.9, master_weights(made, state.model), warmup=True, frozen=frozen)
        state = replace(state, optimizer=made, precision=precision, frozen=frozen, ema=ema)
        state = replace(state, gradients=ParameterGradients(made))
        before = content(state.model)
        state.network.train()
        step = GraphedStep(state) if captured else train_step
        rows = [step(state, batch, NO_HOOKS) for _ in range(3) for batch in state.loader]
        runs.append((np.stack([row.numpy() for row in rows]), state))
        after = content(state.model)
        assert {name for name in after if (after[name] == before[name]).all()} >= frozen
        assert all(np.isfinite(each).all() for each in after.values())
    (rows, eager), (others, replayed) = runs
    np.testing.assert_allclose(others, rows, rtol=5e-2, atol=5e-2)
    assert replayed.precision.state_dict() == eager.precision.state_dict()


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("amp", [None, AMP(level="O1"), AMP(level="O2")], ids=["float32", "O1", "O2"])
def test_cuda_graph_trains_the_same_weights(amp: AMP | None, accumulate: int) -> None:
    runs = []
    for captured in (False, True):
        loader = MemoryLoader(size=52, batch_size=8, accumulate=accumulate)
        state = make_state(decay=0.9, loader=loader, precision=build_precision(amp, "gpu"))
        state.network.train()
        step = GraphedStep(state) if captured else train_step
        rows = [step(state, batch, NO_HOOKS) for _ in range(4) for batch in state.loader]
        runs.append((np.stack([row.numpy() for row in rows]), state))
    (rows, eager), (others, replayed) = runs
    tolerance = 1e-5 if amp is None else 2e-2  # float16 sums in another order
    np.testing.assert_allclose(others, rows, rtol=tolerance, atol=tolerance)
    for name, weight in content(eager.model).items():
        np.testing.assert_allclose(content(replayed.model)[name], weight, rtol=tolerance, atol=tolerance)
    assert replayed.precision.state_dict() == eager.precision.state_dict()


@pytest.mark.gpu
def test_whole_run_on_a_gpu_replays_its_steps(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, replays = CudaGraph.replay, []

    def counted(graph: CudaGraph) -> None:
        replays.append(graph)
        replay(graph)

    monkeypatch.setattr(CudaGraph, "replay", counted)
    config = make_config(Global__device="gpu", Global__cuda_graph=True)
    state = run(config, Runtime(device="gpu", device_id=0, cores=2), tmp_path)
    assert len(replays) == 3 * 5 + 2  # and two batches of an evaluation
    assert all(np.isfinite(each).all() for each in content(state.model).values())


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("amp", [None, AMP(level="O1"), AMP(level="O2")], ids=["float32", "O1", "O2"])
def test_cuda_graph_of_partial_batches_trains_the_weights_of_eager_steps(
    amp: AMP | None, accumulate: int
) -> None:
    """Of the last batch of an epoch, another number of rows is valid in each run, down to a single one."""
    for size in (8 * 7 + 4, 8 * 6 + 1):
        runs = []
        for captured in (False, True):
            loader = MemoryLoader(size=size, batch_size=8, accumulate=accumulate)
            state = make_state(decay=0.9, loader=loader, precision=build_precision(amp, "gpu"))
            state.network.train()
            step = GraphedStep(state) if captured else train_step
            rows = [step(state, batch, NO_HOOKS) for _ in range(2) for batch in loader]
            runs.append((np.stack([row.numpy() for row in rows]), content(state.model)))
        (rows, eager), (others, replayed) = runs
        tolerance = 1e-5 if amp is None else 2e-2  # float16 sums in another order
        np.testing.assert_allclose(others, rows, rtol=tolerance, atol=tolerance)
        for name, weight in eager.items():
            np.testing.assert_allclose(replayed[name], weight, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.gpu
def test_cuda_graph_of_a_loss_with_weights_trains_the_weights_of_eager_steps() -> None:
    runs = []
    for captured in (False, True):
        loader = MemoryLoader(size=8 * 7 + 4, batch_size=8)
        paddle.seed(1)
        model = Named()
        state = replace(make_state(loader=loader, model=model), criterion=model.loss)
        step = GraphedStep(state) if captured else train_step
        rows = [step(state, batch, NO_HOOKS) for _ in range(2) for batch in loader]
        runs.append((np.stack([row.numpy() for row in rows]), content(model)))
    np.testing.assert_allclose(runs[1][0], runs[0][0], rtol=1e-4, atol=1e-4)
    for name, weight in runs[0][1].items():
        np.testing.assert_allclose(runs[1][1][name], weight, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.gpu
def test_partial_batches_after_the_capture_need_no_further_memory() -> None:
    """The eager step that they took before needed the memory of all activations again."""
    loader = MemoryLoader(size=8 * 7 + 4, batch_size=8)
    loader.images = np.tile(loader.images, (1, 1, 32, 32))  # 128 px: activations of 32 MiB
    state = make_state(model=Net(width=64), loader=loader)
    state.network.train()
    step, reserved = GraphedStep(state), []
    for _ in range(3):
        for batch in loader:
            step(state, batch, NO_HOOKS)
            reserved.append(paddle.device.cuda.memory_reserved())
    full = reserved[EAGER_UPDATES + 1]
    assert max(reserved[EAGER_UPDATES + 1 :]) <= full * 1.1
