"""Sequences of layers whose names in checkpoints can be chosen."""

from __future__ import annotations

from collections.abc import Mapping

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat
from ppcls.arch.layers.drop_path import DropPath


class ResidualSequence(nn.Sequential):  # type: ignore[misc]
    """A sequence of layers with an optional shortcut around all of them.

    Args:
        layers: Layers in order, by their names in checkpoints.
        shortcut: Whether to add the input to the output.
        drop: Probability of skipping the layers for an image in training; used only with a shortcut.
    """

    def __init__(self, layers: Mapping[str, nn.Layer], shortcut: bool, drop: float = 0.0) -> None:
        skips = {"drop_path": DropPath(drop)} if shortcut and drop else {}
        super().__init__(*layers.items(), *skips.items())
        self._shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H', W']."""
        y = nn.Sequential.forward(self, x)  # Paddle 2.6 cannot compile super()
        return x + y if self._shortcut else y


def add_branch(
    block: nn.Layer,
    x: Tensor,
    branch: Tensor,
    drop_path: nn.Layer,
    scale: Tensor | None = None,
) -> Tensor:
    """Returns ``x + drop_path(scale * branch)``, the sum at the end of a residual block.

    Args:
        block: The residual block. `ppcls.arch.fused` may give it a kernel that computes the sum.
        x: [B, ..., C].
        branch: Tensor with the shape of ``x``.
        drop_path: `DropPath` or `nn.Identity`.
        scale: Learned factor per channel, [C]; None for no factor.
    """
    if (kernel := getattr(block, "add_branch", None)) is not None:
        return kernel(x, branch, drop_path, scale)
    if scale is not None:
        branch = branch * scale
    return x + drop_path(branch)


def activate_linear(block: nn.Layer, layer: nn.Linear, x: Tensor, act: Activation) -> Tensor:
    """Returns ``act(layer(x))``. `ppcls.arch.fused` may give the block a kernel that computes it."""
    if (kernel := getattr(block, "activate_linear", None)) is not None:
        return kernel(layer, x, act)
    return act(layer(x))


def add_linear_branch(
    block: nn.Layer,
    x: Tensor,
    hidden: Tensor,
    layer: nn.Linear,
    drop_path: nn.Layer,
    scale: Tensor | None = None,
) -> Tensor:
    """Returns ``x + drop_path(scale * layer(hidden))``. See `add_branch`."""
    if (kernel := getattr(block, "add_linear_branch", None)) is not None:
        return kernel(x, hidden, layer, drop_path, scale)
    return add_branch(block, x, layer(hidden), drop_path, scale)


class LayerScale(nn.Layer):  # type: ignore[misc]
    """Multiplies each channel by a learned factor, whose initial value is ``scale``."""

    def __init__(self, channels: int, scale: float, data_format: DataFormat) -> None:
        super().__init__()
        self.gamma = self.create_parameter([channels], default_initializer=nn.initializer.Constant(scale))
        self._shape = [-1] if data_format == "NHWC" else [1, -1, 1, 1]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x * self.gamma.reshape(self._shape)


def named(conv: str, norm: str, layers: ConvNorm, act: nn.Layer | None = None) -> dict[str, nn.Layer]:
    """Returns the layers of a `ConvNorm` by the names ``conv`` and ``norm``, and an optional activation."""
    pair = zip((conv, norm), layers.names, strict=True)
    activation = {} if act is None else {f"{norm}_act": act}
    return {name: getattr(layers, own_name) for name, own_name in pair} | activation
