"""In which precision a model computes, as small objects with the same methods.

Mixed precision is Micikevicius et al. 2018: O1 casts operators that gain from it, O2 also keeps the
weights in half precision, with float32 masters in the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import paddle
from paddle import nn

from ppcls.arch.layers.transformer import MatrixProduct
from ppcls.config.sections.run import AMP
from ppcls.engine.core.flat_buffers import Flat
from ppcls.engine.core.gradients import Flags, Gradients, any_not_finite, not_finite
from ppcls.engine.core.loss_scale import LossScale
from ppcls.errors import UserError
from ppcls.optimizer.state import changed_by_step

Half = Literal["float16", "bfloat16"]


class FP32:
    """Plain float32, and the shape of all the others."""

    name = "float32"
    master_weights = False

    def __init__(self) -> None:
        self._flags = Flags()

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Changes a fresh model, and its optimizer if it trains, in place."""

    def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
        """Returns a batch's images in a dtype that the forward pass takes; float16 ones become float32."""
        return _in_float32(image)

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
        self._flags.add(not_finite(optimizer))  # after the step, for it may change gradients

    def begin(self) -> None:
        """Comes before each batch; `forward` calls it, too, and only the first call of an update counts."""

    def update(
        self, optimizer: Any, gradients: Sequence[paddle.Tensor], apply: Callable[[], None]
    ) -> paddle.Tensor:
        """Does the device's part of `step`, with gradients in a few buffers, such that it can be recorded.

        Args:
            optimizer: Whose weights change.
            gradients: All of them; a scale is taken off in place.
            apply: Updates the weights by them.

        Returns:
            [1] bool, whether a gradient was not finite. `adapt` wants to know.
        """
        apply()
        return any_not_finite(gradients)

    def storage(self, optimizer: Any) -> Flat:
        """Returns the memory of `changed_by_step`'s tensors, into which they move if they were elsewhere."""
        flat = Flat(changed_by_step(optimizer))
        flat.move_in()
        return flat

    def adapt(self, found: paddle.Tensor) -> None:
        """Does the rest of `step`: heeds what `update` returned."""
        self._flags.add(found)

    def gradients(self) -> Gradients:
        """Returns what is to be known of the updates since the last call; waits where there were any."""
        return Gradients(self._flags.read())

    def state_dict(self) -> dict[str, Any]:
        """Returns what must be remembered, as plain numbers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""


def _in_float32(image: paddle.Tensor) -> paddle.Tensor:
    return image if image.dtype == paddle.float32 else image.astype("float32")


class AmpO1(FP32):
    """Operators that gain from it run in half precision; weights stay float32."""

    level: Literal["O1", "O2"] = "O1"

    def __init__(self, settings: AMP) -> None:
        super().__init__()
        self.dtype: Half = settings.dtype
        self.name = f"AMP {self.level} {self.dtype}"
        self._eval_half, self._promote = settings.use_fp16_test, settings.use_promote
        # bfloat16 has float32's range, so its loss needs no scale.
        self._scale: LossScale | None = None
        if settings.dtype == "float16":
            self._scale = LossScale(
                settings.scale_loss,
                dynamic=settings.use_dynamic_loss_scaling,
                floor=settings.min_loss_scaling,
            )

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Has the loss scale know the model."""
        if self._scale is not None:
            self._scale.watch(model)

    def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
        """Returns the images as they are where operators are cast anyway; but float16 is not bfloat16."""
        return image if self._casts(image) and (training or self._eval_half) else _in_float32(image)

    def begin(self) -> None:
        """Has the loss scale know that a batch begins."""
        if self._scale is not None:
            self._scale.begin()

    def forward(self) -> AbstractContextManager[Any]:
        """Returns Paddle's automatic casting."""
        self.begin()
        return self._casting()

    def _casts(self, image: paddle.Tensor) -> bool:
        return self.dtype == "float16" or image.dtype != paddle.float16

    def _casting(self) -> AbstractContextManager[Any]:
        return paddle.amp.auto_cast(  # type: ignore[no-any-return]
            enable=True, level=self.level, dtype=self.dtype, use_promote=self._promote
        )

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns automatic casting where ``use_fp16_test`` asks for it."""
        return self._casting() if self._eval_half else nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Computes gradients of the scaled loss."""
        (loss if self._scale is None else self._scale.scaled(loss)).backward()

    def step(self, optimizer: Any) -> None:
        """Unscales, steps if all gradients are finite, and adapts the scale; see `LossScale.step`."""
        if self._scale is None:
            super().step(optimizer)
        else:
            self._scale.step(optimizer)

    def update(
        self, optimizer: Any, gradients: Sequence[paddle.Tensor], apply: Callable[[], None]
    ) -> paddle.Tensor:
        """Unscales, and steps; the device takes that back if a gradient is not finite."""
        if self._scale is None:
            return super().update(optimizer, gradients, apply)
        found = self._scale.unscale(gradients)
        self._scale.undone_if(found, optimizer, apply)
        return found

    def storage(self, optimizer: Any) -> Flat:
        """Returns the memory of what a step changes; where a loss scale takes steps back, its own."""
        return super().storage(optimizer) if self._scale is None else self._scale.storage(optimizer)

    def adapt(self, found: paddle.Tensor) -> None:
        """Adapts the scale."""
        if self._scale is None:
            super().adapt(found)
        else:
            self._scale.adapt(found)

    def gradients(self) -> Gradients:
        """Returns what is to be known of the updates since the last call; waits where there were any."""
        return super().gradients() if self._scale is None else self._scale.read()

    def state_dict(self) -> dict[str, Any]:
        """Returns the loss scale and its counters; empty where the loss is not scaled."""
        return {} if self._scale is None else self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with a loss scale that adapts; a fixed one, and the first one, are the config's."""
        if state and self._scale is not None:
            self._scale.load_state_dict(state)


class AmpO2(AmpO1):
    """The model itself is in half precision, BatchNorm apart; the optimizer keeps float32 masters."""

    level = "O2"
    master_weights = True

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Casts the model."""
        super().prepare(model, optimizer)
        if optimizer is None:
            paddle.amp.decorate(models=model, level="O2", dtype=self.dtype)
        else:
            paddle.amp.decorate(
                models=model, optimizers=optimizer, level="O2", dtype=self.dtype, master_weight=True
            )

    def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
        """Returns the images in half precision, as the weights are."""
        return image if image.dtype == getattr(paddle, self.dtype) else image.astype(self.dtype)

    def _casting(self) -> AbstractContextManager[Any]:
        """Returns no automatic casting: there is nothing to cast, and asking costs the host time."""
        return nullcontext()

    def evaluation(self) -> AbstractContextManager[Any]:
        """Returns what training has: the weights are in half precision anyway."""
        return self._casting()


class RoundedBF16(FP32):
    """bfloat16 on a CPU: Paddle has no such kernels there, so operands are rounded and computed in float32.

    What enters a convolution, a linear layer or one of attention's products, and weights, are rounded to
    bfloat16; products are summed in float32, as matrix units do. The numbers are those of mixed precision,
    the speed is not.
    """

    name = "bfloat16 rounding, computed in float32 (Paddle has no bfloat16 kernels for CPUs)"

    def __init__(self, settings: AMP) -> None:
        super().__init__()
        self._eval_half = settings.use_fp16_test or settings.level == "O2"
        self._layers: list[nn.Layer] = []
        self._products: list[nn.Layer] = []

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        """Finds the convolutions, linear layers and products."""
        layers = model.sublayers(include_self=True)
        self._products = [layer for layer in layers if isinstance(layer, MatrixProduct)]
        self._layers = [layer for layer in layers if isinstance(layer, (nn.Conv2D, nn.Linear))]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Rounds operands within the block; gradients reach the exact weights."""
        exact = [layer.weight for layer in self._layers]
        hooks = [layer.register_forward_pre_hook(_round_inputs) for layer in (*self._layers, *self._products)]
        try:
            for layer, weight in zip(self._layers, exact, strict=True):
                layer._parameters["weight"] = _Rounding.apply(weight)
            yield
        finally:
            for layer, weight in zip(self._layers, exact, strict=True):
                layer._parameters["weight"] = weight
            for hook in hooks:
                hook.remove()

    def evaluation(self) -> AbstractContextManager[Any]:
        """Rounds as mixed precision does: with ``use_fp16_test``, and always under O2."""
        return self.forward() if self._eval_half else nullcontext()


class _Rounding(paddle.autograd.PyLayer):  # type: ignore[misc]
    """Rounds a tensor, and its gradient likewise, as casts do in mixed precision."""

    @staticmethod
    def forward(_context: Any, tensor: paddle.Tensor) -> paddle.Tensor:
        return _rounded(tensor)

    @staticmethod
    def backward(_context: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return _rounded(gradient)


def _rounded(tensor: paddle.Tensor) -> paddle.Tensor:
    """Rounds float32 to 8 significant bits, half to even, by Veltkamp's splitting (Dekker 1971).

    A cast would do on Paddle 3; Paddle 2.6 truncates in casts to bfloat16 on a CPU.
    """
    high = tensor * (2.0**16 + 1)
    return high - (high - tensor)


def _round_inputs(_layer: nn.Layer, inputs: tuple[paddle.Tensor, ...]) -> tuple[paddle.Tensor, ...]:
    return tuple(_Rounding.apply(each) for each in inputs)


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
        return RoundedBF16(settings)
    return AmpO1(settings) if settings.level == "O1" else AmpO2(settings)
