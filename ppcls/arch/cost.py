"""The cost of an architecture: its parameters, and the multiply-adds of one image."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn

Count = Callable[[nn.Layer, Any, Any], int]


class Cost(NamedTuple):
    """The cost of a model.

    Attributes:
        parameters: Number of trained parameters.
        flops: Multiply-adds of one image in convolutions, linear layers and attention, as papers count them:
            without batch norm, activations and pooling.
    """

    parameters: int
    flops: int


def measure(build: Callable[[], nn.Layer], shape: Sequence[int]) -> Cost:
    """Returns the cost of a model on one image.

    The model is only described as a static program: no weight is initialized and nothing is computed.

    Args:
        build: Function that builds the model.
        shape: Shape of the image, [C, H, W] or [H, W, C] depending on the model.
    """
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            return measure_on(build(), paddle.static.data("image", [1, *shape], "float32"))
    finally:
        if dynamic:
            paddle.disable_static()


@paddle.no_grad()  # type: ignore[untyped-decorator]
def measure_speed(model: nn.Layer, shape: Sequence[int], seconds: float = 2.0) -> float:
    """Returns the images per second of CPU time that a model predicts, one at a time.

    The fastest image counts. CPU time instead of elapsed time makes the result comparable on a busy machine.

    Args:
        model: The model, on the CPU.
        shape: Shape of the image, [C, H, W] or [H, W, C] depending on the model.
        seconds: CPU time of the measurement; at least three images are predicted after the first one.
    """
    model.eval()
    image, durations = paddle.ones([1, *shape]), list[float]()
    model(image)
    while len(durations) < 3 or sum(durations) < seconds:
        start = time.process_time()
        model(image).numpy()
        durations.append(time.process_time() - start)
    return 1 / min(durations)


def measure_on(model: nn.Layer, image: paddle.Tensor) -> Cost:
    """Returns the cost of ``model`` by calling it with ``image``, [1, C, H, W] or [1, H, W, C]."""
    model.eval()
    flops = 0

    def count_with(count: Count) -> Callable[[nn.Layer, Any, Any], None]:
        def hook(layer: nn.Layer, inputs: Any, output: Any) -> None:
            nonlocal flops
            flops += count(layer, inputs[0], output)

        return hook

    for layer in model.sublayers(include_self=True):
        count = _counter(layer)
        if count is not None:
            layer.register_forward_post_hook(count_with(count))
    model(image)
    return Cost(count_parameters(model), flops)


def count_parameters(model: nn.Layer) -> int:
    """Returns the number of trained parameters, which exclude batch norm's running statistics."""
    trained = (parameter for parameter in model.parameters() if not parameter.stop_gradient)
    return sum(int(np.prod(parameter.shape)) for parameter in trained)


def _counter(layer: nn.Layer) -> Count | None:
    if hasattr(type(layer), "multiplications"):  # of layers that multiply without these two kinds
        count: Count = type(layer).multiplications
        return count
    if isinstance(layer, nn.Conv2D):
        return _count_convolution
    return _count_linear if isinstance(layer, nn.Linear) else None


def _count_convolution(layer: nn.Layer, _image: Any, output: Any) -> int:
    pixels = int(np.prod(output.shape)) // int(layer.weight.shape[0])
    return pixels * int(np.prod(layer.weight.shape))


def _count_linear(layer: nn.Layer, _input: Any, output: Any) -> int:
    return int(np.prod(output.shape)) * int(layer.weight.shape[0])
