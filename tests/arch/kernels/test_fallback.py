"""A layer that the kernels can't compute uses Paddle's operators alone, with one line in the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import Tensor, nn
from paddle.nn.utils import weight_norm

from ppcls.arch.fused import convolution, linear
from ppcls.arch.fused.layers import fuse
from ppcls.arch.kernels import fallback
from ppcls.arch.layers.tokens import ChannelNorm, TokenBatchNorm
from ppcls.arch.layers.transformer import Mlp

NHWC: Any = {"data_format": "NHWC"}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines about layers, without their common beginning."""
    printed: list[str] = []
    fallback.report.cache_clear()
    monkeypatch.setattr(
        fallback, "print_error", lambda line: printed.append(line.removeprefix("fused kernels: "))
    )
    yield printed
    fallback.report.cache_clear()


class OtherConvolution(nn.Conv2D):  # type: ignore[misc]
    """A convolution with a forward pass of its own."""


class OtherLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer with a forward pass of its own."""


LAYOUT = "the kernels need images in NHWC"
PADDING = "the kernels need a padding with a given number of zeros"
FACTORS = "the kernels need a batch norm with learned factors"
FORMAT = "the kernels need float16 or bfloat16, got float32"
STATISTICS = "the kernels normalize by the statistics of the batch in training"
WINDOW = "the kernels need the same window, stride and padding in both directions"
UNCHANGED = [
    (nn.Conv2D(8, 8, 3), LAYOUT),
    (nn.Conv2D(8, 8, 3, padding="SAME", **NHWC), PADDING),
    (nn.Conv2D(8, 8, 3, padding=1, padding_mode="reflect", **NHWC), PADDING),
    (weight_norm(nn.Conv2D(8, 8, 3, **NHWC)), "its weight is computed from other parameters"),
    (OtherConvolution(8, 8, 3, **NHWC), "a subclass of Conv2D may compute something else"),
    (nn.Conv2DTranspose(8, 8, 3, **NHWC), "there is no kernel for Conv2DTranspose"),
    (nn.Conv1D(8, 8, 3), "there is no kernel for Conv1D"),
    (nn.BatchNorm2D(8), LAYOUT),
    (nn.BatchNorm2D(8, use_global_stats=True, **NHWC), STATISTICS),
    (nn.BatchNorm2D(8, weight_attr=False, bias_attr=False, **NHWC), FACTORS),
    (nn.SyncBatchNorm(8, **NHWC), "there is no kernel for SyncBatchNorm"),
    (TokenBatchNorm(8), "there is no kernel for BatchNorm1D"),
    (nn.GroupNorm(2, 8), "there is no kernel for GroupNorm"),
    (nn.MaxPool2D(2), LAYOUT),
    (nn.MaxPool2D((2, 3), **NHWC), WINDOW),
    (nn.MaxPool2D(2, (1, 2), **NHWC), WINDOW),
    (nn.MaxPool2D(2, ceil_mode=True, **NHWC), "the kernels have neither return_mask nor ceil_mode"),
    (nn.AvgPool2D(2), LAYOUT),
    (nn.AvgPool2D(3, 2, **NHWC), "the kernels need squares that do not overlap, without a padding"),
    (nn.AvgPool2D(2, divisor_override=3, **NHWC), "the kernels have no divisor_override"),
    (nn.AdaptiveAvgPool2D(1), LAYOUT),
    (nn.AdaptiveAvgPool2D(7, **NHWC), "the kernels compute one mean of all pixels"),
    (nn.LayerNorm([4, 8]), "the kernels normalize over the last axis only"),
    (nn.LayerNorm(8, bias_attr=False), "the kernels need a layer norm with learned factors"),
    (ChannelNorm(8, 1e-6, "NCHW"), LAYOUT),
    (OtherLinear(8, 8), "a subclass of Linear may compute something else"),
]


@pytest.mark.parametrize(("layer", "reason"), UNCHANGED)
def test_each_kind_of_layer_that_is_not_fused_has_one_line(
    layer: nn.Layer, reason: str, lines: list[str]
) -> None:
    kind = type(layer).__name__
    fuse(layer)
    assert "forward" not in vars(layer)
    assert lines == [f"the network ({kind}): Paddle's operators, because {reason}"]
    fuse(layer)
    assert len(lines) == 1
    fuse(nn.Sequential(nn.Linear(8, 8), layer, nn.ReLU()))
    assert lines[1:] == [f"1 ({kind}): Paddle's operators, because {reason}"]


def test_layers_of_a_class_share_a_line(lines: list[str]) -> None:
    network = nn.Sequential(*(nn.Conv2D(8, 8, 3) for _ in range(3)), nn.GroupNorm(2, 8), nn.Conv2D(8, 8, 1))
    fuse(network)
    assert lines == [
        f"0 (Conv2D) and 3 more: Paddle's operators, because {LAYOUT}",
        "3 (GroupNorm): Paddle's operators, because there is no kernel for GroupNorm",
    ]


def test_fused_layers_and_activations_have_no_line(lines: list[str]) -> None:
    convolution_layer = nn.Conv2D(8, 8, 3, **NHWC)
    norm = nn.BatchNorm2D(8, **NHWC)
    pools = nn.MaxPool2D(2, **NHWC), nn.AvgPool2D(2, **NHWC), nn.AdaptiveAvgPool2D(1, **NHWC)
    tokens = nn.LayerNorm(8), ChannelNorm(8, 1e-6, "NHWC"), Mlp(8, 16)
    fuse(nn.Sequential(convolution_layer, norm, nn.ReLU(), *pools, nn.Flatten(), *tokens, nn.Dropout()))
    assert lines == []


class Tokens(nn.Sequential):  # type: ignore[misc]
    """A sequence of layers with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8))
        self.token = self.create_parameter([8])


def test_containers_with_parameters_have_no_line(lines: list[str]) -> None:
    token = paddle.create_parameter([8], "float32")
    fuse(nn.LayerList([Tokens(), nn.ParameterList([token])]))
    assert lines == []


def _images(channels: int, side: int = 6) -> Tensor:
    return paddle.randn([2, side, side, channels])


SINGLE = "the kernels need a multiple of 4 channels in float32, got 6"


@pytest.mark.parametrize(
    ("layer", "image", "part", "reason"),
    [
        (nn.Linear(8, 8), paddle.randn([2, 8]), "a linear layer", FORMAT),
        (nn.LayerNorm(6), paddle.randn([2, 6]), "a layer norm or a residual sum", SINGLE),
        (
            nn.LayerNorm(8192),
            paddle.randn([2, 8192]),
            "a layer norm or a residual sum",
            "the kernels have at most 1024 channels, got 8192",
        ),
        (nn.BatchNorm2D(6, **NHWC), _images(6), "a batch norm", SINGLE),
        (nn.MaxPool2D(2, **NHWC), _images(6), "a max pooling", SINGLE),
        (
            nn.MaxPool2D(17, **NHWC),
            _images(8, 17),
            "a max pooling",
            "the kernels have windows of at most 16 pixels a side, got 17",
        ),
        (nn.AdaptiveAvgPool2D(1, **NHWC), _images(6), "a mean of all pixels", SINGLE),
        (nn.AvgPool2D(2, **NHWC), _images(8), "an average pooling", "the kernels have no gradients"),
        (
            nn.Conv2D(8, 8, 3, padding=[0, 1, 0, 1], **NHWC),
            _images(8),
            "a convolution of 8 channels with weights [8, 8, 3, 3]",
            "cuDNN needs the same padding at opposite sides",
        ),
    ],
)
def test_shapes_without_a_kernel_have_one_line(
    layer: nn.Layer, image: Tensor, part: str, reason: str, lines: list[str]
) -> None:
    expected = layer(image).numpy()
    fuse(layer)
    assert "forward" in vars(layer)
    assert lines == []
    for _ in range(2):
        np.testing.assert_allclose(layer(image).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert lines == [f"{part}: Paddle's operators, because {reason}"]


@settings(max_examples=20, deadline=None)
@given(inputs=st.integers(1, 40), outputs=st.integers(1, 40), half=st.booleans())
def test_linear_layers_of_all_widths_are_multiplied_or_reported(
    inputs: int, outputs: int, half: bool
) -> None:
    problem = linear.find_problem(inputs, outputs, paddle.float16 if half else paddle.float32)
    assert (problem is None) == (half and inputs % 8 == outputs % 8 == 0)
    if half and problem is not None:
        assert problem == f"the kernels need multiples of 8 features, got {inputs} and {outputs}"


def test_only_the_layer_without_a_kernel_falls_back(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network with one convolution that cuDNN rejects computes all others by cuDNN."""
    calls = []

    def find_problem(_image: Any, weight: tuple[int, ...], *_: Any) -> str | None:
        return "CUDNN_STATUS_BAD_PARAM" if weight[0] == 24 else None

    def convolve(x: Tensor, weight: Tensor, settings: Any) -> Tensor:
        calls.append(tuple(weight.shape))
        return nn.functional.conv2d(x, weight, padding=settings.padding[0], data_format="NHWC")

    monkeypatch.setattr(convolution, "find_problem", find_problem)
    monkeypatch.setattr(convolution, "convolve", convolve)
    widths = (8, 16, 24, 32)
    layers = [
        nn.Conv2D(inputs, outputs, 3, padding=1, bias_attr=False, **NHWC)
        for inputs, outputs in pairwise(widths)
    ]
    network = nn.Sequential(*layers)
    image = _images(8)
    expected = network(image).numpy()
    fuse(network)
    np.testing.assert_allclose(network(image).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert calls == [(16, 8, 3, 3), (32, 24, 3, 3)]
    assert lines == [
        "a convolution of 16 channels with weights [24, 16, 3, 3]: Paddle's operators, because "
        "CUDNN_STATUS_BAD_PARAM"
    ]


def test_images_of_several_sizes_share_a_line(lines: list[str]) -> None:
    layer = nn.Conv2D(8, 8, 3, padding=[0, 1, 0, 1], **NHWC)
    pooling = nn.AvgPool2D(2, **NHWC)
    fuse(nn.Sequential(layer, pooling))
    with paddle.no_grad():
        for side in (5, 7, 9):
            layer(_images(8, side))
            pooling(_images(8, side))
    assert lines == [
        "a convolution of 8 channels with weights [8, 8, 3, 3]: Paddle's operators, because cuDNN needs the "
        "same padding at opposite sides",
        "an average pooling: Paddle's operators, because the kernels need images of whole squares of 2 "
        "pixels",
    ]


def test_window_that_is_larger_than_the_images_is_left_to_paddle(lines: list[str]) -> None:
    layer = nn.MaxPool2D(3, **NHWC)
    image = _images(8, 2)
    expected = layer(image).numpy()
    fuse(layer)
    np.testing.assert_array_equal(layer(image).numpy(), expected)
    assert lines == ["a max pooling: Paddle's operators, because its window is larger than the images"]
