"""Gradients of what is used twice, added up by the convolution that makes the second of them.

The input of a residual block has two gradients, one by the shortcut. Paddle adds them by an operator of
its own, which reads both and writes a third. cuDNN can add to what it writes into (beta = 1 in
``cudnnConvolutionBackwardData``), and Paddle's ``conv2d_grad`` has it as ``use_addto``.

Not while cuDNN searches for the fastest kernel (`ppcls.runtime.paddle_import.stop_cudnn_search`):
it runs each one on the memory of the first step itself, so that what is added to would be lost.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import paddle
from paddle import nn

from ppcls.config.schema import Config
from ppcls.config.sections.model import Arch
from ppcls.errors import UserError
from ppcls.runtime.paddle_import import stop_cudnn_search
from ppcls.runtime.start import Runtime

_FLOAT16 = paddle.base.core.VarDesc.VarType.FP16


class _Hook:
    """What Paddle calls as it makes a program: its ``PartialProgramLayerHook``."""

    def before_append_backward(self, program: Any) -> Any:
        return program

    def after_append_backward(self, program: Any, start: int) -> tuple[Any, int]:
        add_up(program.global_block())
        return program, start

    def after_infer(self, program: Any) -> Any:
        return program


def add_up_gradients(forward: Any) -> None:
    """Has a model add gradients up in its convolutions.

    Args:
        forward: Of a model that `paddle.jit.to_static` of Paddle 2.6 compiles, not yet called.
    """
    find, hook = forward.get_concrete_program, _Hook()

    def found(*args: Any, **options: Any) -> tuple[Any, Any]:
        traced, layer = find(*args, **options)
        layer.set_hooker(hook)
        return traced, layer

    forward.get_concrete_program = found


def add_up(block: Any) -> int:
    """Changes a block of a program with its backward pass, in place.

    Its last convolution never adds: what an operator of a program was told of ``use_addto`` stays with the
    device until the next such one, and operators outside of programs heed it, too.

    Returns:
        How many operators that add are gone.
    """
    gone = 0
    last = next((op for op in reversed(block.ops) if op.type == "conv2d_grad"), None)
    for addition in [op for op in block.ops if op.type == "sum"]:
        makers, readers = defaultdict(list), defaultdict(list)
        for op in block.ops:
            for name in op.output_arg_names:
                makers[name].append(op)
            for name in op.input_arg_names:
                readers[name].append(op)
        parts, (total,) = addition.input("X"), addition.output("Out")
        if len(parts) != 2 or any(len(makers[part]) != 1 or len(readers[part]) != 1 for part in parts):
            continue
        second = max((makers[part][0] for part in parts), key=block.ops.index)
        if second is last or not _can_add(block, second) or second.output("Input@GRAD")[0] not in parts:
            continue
        for part in parts:
            makers[part][0]._rename_output(part, total)
        second._set_attr("use_addto", True)
        block._remove_op(block.ops.index(addition))
        gone += 1
    return gone


def _can_add(block: Any, op: Any) -> bool:
    """Whether an operator is a convolution's gradient that cuDNN writes just where it belongs.

    Elsewhere Paddle writes into a copy, in another layout or with more padding.
    """
    if op.type != "conv2d_grad" or not op.output("Input@GRAD"):
        return False
    padding = op.attr("paddings")
    return (
        op.attr("data_format") == "NHWC"
        and block.var(op.input("Input")[0]).dtype == _FLOAT16
        and op.attr("groups") == 1
        and op.attr("padding_algorithm") == "EXPLICIT"
        and (len(padding) == 2 or (padding[0], padding[2]) == (padding[1], padding[3]))
    )


class Compiled(nn.Layer):  # type: ignore[misc]
    """A model as one program of Paddle's static executor, over the model's own weights.

    The model itself stays as it is, for evaluation and for checkpoints.
    """

    def __init__(self, model: nn.Layer) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        """Returns the model's logits."""
        return self.model(image)


def compiled(model: nn.Layer, config: Config, runtime: Runtime) -> nn.Layer:
    """Returns the model as training calls it: compiled where ``Global.to_static`` says so.

    Raises:
        UserError: That is wanted of bfloat16 on a CPU.
    """
    if not compiles(config, runtime):
        return model
    if runtime.device == "cpu" and config.AMP is not None and config.AMP.use_amp:
        raise UserError(
            "Global.to_static: bfloat16 on a CPU rounds around each layer, which can't be compiled; "
            "set Global.to_static to auto or False"
        )
    network = paddle.jit.to_static(Compiled(model), full_graph=True)
    if _is_fast(config, runtime) and stop_cudnn_search():
        add_up_gradients(network.forward)
    return network


def compiles(config: Config, runtime: Runtime) -> bool:
    """Whether the model that trains is compiled."""
    wanted = config.Global.to_static
    if not isinstance(config.Arch, Arch):
        return False
    if wanted != "auto":
        return wanted
    return _is_fast(config, runtime)


def _is_fast(config: Config, runtime: Runtime) -> bool:
    """Whether this is what compiled steps were measured to be faster with."""
    amp = config.AMP
    return (
        runtime.device == "gpu"
        and measured()
        and amp is not None
        and amp.use_amp
        and (amp.level, amp.dtype) == ("O2", "float16")
        and config.Arch.data_format == "NHWC"
    )


def measured() -> bool:
    """Whether this Paddle is one that compiled steps were measured with; docs/performance.md."""
    return str(paddle.__version__).startswith("2.6")
