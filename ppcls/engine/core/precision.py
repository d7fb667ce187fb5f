"""Number formats of forward pass, backward pass and update, with one class per kind.

Mixed precision follows Micikevicius et al. 2018. O1 uses half precision for the operators that benefit from
it. O2 also stores the weights in half precision, and the optimizer keeps float32 master weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import paddle
from paddle import nn

from ppcls.arch.kernels.paddle_layers import replace_weight
from ppcls.arch.layers.transformer import MatrixProduct
from ppcls.engine.core.gradients import GradientStore, NonFiniteFlags, UpdateOutcomes
from ppcls.engine.core.loss_scale import LossScale
from ppcls.engine.core.settings import AMP
from ppcls.errors import UserError

Half = Literal["float16", "bfloat16"]


class Precision(ABC):
    """Base class of the number formats in which a model is trained and evaluated.

    Attributes:
        name: Name for the log.
        master_weights: Whether the optimizer keeps float32 copies of half-precision weights.
        loss_scale: Factor on the loss; None without loss scaling.
        weight_rounding: Dtype to which layers round float32 weights for their products; None if they don't.
        may_overflow: Whether evaluations compute in float16, whose largest number is 65,504.
    """

    name: str
    master_weights = False
    may_overflow = False
    loss_scale: LossScale | None = None
    weight_rounding: Half | None = None

    def __init__(self) -> None:
        self._flags = NonFiniteFlags()

    @abstractmethod
    def forward(self) -> AbstractContextManager[Any]:
        """Returns the context in which a forward pass of training runs."""

    @abstractmethod
    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns the context in which a forward pass of an evaluation runs."""

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Changes a new model and its optimizer, in place, for this precision.

        Args:
            optimizer: Optimizer of the model; None if the model is not trained.
        """
        if self.loss_scale is not None:
            self.loss_scale.track_statistics(model)

    def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
        """Returns the images in a dtype that the forward pass accepts."""
        return image if image.dtype == paddle.float32 else image.astype("float32")

    def begin_step(self) -> None:
        """Prepares a step. Must be called before each step."""
        if self.loss_scale is not None:
            self.loss_scale.begin_step()

    def backward(self, loss: paddle.Tensor) -> None:
        """Computes the gradients of a scalar loss, times the loss scale if there is one."""
        (loss if self.loss_scale is None else self.loss_scale.scaled(loss)).backward()

    def update(self, optimizer: Any, gradients: GradientStore) -> paddle.Tensor:
        """Updates the weights, without waiting for the device.

        With loss scaling, an update with a non-finite gradient changes nothing.

        Returns:
            Whether a gradient is non-finite, [1] bool, for `end_update`.
        """
        if self.loss_scale is not None:
            return self.loss_scale.update(optimizer, gradients)
        if gradients.fused:
            return gradients.apply_scaled(None)
        gradients.apply()
        return gradients.any_nonfinite()  # after the update, because the check may change the gradients

    def end_update(self, overflow: paddle.Tensor) -> None:
        """Ends an update: stores ``overflow``, the result of `update`, and adapts the loss scale."""
        if self.loss_scale is not None:
            self.loss_scale.end_update(overflow)
        else:
            self._flags.append(overflow)

    def outcomes(self) -> UpdateOutcomes:
        """Returns the outcomes of the updates since the last call; waits for the device if there are any."""
        return UpdateOutcomes(self._flags.read()) if self.loss_scale is None else self.loss_scale.read()

    def state_dict(self) -> dict[str, Any]:
        """Returns the loss scale and its counters; an empty dict without loss scaling."""
        return {} if self.loss_scale is None else self.loss_scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores an adaptive loss scale. A constant loss scale keeps the value of the config."""
        if state and self.loss_scale is not None:
            self.loss_scale.load_state_dict(state)


class FP32(Precision):
    """Computes everything in float32."""

    name = "float32"

    def forward(self) -> AbstractContextManager[Any]:
        """Returns an empty context."""
        return nullcontext()

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns an empty context."""
        return nullcontext()


class AmpO1(Precision):
    """Uses half precision for the operators that benefit from it. Weights stay float32."""

    level: Literal["O1", "O2"] = "O1"

    def __init__(self, settings: AMP) -> None:
        super().__init__()
        self.dtype: Half = settings.dtype
        self.weight_rounding = None if self.master_weights else settings.dtype
        self.name = f"AMP {self.level} {self.dtype}"
        float16 = settings.dtype == "float16"
        self._half_evaluation = float16 if settings.use_fp16_test is None else settings.use_fp16_test
        self._promote = settings.use_promote
        self.may_overflow = float16 and (self._half_evaluation or settings.level == "O2")
        if float16:  # bfloat16 has float32's range and needs no loss scale
            self.loss_scale = LossScale(
                settings.scale_loss,
                dynamic=settings.use_dynamic_loss_scaling,
                minimum=settings.min_loss_scaling,
            )

    def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
        """Returns the images unchanged if the operators cast them; otherwise in float32.

        Automatic casting does not cast float16 to bfloat16.
        """
        castable = self.dtype == "float16" or image.dtype != paddle.float16
        if castable and (training or self._half_evaluation):
            return image
        return super().images(image, training=training)

    def forward(self) -> AbstractContextManager[Any]:
        """Returns the context of Paddle's automatic casting."""
        return paddle.amp.auto_cast(  # type: ignore[no-any-return]
            enable=True, level=self.level, dtype=self.dtype, use_promote=self._promote
        )

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns automatic casting if evaluations use half precision, else an empty context.

        They do with ``use_fp16_test: True``, and by default with float16.
        """
        return self.forward() if self._half_evaluation else nullcontext()


class AmpO2(AmpO1):
    """Casts the model to half precision, except BatchNorm. The optimizer keeps float32 master weights."""

    level = "O2"
    master_weights = True

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Casts the model, and makes the optimizer keep float32 master weights."""
        super().prepare(model, optimizer)
        if optimizer is None:
            paddle.amp.decorate(models=model, level="O2", dtype=self.dtype)
        else:
            paddle.amp.decorate(
                models=model, optimizers=optimizer, level="O2", dtype=self.dtype, master_weight=True
            )

    def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
        """Returns the images in half precision, the dtype of the weights."""
        return image if image.dtype == getattr(paddle, self.dtype) else image.astype(self.dtype)

    def forward(self) -> AbstractContextManager[Any]:
        """Returns an empty context: nothing needs a cast, and automatic casting would take host time."""
        return nullcontext()

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns an empty context, because the weights are in half precision already."""
        return nullcontext()


class RoundedBF16(Precision):
    """Emulates bfloat16 on a CPU: rounds the operands and computes in float32.

    Paddle has no bfloat16 kernels for CPUs. The inputs and weights of convolutions, linear layers and
    attention products are rounded to bfloat16. Products are summed in float32, as on a GPU. The results are
    those of mixed precision, but the computation is not faster than float32.
    """

    name = "bfloat16 rounding, computed in float32 (Paddle has no bfloat16 kernels for CPUs)"

    def __init__(self, settings: AMP) -> None:
        super().__init__()
        self._half_evaluation = bool(settings.use_fp16_test) or settings.level == "O2"
        self._weighted: list[nn.Layer] = []
        self._products: list[nn.Layer] = []

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Collects the layers of the model whose operands `forward` rounds."""
        layers = model.sublayers(include_self=True)
        self._products = [layer for layer in layers if isinstance(layer, MatrixProduct)]
        self._weighted = [layer for layer in layers if isinstance(layer, (nn.Conv2D, nn.Linear))]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Returns a context that rounds operands. Gradients flow to the unrounded weights."""
        exact = [layer.weight for layer in self._weighted]
        layers = (*self._weighted, *self._products)
        hooks = [layer.register_forward_pre_hook(_round_inputs) for layer in layers]
        try:
            for layer, weight in zip(self._weighted, exact, strict=True):
                replace_weight(layer, _Rounding.apply(weight))
            yield
        finally:
            for layer, weight in zip(self._weighted, exact, strict=True):
                replace_weight(layer, weight)
            for hook in hooks:
                hook.remove()

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns the context of `forward` with ``use_fp16_test`` or level O2, else an empty context."""
        return self.forward() if self._half_evaluation else nullcontext()


class _Rounding(paddle.autograd.PyLayer):  # type: ignore[misc]
    """Rounds a tensor and its gradient, as the casts of mixed precision do."""

    @staticmethod
    def forward(_context: Any, tensor: paddle.Tensor) -> paddle.Tensor:
        return _rounded(tensor)

    @staticmethod
    def backward(_context: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return _rounded(gradient)


def _rounded(tensor: paddle.Tensor) -> paddle.Tensor:
    """Rounds float32 to 8 significant bits, half to even, with Veltkamp's splitting (Dekker 1971).

    Paddle 3 could use a cast to bfloat16. On a CPU, the cast of Paddle 2.6 truncates instead of rounding.
    """
    high = tensor * (2.0**16 + 1)
    return high - (high - tensor)


def _round_inputs(_layer: nn.Layer, inputs: tuple[paddle.Tensor, ...]) -> tuple[paddle.Tensor, ...]:
    return tuple(_Rounding.apply(tensor) for tensor in inputs)


def build_precision(settings: AMP | None, device: Literal["cpu", "gpu"]) -> Precision:
    """Returns the precision that the section ``AMP`` of the config requests.

    Raises:
        UserError: The config requests float16 on a CPU.
    """
    if settings is None or not settings.use_amp:
        return FP32()
    if device == "cpu":
        if settings.dtype == "float16":
            raise UserError(
                "AMP.dtype: float16 needs a GPU, but this run uses the CPU; "
                "set -o AMP.dtype=bfloat16 or -o AMP.use_amp=False, or use a GPU"
            )
        return RoundedBF16(settings)
    return AmpO1(settings) if settings.level == "O1" else AmpO2(settings)
