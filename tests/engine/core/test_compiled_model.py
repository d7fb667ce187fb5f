from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn.utils import weight_norm

from ppcls.arch.build import build_model
from ppcls.arch.section import Arch
from ppcls.engine.core import compiled
from ppcls.engine.core.compiled import (
    CompiledModel,
    compile_model,
    merge_gradient_sums,
    sum_gradients_in_convolutions,
)
from ppcls.errors import UserError
from ppcls.runtime.paddle_import import stop_cudnn_search
from ppcls.runtime.start import Runtime

SEARCH = "FLAGS_cudnn_exhaustive_search"


@contextmanager
def static_mode() -> Iterator[None]:
    """Has Paddle make programs of operators with names, as 2.6 does."""
    paddle.enable_static()
    try:
        with paddle.pir_utils.OldIrGuard() if hasattr(paddle.pir_utils, "OldIrGuard") else nullcontext():
            yield
    finally:
        paddle.disable_static()


def block_of(
    *, dtype: str = "float16", channels: int = 8, uses: int = 2, stem: bool = True, **changes: Any
) -> Any:
    """Returns a residual block's program: its input goes to a convolution and to an addition.

    Before it there is another convolution, the ``stem``.
    """
    attributes = {
        "strides": [1, 1],
        "paddings": [1, 1],
        "dilations": [1, 1],
        "groups": 1,
        "data_format": "NHWC",
        "padding_algorithm": "EXPLICIT",
        **changes,
    }
    with static_mode():
        program = paddle.static.Program()
        with paddle.static.program_guard(program, paddle.static.Program()):
            block = program.global_block()

            def made(kind: str, out: str, attributes: dict[str, Any] | None = None, **inputs: Any) -> Any:
                made = block.create_var(name=kind + str(len(block.ops)), dtype=dtype)
                given = {name: [each] for name, each in inputs.items()}
                block.append_op(type=kind, inputs=given, outputs={out: [made]}, attrs=attributes or {})
                return made

            shape = [2, 6, 6, 8] if attributes["data_format"] == "NHWC" else [2, 8, 6, 6]
            image = block.create_var(name="image", shape=shape, dtype=dtype, is_data=True)
            kernel = [8, channels, 3, 3]
            weights = [block.create_var(name=n, shape=kernel, dtype=dtype, is_data=True) for n in ("v", "w")]
            for each in (image, *weights):
                each.stop_gradient = False
            x = made("conv2d", "Output", attributes, Input=image, Filter=weights[0]) if stem else image
            x = made("exp", "Out", X=x)
            y = made("conv2d", "Output", attributes, Input=x, Filter=weights[1])
            for _ in range(uses - 1):
                y = made("elementwise_add", "Out", {"axis": -1}, X=y, Y=x)
            loss = made("reduce_mean", "Out", {"dim": [0], "reduce_all": True}, X=y)
            paddle.base.backward.gradients([loss], [image, *weights] if stem else [image, weights[1]])
    return block


def test_merge_gradient_sums_residual_block_adds_in_the_convolution() -> None:
    block = block_of()
    before = Counter(op.type for op in block.ops)
    (addition,) = (op for op in block.ops if op.type == "sum")
    parts, (total,) = addition.input("X"), addition.output("Out")
    assert merge_gradient_sums(block) == 1
    after = Counter(op.type for op in block.ops)
    assert before - after == Counter({"sum": 1})
    assert not after - before
    first, second = (op for op in block.ops if total in op.output_arg_names)
    assert first.type == "elementwise_add_grad"
    assert second.type == "conv2d_grad"
    assert second.output("Input@GRAD") == [total]
    assert second.attr("use_addto") is True
    assert any(total in op.input_arg_names for op in block.ops[block.ops.index(second) + 1 :])
    assert not set(parts) & {name for op in block.ops for name in op.output_arg_names}


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32"},
        {"data_format": "NCHW"},
        {"groups": 2, "channels": 4},
        {"paddings": [0, 2, 1, 1]},
        {"padding_algorithm": "SAME"},
        {"uses": 3},
        {"stem": False},
    ],
)
def test_merge_gradient_sums_unsupported_convolution_changes_nothing(changes: dict[str, Any]) -> None:
    block = block_of(**changes)
    before = [str(op) for op in block.ops]
    assert sum(op.type == "sum" for op in block.ops) == 1
    assert merge_gradient_sums(block) == 0
    assert [str(op) for op in block.ops] == before


def test_merge_gradient_sums_last_convolution_never_adds() -> None:
    """The last convolution's attribute is what the device remembers."""
    block = block_of()
    merge_gradient_sums(block)
    assert [op.attr("use_addto") for op in block.ops if op.type == "conv2d_grad"] == [True, False]


def test_merge_gradient_sums_gradient_with_another_reader_stays() -> None:
    block = block_of()
    (addition,) = (op for op in block.ops if op.type == "sum")
    part = addition.input("X")[0]
    with static_mode():
        copy = block.create_var(name="copy", shape=[2, 6, 6, 8], dtype="float16")
        block.append_op(type="assign", inputs={"X": [block.var(part)]}, outputs={"Out": [copy]})
    assert merge_gradient_sums(block) == 0


@pytest.mark.skipif(not paddle.__version__.startswith("2.6"), reason="of Paddle 2.6's compiled models")
def test_sum_gradients_in_convolutions_resnet50_merges_sixteen_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(compiled, "_can_add", lambda _block, op: op.type == "conv2d_grad")
    merge = lambda block: done.append(merge_gradient_sums(block))  # noqa: E731
    monkeypatch.setattr(compiled, "merge_gradient_sums", merge)
    network = paddle.jit.to_static(CompiledModel(build_model("ResNet50", 10, "NHWC", 4)), full_graph=True)
    sum_gradients_in_convolutions(network.forward)
    _, layer = network.forward.get_concrete_program(paddle.zeros([2, 32, 32, 4]))
    assert layer.train_program is not None
    assert done == [16]


class Block(nn.Layer):  # type: ignore[misc]
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2D(16, 32, 1, data_format="NHWC", bias_attr=False)
        self.second = nn.Conv2D(32, 16, 3, padding=1, data_format="NHWC", bias_attr=False)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x + self.second(nn.functional.relu(self.first(x)))


def test_compiled_model_leaves_the_methods_of_its_layers() -> None:
    """Layers that Paddle rewrote would parse their own source in each eager call, such as in evaluations."""
    model = nn.Sequential(Block(), Block())
    image = paddle.randn([1, 4, 4, 16])
    expected = model(image).numpy()
    network = paddle.jit.to_static(CompiledModel(model), full_graph=True)
    np.testing.assert_allclose(network(image).numpy(), expected, rtol=1e-5, atol=1e-5)
    for layer in model.sublayers(include_self=True):
        assert layer.forward.__func__ is type(layer).forward


class Thresholded(nn.Layer):  # type: ignore[misc]
    """A user's layer whose Python code reads a value of a tensor."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x * 2 if float(x.mean()) > 0 else x


def test_model_that_cannot_be_compiled_names_its_line() -> None:
    network = paddle.jit.to_static(CompiledModel(nn.Sequential(Thresholded())), full_graph=True)
    line = Thresholded.forward.__code__.co_firstlineno + 1
    expected = (
        f"Global.to_static: {__file__}, line {line}, cannot be compiled: .+; set Global.to_static=False"
    )
    with pytest.raises(UserError, match=f"^{expected}$"):  # one line
        network(paddle.ones([1, 3]))


def test_model_whose_weights_a_hook_computes_is_not_compiled() -> None:
    model = nn.Sequential(nn.Linear(2, 2), weight_norm(nn.Linear(2, 2)))
    with pytest.raises(UserError, match=r"^Global\.to_static: a hook computes 1\.weight from other"):
        compile_model(model, Arch(name="ResNet18"), None, Runtime())


@pytest.mark.gpu
def test_sum_gradients_in_convolutions_on_a_gpu_gives_equal_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the first step on, and for each batch size, for which cuDNN would search anew.

    What comes after them outside of the program is not added to anything.
    """
    monkeypatch.delenv(SEARCH, raising=False)
    paddle.set_flags({SEARCH: True})
    assert stop_cudnn_search()
    done = []
    merge = lambda block: done.append(merge_gradient_sums(block))  # noqa: E731
    monkeypatch.setattr(compiled, "merge_gradient_sums", merge)
    paddle.seed(3)
    model = nn.Sequential(Block(), Block(), Block())
    model.to(dtype="float16")
    network = paddle.jit.to_static(CompiledModel(model), full_graph=True)
    sum_gradients_in_convolutions(network.forward)
    for size in (8, 8, 3):
        image = paddle.randn([size, 14, 14, 16]).astype("float16")
        found = []
        for forward in (model, network):
            x = image.clone()
            x.stop_gradient = False
            forward(x).astype("float32").mean().scale(1024.0).backward()
            found.append(
                [each.astype("float32").numpy() for each in (x.grad, *(w.grad for w in model.parameters()))]
            )
            model.clear_gradients()
        for plain, added in zip(*found, strict=True):
            np.testing.assert_allclose(added, plain, atol=2e-3 * np.abs(plain).max())
    assert set(done) == {2}  # of three blocks, for each size
