"""What an architecture costs: its parameters, and the multiplications of one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn


class Cost(NamedTuple):
    """What a model costs.

    Attributes:
        parameters: Numbers that training changes.
        flops: Multiply-adds of one image, in convolutions, linear layers and attention. Papers count so;
            batch norm, activations and poolings are left out.
    """

    parameters: int
    flops: int


def measure(build: Callable[[], nn.Layer], shape: Sequence[int]) -> Cost:
    """Returns what the model that ``build`` makes costs on an image of ``shape``.

    The model is only described to Paddle, as a static program: no weight is drawn, and nothing computed.

    Args:
        build: Makes the model.
        shape: Of the image, [C, H, W] or [H, W, C] as the model takes it.
    """
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            return measure_on(build(), paddle.static.data("image", [1, *shape], "float32"))
    finally:
        if dynamic:
            paddle.disable_static()


def measure_on(model: nn.Layer, image: paddle.Tensor) -> Cost:
    """Returns what ``model`` costs by giving it ``image``, [1, C, H, W] or [1, H, W, C]."""
    model.eval()
    counts = [0]
    for layer in model.sublayers(include_self=True):
        count = _counter(layer)
        if count is not None:
            layer.register_forward_post_hook(_adding(counts, count))
    model(image)
    return Cost(count_parameters(model), counts[0])


def count_parameters(model: nn.Layer) -> int:
    """Returns how many numbers of ``model`` are trained; batch norm's running statistics are not."""
    trained = (each for each in model.parameters() if not each.stop_gradient)
    return sum(int(np.prod(each.shape)) for each in trained)


Count = Callable[[nn.Layer, Any, Any], int]


def _counter(layer: nn.Layer) -> Count | None:
    own: Count | None = getattr(type(layer), "multiplications", None)  # of a layer that multiplies by itself
    if own is not None:
        return own
    if isinstance(layer, nn.Conv2D):
        return _of_convolution
    return _of_linear if isinstance(layer, nn.Linear) else None


def _of_convolution(layer: nn.Layer, _image: Any, made: Any) -> int:
    pixels = int(np.prod(made.shape)) // int(layer.weight.shape[0])
    return pixels * int(np.prod(layer.weight.shape))


def _of_linear(layer: nn.Layer, _rows: Any, made: Any) -> int:
    return int(np.prod(made.shape)) * int(layer.weight.shape[0])


def _adding(counts: list[int], count: Count) -> Callable[[nn.Layer, Any, Any], None]:
    def hook(layer: nn.Layer, inputs: Any, made: Any) -> None:
        counts[0] += count(layer, inputs[0], made)

    return hook
