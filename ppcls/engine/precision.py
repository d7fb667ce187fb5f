"""In which precision a model computes, as small objects with the same methods.

Mixed precision is Micikevicius et al. 2018: O1 casts operators that gain from it, O2 also keeps the
weights in half precision, with float32 masters in the optimizer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import paddle
from paddle import nn

from ppcls.config.sections import AMP
from ppcls.errors import UserError

Half = Literal["float16", "bfloat16"]


class FP32:
    """Plain float32, and the shape of all the others."""

    name = "float32"
    master_weights = False

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Changes a fresh model, and its optimizer if it trains, in place."""

    def forward(self) -> AbstractContextManager[Any]:
        """Returns the context of a training forward pass."""
        return nullcontext()

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns the context of an evaluation's forward pass."""
        return nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Computes gradients of a scalar."""
        loss.backward()

    def step(self, optimizer: Any) -> None:
        """Updates the weights, unless the gradients of a scaled loss are not finite."""
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns what must be remembered, as plain numbers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""


class AmpO1(FP32):
    """Operators that gain from it run in half precision; weights stay float32."""

    level: Literal["O1", "O2"] = "O1"

    def __init__(self, settings: AMP) -> None:
        self.dtype: Half = settings.dtype
        self.name = f"AMP {self.level} {self.dtype}"
        self._eval_half = settings.use_fp16_test
        # bfloat16 has float32's range, so its loss needs no scale.
        self._scaler = paddle.amp.GradScaler(
            enable=settings.dtype == "float16",
            init_loss_scaling=settings.scale_loss,
            use_dynamic_loss_scaling=settings.use_dynamic_loss_scaling,
        )

    def forward(self) -> AbstractContextManager[Any]:
        """Returns Paddle's automatic casting."""
        return paddle.amp.auto_cast(enable=True, level=self.level, dtype=self.dtype)  # type: ignore[no-any-return]

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns automatic casting where ``use_fp16_test`` asks for it."""
        return self.forward() if self._eval_half else nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Computes gradients of the scaled loss."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: Any) -> None:
        """Unscales, steps if all gradients are finite, and adapts the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Returns the loss scale and its counters; empty where the loss is not scaled."""
        return {key: _plain(value) for key, value in self._scaler.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with a loss scale; the first one of the config stays where there was none."""
        if state and self._scaler.is_enable():
            own = self._scaler.state_dict()
            self._scaler.load_state_dict(
                {
                    key: paddle.to_tensor([value], dtype="float32").numpy() if key == "scale" else value
                    for key, value in state.items()
                    if key in own
                }
            )


class AmpO2(AmpO1):
    """The model itself is in half precision, BatchNorm apart; the optimizer keeps float32 masters."""

    level = "O2"
    master_weights = True

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Casts the model."""
        if optimizer is None:
            paddle.amp.decorate(models=model, level="O2", dtype=self.dtype)
        else:
            paddle.amp.decorate(
                models=model, optimizers=optimizer, level="O2", dtype=self.dtype, master_weight=True
            )

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns automatic casting: the weights are in half precision anyway."""
        return self.forward()


class RoundedBF16(FP32):
    """bfloat16 on a CPU: Paddle has no such kernels there, so operands are rounded and computed in float32.

    What enters a convolution or a linear layer, and its weight, are rounded to bfloat16; products are
    summed in float32, as matrix units do. The numbers are those of mixed precision, the speed is not.
    """

    name = "bfloat16 rounding, computed in float32 (Paddle has no bfloat16 kernels for CPUs)"

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Has every convolution and linear layer round its operands."""
        for layer in model.sublayers(include_self=True):
            if isinstance(layer, (nn.Conv2D, nn.Linear)):
                _round_operands(layer)


def _rounded(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor.astype("bfloat16").astype("float32")


def _round_operands(layer: nn.Layer) -> None:
    """Rounds the weight for the length of a forward pass; its gradient reaches the exact weight."""
    exact = layer.weight

    def before(layer: nn.Layer, inputs: tuple[paddle.Tensor, ...]) -> tuple[paddle.Tensor, ...]:
        layer._parameters["weight"] = _rounded(exact)
        return tuple(_rounded(each) for each in inputs)

    def after(layer: nn.Layer, _inputs: Any, _output: Any) -> None:
        layer._parameters["weight"] = exact

    layer.register_forward_pre_hook(before)
    layer.register_forward_post_hook(after)


def _plain(value: Any) -> Any:
    return float(value.item()) if hasattr(value, "item") else value


def build_precision(settings: AMP | None, device: Literal["cpu", "gpu"]) -> FP32:
    """Chooses the precision that the config asks for.

    Raises:
        UserError: float16 on a CPU.
    """
    if settings is None or not settings.use_amp:
        return FP32()
    if device == "cpu":
        if settings.dtype == "float16":
            raise UserError(
                "AMP.dtype: float16 needs a GPU, and this run is on the CPU; "
                "use -o AMP.dtype=bfloat16, -o AMP.use_amp=False, or a GPU"
            )
        return RoundedBF16()
    return AmpO1(settings) if settings.level == "O1" else AmpO2(settings)
