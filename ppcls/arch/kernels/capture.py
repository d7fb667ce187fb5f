"""Finds layers whose operators a CUDA graph would replay wrongly."""

from __future__ import annotations

from paddle import nn

from ppcls.arch.kernels.geometry import find_convolution_problem
from ppcls.arch.kernels.paddle_layers import groups_of, layout_of


def find_capture_obstacle(model: nn.Layer) -> str | None:
    """Returns why a CUDA graph of a model would compute wrong results; None if no reason is known.

    Before Paddle's depthwise convolution of channels-last images, ``TransposeNormal`` copies strides to the
    GPU from memory of the host that it frees at once (``paddle/phi/kernels/funcs/math_function.cu`` of 2.6.2
    and 3). A replay copies whatever is there then. On an H200, this ended seven runs of EfficientNet and
    MobileNet with an illegal memory access, and compute-sanitizer named this kernel.

    The fused kernels don't use this operator (`ppcls.arch.fused.layers`). Calls of functions, such as
    ``F.conv2d`` in a user's architecture, are not found.
    """
    for name, layer in model.named_sublayers(include_self=True):
        if "forward" not in vars(layer) and _is_depthwise(layer) and layout_of(layer).endswith("C"):
            # The fused kernels leave other layers to Paddle.
            fusible = type(layer) is nn.Conv2D and find_convolution_problem(layer) is None
            return (
                f"Paddle's depthwise convolutions can't be replayed in {layout_of(layer)} "
                f"({name or type(layer).__name__}); use Arch.data_format=NCHW"
                + (" or Global.fused_kernels=True" if fusible else "")
            )
    return None


def _is_depthwise(layer: nn.Layer) -> bool:
    if isinstance(layer, (nn.Conv1D, nn.Conv2D)):
        channels: int = layer.weight.shape[1] * groups_of(layer)
    elif isinstance(layer, (nn.Conv1DTranspose, nn.Conv2DTranspose)):
        channels = layer.weight.shape[0]
    else:
        return False
    return 1 < groups_of(layer) == channels
