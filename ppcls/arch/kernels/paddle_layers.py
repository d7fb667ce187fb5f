"""Reads and sets what Paddle's layers keep only in private attributes.

Decisions:
- This is the only module with these attributes. In Paddle 2.6.2 and 3.3.1, a convolution has the attributes
  ``weight``, ``bias`` and ``output_padding``, and a normalization only ``weight`` and ``bias``. The other
  arguments of their constructors, and those of poolings, can't be read in a public way.
  `tests/arch/kernels/test_paddle_layers.py` fails if a version of Paddle renames one of them.
- Subclasses that remember their arguments are no alternative, because ``paddle.vision.models`` and users'
  architectures contain Paddle's own layers.
- The running statistics are buffers. ``named_buffers`` is public, but it has the same private names, which
  are those of checkpoints, and it would search for them in each step.
"""

from __future__ import annotations

from typing import Any

from paddle import Tensor, nn


def pair(value: Any) -> tuple[int, int]:
    """Returns a setting of a layer as (vertical, horizontal)."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def stride_of(layer: nn.Conv2D) -> tuple[int, int]:
    """Returns the stride of a convolution (vertical, horizontal)."""
    return pair(layer._stride)


def dilation_of(layer: nn.Conv2D) -> tuple[int, int]:
    """Returns the distance between elements of the kernel (vertical, horizontal)."""
    return pair(layer._dilation)


def groups_of(layer: nn.Conv2D) -> int:
    """Returns the number of groups of channels."""
    return int(layer._groups)


def layout_of(layer: nn.Layer) -> str:
    """Returns the layout of the images of a convolution or BatchNorm: ``NCHW`` or ``NHWC``."""
    return str(layer._data_format)


def pads_zeros(layer: nn.Conv2D) -> bool:
    """Returns whether a convolution pads with zeros, and not, for example, with a reflection of the image."""
    return bool(layer._padding_mode == "zeros")


def explicit_padding(layer: nn.Conv2D) -> tuple[int, int, int, int] | None:
    """Returns the zeros to add at the top, bottom, left and right; None if a layer pads in another way."""
    if not pads_zeros(layer) or layer._padding_algorithm != "EXPLICIT":
        return None
    padding = layer._updated_padding
    if isinstance(padding, int):
        return (padding, padding, padding, padding)
    if len(padding) == 2:
        return (padding[0], padding[0], padding[1], padding[1])
    top, bottom, left, right = padding
    return (top, bottom, left, right)


def padding_argument(layer: nn.Conv2D) -> Any:
    """Returns the padding in the form of the argument of ``F.conv2d``, such as [1, 1] or ``SAME``."""
    # With SAME or VALID, the other attribute is [0, 0].
    explicit = layer._padding_algorithm == "EXPLICIT"
    return layer._updated_padding if explicit else layer._padding_algorithm


def output_size_of(pooling: nn.AdaptiveAvgPool2D) -> tuple[int, int]:
    """Returns height and width of the output of an adaptive pooling."""
    return pair(pooling._output_size)


def running_statistics(norm: nn.Layer) -> tuple[Tensor, Tensor]:
    """Returns the running mean and variance of a BatchNorm layer, [C] each."""
    return norm._mean, norm._variance


def epsilon_of(norm: nn.Layer) -> float:
    """Returns the number that a normalization adds to the variance."""
    return float(norm._epsilon)


def momentum_of(norm: nn.Layer) -> float:
    """Returns the weight of the previous value when BatchNorm updates its running statistics."""
    return float(norm._momentum)


def set_momentum_of(norm: nn.Layer, momentum: float) -> None:
    """Sets the weight of the previous value when BatchNorm updates its running statistics."""
    norm._momentum = momentum


def uses_running_statistics(layer: nn.Layer) -> bool:
    """Returns whether a layer is a BatchNorm that uses its running statistics in training too."""
    return bool(getattr(layer, "_use_global_stats", None))


def use_running_statistics(norm: nn.Layer) -> None:
    """Makes a BatchNorm layer use its running statistics in training too, and never update them."""
    norm._use_global_stats = True


def replace_weight(layer: nn.Layer, weight: Tensor) -> None:
    """Makes a layer compute with another tensor as its weight.

    An assignment to ``layer.weight`` accepts only parameters, which have no gradient with respect to others.
    """
    layer._parameters["weight"] = weight


def normalized_axes(norm: nn.LayerNorm) -> int:
    """Returns the number of axes over which a layer norm computes its statistics."""
    return len(norm._normalized_shape)
