"""Captured steps of AMP O1 round all weights by one operator, and train the same weights as without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn
from paddle.nn import functional as F
from small_net import CLASSES, MemoryLoader, assert_equal, content, make_state

from ppcls.arch.build import build_model
from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.fuse import fuse as fuse_all
from ppcls.arch.fused import amp, convolution, layers, linear, token_layers
from ppcls.arch.fused.cuda import with_zeros
from ppcls.arch.fused.layers import fuse
from ppcls.arch.kernels.geometry import Geometry
from ppcls.engine.core.flat_buffers import FlatBuffers
from ppcls.engine.core.precision import FP32, AmpO1, Precision, build_precision
from ppcls.engine.core.sam import SharpnessAware
from ppcls.engine.core.settings import AMP
from ppcls.engine.cuda_graph import fused_update
from ppcls.engine.cuda_graph.flat_gradients import FlatGradients
from ppcls.engine.cuda_graph.graph import Capture
from ppcls.engine.cuda_graph.graphed_step import EAGER_UPDATES, GraphedStep


@dataclass
class Casts:
    """What the steps of a run rounded.

    Attributes:
        separate: Names of weights that a layer rounded by itself.
        shared: Number of operators that rounded all weights.
        within_graph: Whether each of these operators ran in captured work.
    """

    separate: list[str] = field(default_factory=list)
    shared: int = 0
    within_graph: bool = True


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> Casts:
    found = Casts()
    cast, cast_all = amp.cast, FlatBuffers.cast

    def cast_one(tensor: Tensor, dtype: Any) -> Tensor:
        if isinstance(tensor, paddle.base.framework.EagerParamBase) and tensor.dtype != dtype:
            found.separate.append(tensor.name)
        return cast(tensor, dtype)

    def cast_flat(self: FlatBuffers, first: int, last: int, dtype: str) -> list[Tensor]:
        found.shared += 1
        found.within_graph &= Again.working
        return cast_all(self, first, last, dtype)

    monkeypatch.setattr(amp, "cast", cast_one)
    monkeypatch.setattr(FlatBuffers, "cast", cast_flat)
    return found


class Again:
    """Does the work at each replay, as a CUDA graph does."""

    working = False

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        Again.working = True
        self._work()
        Again.working = False


class CpuProducts:
    """Products of matrices on the CPU; has the interface of `linear.CublasLt`."""

    def can_run(self, _operation: linear.Operation) -> bool:
        return True

    def run(
        self, operation: linear.Operation, tensors: tuple[Tensor, Tensor, Tensor], vector: Tensor | None
    ) -> None:
        first, second, result = tensors
        one, other = (tensor.astype("float32").reshape([-1, tensor.shape[-1]]) for tensor in (first, second))
        if operation.kind == "forward":
            product = one @ other
            product = product if vector is None else product + vector.astype("float32")
        elif operation.kind == "input":
            product = one @ other.t()
        else:
            product = one.t() @ other
            if vector is not None:
                vector.copy_(other.sum(0).astype(vector.dtype), False)
        result.copy_(product.reshape(result.shape).astype(result.dtype), False)


def convolve_on_cpu(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Returns the float32 convolution of half-precision images and weights."""
    assert x.dtype == weight.dtype != paddle.float32
    image = x.astype("float32").transpose([0, 3, 1, 2])
    y = F.conv2d(image, weight.astype("float32"), stride=geometry.stride, padding=geometry.padding[0])
    return y.transpose([0, 2, 3, 1])


class Layers(nn.Layer):
    """A layer of each kind: padded, plain, of patches, of pixels, linear, frozen, and without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        conv = partial(nn.Conv2D, kernel_size=3, padding=1, bias_attr=False, data_format="NHWC")
        self.stem = conv(3, 8)
        self.conv = conv(8, 8)
        self.patches = nn.Conv2D(8, 16, 2, stride=2, data_format="NHWC")
        self.pixels = nn.Conv2D(16, 8, 1, data_format="NHWC")
        self.fc = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 8)
        self.head = nn.Linear(8, CLASSES)
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.stem(image.astype("float32")))
        x = self.pixels(self.patches(self.conv(x)))
        x = self.frozen(self.fc(x.astype("float32").mean([1, 2])))
        return self.head(x.astype("float32"))


class CpuO1(AmpO1):
    """AMP O1 of which only the fused layers take part, because a CPU has few operators in half precision."""

    def forward(self) -> nullcontext[None]:
        return nullcontext()


@pytest.fixture
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Emulates a GPU with AMP O1 in a dtype."""
    emulate_gpu(monkeypatch, fused_update)
    name: str = request.param
    for module in (layers, token_layers):
        monkeypatch.setattr(module, "compute_dtype", lambda _: getattr(paddle, name))

    def append(tensor: Tensor, axis: int, count: int) -> Tensor:
        # A CPU has no gradient of `concat` in bfloat16.
        return with_zeros(tensor.astype("float32"), axis, count).astype(tensor.dtype)

    def widen(x: Tensor, channels: int) -> Tensor:
        return append(x, 3, channels - x.shape[-1])

    products = CpuProducts()
    monkeypatch.setattr(linear, "cublas", lambda: products)
    monkeypatch.setattr(layers, "widen", widen)
    monkeypatch.setattr(layers, "with_zeros", append)
    monkeypatch.setattr(convolution, "find_problem", lambda *_: None)
    monkeypatch.setattr(convolution, "convolve", convolve_on_cpu)
    return name


DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"], indirect=True)
Result = tuple[list[np.ndarray], dict[str, np.ndarray]]
RESTORED = 6  # update after which the model gets its first weights again
UPDATES = 8


def train(
    model: nn.Layer,
    precision: Precision,
    side: int,
    casts: Casts,
    capture: Capture | None,
    accumulate: int,
    rho: float | None,
) -> Result:
    """Returns the results of captured steps, and the weights after them.

    Args:
        side: Side of the images.
        rho: Radius of SAM; None for no SAM.
    """
    loader = MemoryLoader(size=8 * UPDATES // 2 * accumulate, batch_size=8, accumulate=accumulate)
    shape = (len(loader.images), side, side, 3)
    loader.images = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    state = replace(make_state(model=model, precision=precision, loader=loader), schedule=lambda _: 0.02)
    state = state if rho is None else replace(state, sam=SharpnessAware(rho, model))
    first = content(model)
    model.train()
    step = GraphedStep(state, capture, kernels=True)
    rows = []
    for batch in (batch for _ in range(2) for batch in loader):
        rows.append(step(state, batch).numpy())
        if not step.captured:
            casts.separate.clear()  # eager steps round weights in each layer
        if batch.update and state.update == RESTORED:
            model.set_state_dict(first)
    assert state.update == UPDATES > RESTORED > EAGER_UPDATES + 1
    after = content(model)
    for name, parameter in model.named_parameters():
        assert np.isfinite(after[name]).all(), name
        assert parameter.stop_gradient or not np.array_equal(after[name], first[name]), name
    return rows, after


def without_and_with_copies(
    run: Callable[[], Result], monkeypatch: pytest.MonkeyPatch, casts: Casts
) -> tuple[Result, Result]:
    """Returns the results of two runs. ``casts`` are then those of the second one."""
    with monkeypatch.context() as patch:
        patch.setattr(FlatGradients, "can_round", False)
        separate = run()
    assert casts.shared == 0
    assert casts.separate
    casts.separate.clear()
    return separate, run()


@DTYPES
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("rho", [None, 0.3], ids=["plain", "SAM"])
def test_captured_steps_round_all_weights_at_once_and_train_the_same_weights(
    dtype: str, accumulate: int, rho: float | None, casts: Casts, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: set[str] = set()

    def run() -> Result:
        paddle.seed(1)
        model = Layers()
        frozen.update(parameter.name for parameter in model.frozen.parameters())
        fuse(model)
        return train(model, CpuO1(AMP(dtype=dtype, scale_loss=2.0**10)), 4, casts, Again, accumulate, rho)

    separate, shared = without_and_with_copies(run, monkeypatch, casts)
    np.testing.assert_array_equal(separate[0], shared[0])
    assert_equal(shared[1], separate[1])
    passes = 1 if rho is None else 2 * accumulate  # SAM moves the weights in each step
    assert casts.shared == passes * (UPDATES - EAGER_UPDATES)
    assert casts.within_graph
    assert set(casts.separate) <= frozen


@DTYPES
@pytest.mark.parametrize("name", ["stem", "conv", "patches", "pixels", "fc"])
def test_every_kind_of_layer_reads_the_rounded_copy_and_passes_its_gradient_on(name: str, dtype: str) -> None:
    paddle.seed(1)
    model = Layers()
    fuse(model)
    layer = getattr(model, name)
    width = layer.weight.shape[0] if isinstance(layer, nn.Linear) else layer.weight.shape[1]
    shape = [2, width] if isinstance(layer, nn.Linear) else [2, 4, 4, width]
    image = paddle.randn(shape)
    bias = 0 if layer.bias is None else layer.bias.astype(dtype).astype("float32").numpy()
    layer(image).astype("float32").square().sum().backward()
    expected = layer.weight.grad.numpy()
    layer.clear_gradients()

    zeros = paddle.zeros(layer.weight.shape, dtype)
    with amp.rounded_weights([(layer.weight, zeros)]):
        y = layer(image).astype("float32")
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to(bias, y.shape))

    copy = layer.weight.detach().astype(dtype)
    with amp.rounded_weights([(layer.weight, copy)]):
        layer(image).astype("float32").square().sum().backward()
    assert layer.weight.grad.dtype == paddle.float32
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(layer.weight.grad.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float16"], indirect=True)
def test_only_captured_steps_of_o1_with_kernels_share_rounded_weights(dtype: str, casts: Casts) -> None:
    for precision, kernels in ((CpuO1(AMP(dtype=dtype)), False), (FP32(), True)):
        paddle.seed(1)
        model = Layers()
        loader = MemoryLoader(size=40, batch_size=8)
        loader.images = loader.images.transpose(0, 2, 3, 1)
        state = make_state(model=model, precision=precision, loader=loader)
        step = GraphedStep(state, Again, kernels=kernels)
        for batch in loader:
            step(state, batch)
        assert step.captured
        assert casts.shared == 0


class Biased(nn.Layer):
    """Convolutions with a bias, which cuDNN computes."""

    def __init__(self) -> None:
        super().__init__()
        conv = partial(nn.Conv2D, kernel_size=3, padding=1, data_format="NHWC")
        self.first, self.second = conv(3, 16), conv(16, 32, stride=2)
        self.fc = nn.Linear(32, 8)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(F.relu(self.second(F.relu(self.first(image)))).mean([1, 2]))


MODELS: dict[str, Callable[[], nn.Layer]] = {
    "Biased": Biased,
    "ResNet50": partial(build_model, "ResNet50", 8, "NHWC", 3),
    "MobileNetV1": partial(build_model, "MobileNetV1", 8, "NHWC", 3),
    "DeiT": partial(build_model, "DeiT_tiny_patch16_224", 8, "NHWC", 3, img_size=64),
    "ConvNeXt": partial(
        ConvNeXt,
        (1, 1, 2, 1),
        (32, 64, 96, 128),
        class_num=8,
        data_format="NHWC",
        layer_scale_init_value=1.0,
    ),
}


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Makes cuDNN choose deterministic algorithms, also for shapes for which it has chosen others."""
    flag = "FLAGS_cudnn_deterministic"
    before = paddle.get_flags([flag])
    paddle.set_flags({flag: True})
    convolution._plan.cache_clear()
    convolution.find_problem.cache_clear()
    yield
    paddle.set_flags(before)
    convolution._plan.cache_clear()
    convolution.find_problem.cache_clear()


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("accumulate", "rho"), [(1, None), (2, None), (1, 0.05)], ids=["1", "2", "SAM"])
def test_cuda_graph_that_rounds_all_weights_at_once_trains_the_same_weights(
    name: str, accumulate: int, rho: float | None, half: str, casts: Casts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Result:
        paddle.seed(1)
        model = MODELS[name]()
        fuse_all(model, "gpu")
        precision = build_precision(AMP(level="O1", dtype=half, scale_loss=2.0**10), "gpu")
        return train(model, precision, 64, casts, None, accumulate, rho)

    separate, shared = without_and_with_copies(run, monkeypatch, casts)
    np.testing.assert_array_equal(separate[0], shared[0])
    assert_equal(shared[1], separate[1])
    assert casts.shared == 1  # in the capture
    assert casts.separate == []
