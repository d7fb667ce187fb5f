"""The networks that `benchmarks.accuracy.torch_training` trains: a WideResNet, and networks of timm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

_SLOPES = {"fixmatch": 0.1, "original": 0.0}  # of the leaky ReLU of ppcls's WideResNet, by kind of the blocks


class TorchWideBlock(nn.Module):  # type: ignore[misc]
    """A residual block of two convolutions; see `ppcls.arch.families.wide_resnet.WideBlock`."""

    def __init__(self, inputs: int, outputs: int, stride: int, first: bool, block: str) -> None:
        super().__init__()
        self.slope = _SLOPES[block]
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.projected = inputs != outputs
        if self.projected:
            self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.normalized = block == "original" or first or not self.projected

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride]."""
        inner = functional.leaky_relu(self.bn1(x), self.slope) if self.normalized else x
        shortcut = self.convShortcut(inner) if self.projected else x
        hidden = functional.leaky_relu(self.bn2(self.conv1(inner)), self.slope)
        return shortcut + self.conv2(hidden)


class TorchWideResNet(nn.Module):  # type: ignore[misc]
    """The network of `ppcls.arch.families.wide_resnet.WideResNet`, with the same names of parameters."""

    def __init__(self, classes: int, depth: int, widen_factor: int, block: str) -> None:
        super().__init__()
        self.slope = _SLOPES[block]
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        channels = 16
        for stage, stride in enumerate((1, 2, 2)):
            width = 16 * widen_factor << stage
            blocks = []
            for number in range((depth - 4) // 6):
                step = stride if number == 0 else 1
                blocks.append(TorchWideBlock(channels, width, step, stage == 0, block))
                channels = width
            self.add_module(f"block{stage + 1}", nn.ModuleDict({"layer": nn.Sequential(*blocks)}))
        self.bn1 = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, 3, H, W] to logits [B, classes]."""
        x = self.conv1(x)
        for stage in (self.block1, self.block2, self.block3):
            x = stage["layer"](x)
        return self.fc(functional.leaky_relu(self.bn1(x), self.slope).mean((2, 3)))


def build_network(network: dict[str, Any], classes: int, weights: str) -> nn.Module:
    """Returns a network with the weights with which the run of ppcls starts.

    Args:
        network: Settings of the network, from `benchmarks.accuracy.job`.
        classes: Number of classes.
        weights: File of arrays by the names of PyTorch (.npz).

    Raises:
        ValueError: The weights do not belong to the network.
    """
    if network["timm"] is None:
        model = TorchWideResNet(classes, network["depth"], network["widen_factor"], network["block"])
    else:
        import timm

        model = timm.create_model(network["timm"], num_classes=classes, **network["options"])
    if network["strides"] is not None:  # of the first convolution and the max pooling of a ResNet
        first, pooling = network["strides"]
        model.conv1.stride = (first, first)
        model.maxpool.stride = pooling
    if network["stem_patch"] is not None:
        # timm's ConvNeXt with patches of 2 pixels has one more convolution, which halves the size again.
        side = network["stem_patch"]
        model.stem[0] = nn.Conv2d(3, model.stem[0].out_channels, side, side)
    if network["batch_norm_momentum"] is not None:
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = 1 - network["batch_norm_momentum"]
    arrays = {name: torch.from_numpy(value) for name, value in np.load(weights).items()}
    expected = {name for name in model.state_dict() if not name.endswith("num_batches_tracked")}
    if different := sorted(expected ^ set(arrays)):
        raise ValueError(f"{weights}: the names of these weights differ: {different[:5]}")
    model.load_state_dict(arrays, strict=False)
    return model
