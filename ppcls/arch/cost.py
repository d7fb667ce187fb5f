"""Measures the cost of an architecture: parameters, multiply-adds per image, and speed."""

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
        parameters: Number of trainable parameters.
        flops: Number of multiply-adds for one image in convolutions, linear layers and attention. Batch norm,
            activations and pooling are not counted, as is usual in papers.
    """

    parameters: int
    flops: int


def measure(build: Callable[[], nn.Layer], shape: Sequence[int]) -> Cost:
    """Returns the cost of a model on one image.

    The model is only built as a static program. No weights are initialized, and nothing is computed.

    Args:
        build: Function that builds the model.
        shape: Shape of the image, [C, H, W] or [H, W, C], in the layout of the model.
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
    """Returns how many images per second of CPU time a model predicts, with one image per batch.

    The result is the speed of the fastest image. CPU time is measured instead of elapsed time, so that
    results are comparable on a busy machine.

    Args:
        model: The model, on the CPU.
        shape: Shape of the image, [C, H, W] or [H, W, C], in the layout of the model.
        seconds: Minimum CPU time of the measurement in seconds. At least three images are measured, after one
            image for warm-up.
    """
    model.eval()
    image = paddle.ones([1, *shape])
    durations = list[float]()
    model(image)
    while len(durations) < 3 or sum(durations) < seconds:
        start = time.process_time()
        model(image).numpy()
        durations.append(time.process_time() - start)
    return 1 / min(durations)


def measure_on(model: nn.Layer, image: paddle.Tensor) -> Cost:
    """Calls ``model`` with ``image``, [1, C, H, W] or [1, H, W, C], and returns the cost."""
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
    """Returns the number of trainable parameters. Running statistics of batch norm are not counted."""
    trained = (parameter for parameter in model.parameters() if not parameter.stop_gradient)
    return sum(int(np.prod(parameter.shape)) for parameter in trained)


def _counter(layer: nn.Layer) -> Count | None:
    if hasattr(type(layer), "multiplications"):  # a layer that computes products itself, such as attention
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
