"""Compiles a model to one program whose convolutions add up gradients.

The input of a residual block has two gradients: one from the block and one from the shortcut. Paddle adds
them in a separate operator, which reads both and writes a third tensor. A convolution of cuDNN can instead
add its result to the tensor that it writes (beta = 1 in ``cudnnConvolutionBackwardData``). In Paddle, the
attribute ``use_addto`` of ``conv2d_grad`` enables this.

Such a model cannot use cuDNN's search for the fastest kernel, so `stop_cudnn_search` disables the search. It
would run each candidate kernel on the tensors of the first step, and overwrite the value to add to.

The factors of dropout and drop path are inputs of the program. They are drawn before each step, like those of
a model that is not compiled (`StepMasks`), so both train the same weights.

Paddle has no public methods that change operators of a program. The private ones are those of Paddle 2.6.2;
the programs of 3.3.1 are of another kind, for which `ppcls.engine.core.compiled` is not used.
tests/engine/core/test_compiled_model.py fails if they change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from traceback import extract_tb
from typing import Any

import paddle
from paddle import Tensor, nn

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.layers.drop_path import Draw, StepMasks
from ppcls.arch.layers.norm_act import expect_float16
from ppcls.engine.core.settings import AMP, ExecutionSettings
from ppcls.errors import UserError
from ppcls.files.home import WritableHome
from ppcls.runtime.paddle_import import stop_cudnn_search
from ppcls.runtime.start import Runtime

_PADDLE = str(Path(paddle.__file__).parent)
_FLOAT16 = paddle.base.core.VarDesc.VarType.FP16


class _ProgramHook:
    """Hook that Paddle calls while it builds a program; has the interface of ``PartialProgramLayerHook``."""

    def before_append_backward(self, program: Any) -> Any:
        return program

    def after_append_backward(self, program: Any, start: int) -> tuple[Any, int]:
        merge_gradient_sums(program.global_block())
        return program, start

    def after_infer(self, program: Any) -> Any:
        return program


def sum_gradients_in_convolutions(forward: Any) -> None:
    """Makes a compiled model add up gradients in its convolutions.

    Args:
        forward: Method of a model that `paddle.jit.to_static` of Paddle 2.6 compiles, not yet called.
    """
    get_program = forward.get_concrete_program
    hook = _ProgramHook()

    def get_hooked_program(*args: Any, **options: Any) -> tuple[Any, Any]:
        traced, layer = get_program(*args, **options)
        layer.set_hooker(hook)
        return traced, layer

    forward.get_concrete_program = get_hooked_program


def merge_gradient_sums(block: Any) -> int:
    """Replaces sums of gradients in a block, in place, with convolutions that add to their output.

    The last ``conv2d_grad`` of the block does not change. Paddle 2.6 keeps ``use_addto`` per device until the
    next ``conv2d_grad`` of a program. So True would also affect convolutions that run outside of programs.

    Returns:
        Number of removed sums.
    """
    removed = 0
    last = next((op for op in reversed(block.ops) if op.type == "conv2d_grad"), None)
    for addition in [op for op in block.ops if op.type == "sum"]:
        writers = defaultdict(list)
        readers = defaultdict(list)
        for op in block.ops:
            for name in op.output_arg_names:
                writers[name].append(op)
            for name in op.input_arg_names:
                readers[name].append(op)
        parts = addition.input("X")
        (total,) = addition.output("Out")
        if len(parts) != 2 or any(len(writers[part]) != 1 or len(readers[part]) != 1 for part in parts):
            continue
        second = max((writers[part][0] for part in parts), key=block.ops.index)
        if second is last or not _can_add(block, second) or second.output("Input@GRAD")[0] not in parts:
            continue
        for part in parts:
            writers[part][0]._rename_output(part, total)
        second._set_attr("use_addto", True)
        block._remove_op(block.ops.index(addition))
        removed += 1
    return removed


def _can_add(block: Any, op: Any) -> bool:
    """Returns whether an operator is a convolution's gradient, and cuDNN writes it directly to the output.

    In other cases Paddle lets cuDNN write to a temporary tensor with another layout or more padding.
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


class CompiledModel(nn.Layer):  # type: ignore[misc]
    """Wrapper of a model, to compile it to one program of Paddle's static executor.

    It shares the weights of the model. The model itself stays unchanged, for evaluation and checkpoints.

    Args:
        model: The model.
        masks: Source of random factors of its layers; None if they draw from Paddle's generator.
    """

    def __init__(self, model: nn.Layer, masks: StepMasks | None = None) -> None:
        super().__init__()
        self.model = model
        self._masks = masks
        self._draws: dict[tuple[int, ...], list[Draw]] = {}  # of a forward pass, by the shape of the images
        self._home = WritableHome()
        self._failure: UserError | None = None  # why the model can't be compiled

    def __call__(self, image: Tensor) -> Tensor:
        """Returns the model's logits. Paddle compiles the model in the first call, and for other shapes.

        Raises:
            UserError: The model's code can't be compiled, for example because it reads values of tensors.
        """
        factors = self._draw_factors(image)
        try:
            with self._home.used():
                return super().__call__(image, factors)
        except Exception as error:
            if self._failure is None:
                raise
            raise self._failure from error

    def forward(self, image: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
        """Returns the model's logits.

        Args:
            image: Batch of images.
            factors: Factors of all random layers, in the order of their calls.
        """
        return self._run(image, factors)

    # For a call `self.model(image)` in `forward`, Paddle would permanently rewrite the methods of the model,
    # and rewritten methods parse their own source in each eager call.
    @paddle.jit.not_to_static  # type: ignore[untyped-decorator]
    def _run(self, image: Tensor, factors: Sequence[Tensor]) -> Tensor:
        # Paddle runs this code only to build the program, and replaces the error by a long text.
        try:
            with nullcontext() if self._masks is None else self._masks.replaced(factors):
                return self.model(image)
        except Exception as error:
            self._failure = _explain_failure(error)
            raise

    def _draw_factors(self, image: Tensor) -> list[Tensor]:
        """Returns the factors of the current step."""
        if self._masks is None or not self.model.training:
            return []
        shape = tuple(image.shape)
        if shape not in self._draws:
            self._draws[shape] = self._record_draws(self._masks, image)
        self._masks.begin_forward()
        return [self._masks.draw(*draw) for draw in self._draws[shape]]

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _record_draws(self, masks: StepMasks, image: Tensor) -> list[Draw]:
        """Returns what the layers draw for images of this shape. Runs the model without changing it."""
        # The statistics of BatchNorm are parameters without a gradient.
        frozen = [parameter for parameter in self.model.parameters() if parameter.stop_gradient]
        copies = [(tensor, tensor.clone()) for tensor in (*frozen, *self.model.buffers())]
        random = paddle.get_rng_state()
        with masks.recorded() as draws:
            self.model(image)
        paddle.set_rng_state(random)
        for tensor, copy in copies:
            tensor.copy_(copy, False)
        return draws


def _explain_failure(error: Exception) -> UserError:
    """Returns an error that names the line of a model's code that can't be compiled."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_PADDLE)]
    text = str(error).strip() or type(error).__name__
    return UserError(
        f"Global.to_static: {frames[-1].filename}, line {frames[-1].lineno}, cannot be compiled: "
        f"{text.splitlines()[0]}; set Global.to_static=False"
    )


def compiles(settings: ExecutionSettings, arch: AnyArch, amp: AMP | None, runtime: Runtime) -> bool:
    """Returns whether training compiles the model. Models of several networks are never compiled."""
    if not arch.single_network or settings.fused_kernels is True or settings.recompute:
        return False
    return _is_nhwc_float16(arch, amp, runtime) if settings.to_static == "auto" else settings.to_static


def compile_model(
    model: nn.Layer, arch: AnyArch, amp: AMP | None, runtime: Runtime, masks: StepMasks | None = None
) -> nn.Layer:
    """Returns the compiled model. See `CompiledModel` for ``masks``.

    Raises:
        UserError: The run uses bfloat16 on a CPU, or hooks compute weights of the model.
    """
    if runtime.device == "cpu" and amp is not None and amp.use_amp:
        raise UserError(
            "Global.to_static: bfloat16 on a CPU rounds each layer's operands, which cannot be compiled; "
            "set Global.to_static to auto or False"
        )
    # A program would keep the first value that a hook computes, and its parameters would have no gradients.
    computed = [name for name, tensor in model.named_buffers() if not tensor.stop_gradient]
    if computed:
        raise UserError(
            f"Global.to_static: a hook computes {computed[0]} from other parameters, like that of "
            "nn.utils.weight_norm, which cannot be compiled; set Global.to_static=False"
        )
    network = paddle.jit.to_static(CompiledModel(model, masks), full_graph=True)
    if _is_nhwc_float16(arch, amp, runtime):
        if amp is not None and amp.level == "O1":
            expect_float16(model)
        if stop_cudnn_search():
            sum_gradients_in_convolutions(network.forward)
    return network


def _is_nhwc_float16(arch: AnyArch, amp: AMP | None, runtime: Runtime) -> bool:
    """Returns whether a compiled model uses cuDNN's fused operators, which make it faster.

    They need Paddle 2.6, a GPU, float16 and the layout NHWC.
    """
    return (
        runtime.device == "gpu"
        and measured()
        and amp is not None
        and amp.use_amp
        and amp.dtype == "float16"
        and arch.data_format == "NHWC"
    )


def measured() -> bool:
    """Returns whether docs/performance.md has figures of compiled steps for the installed Paddle."""
    return str(paddle.__version__).startswith("2.6")
