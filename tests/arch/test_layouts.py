"""Networks with random layers compute the same numbers in both layouts of images, with or without oneDNN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle import nn

from ppcls.arch import fuse
from ppcls.arch.build import build_model
from ppcls.arch.families.dsnet import DSNet
from ppcls.arch.families.hardnet import HarDNet
from ppcls.arch.families.uniformer import UniFormer
from ppcls.arch.families.van import VAN
from ppcls.arch.families.xception_deeplab import XceptionDeepLab
from ppcls.arch.layers.drop_path import ChannelsLastDropout, StepMasks, attach_masks, draws_random_numbers
from ppcls.registry import ARCHITECTURES
from ppcls.zoo import ZOO, Architecture

BATCH = 4
SIDE = 64
RATE = 0.3
RATES = {"drop_rate", "attn_drop_rate", "drop_path_rate", "dropout", "dropout_prob", "classifier_dropout"}
# All families with dropout on feature maps of several pixels
FAMILIES = [
    "SqueezeNet1_1",
    "HarDNet85",
    "Xception41_deeplab",
    "WideResNet",
    "VAN_B0",
    "DSNet_tiny",
    "UniFormer_small",
    "NextViT_small_224",
]
# With few blocks and channels, because the published networks compute slowly
SHALLOW = {
    "HarDNet85": partial(
        HarDNet, (16, 32), (32, 64), (10, 10), (4, 4), (True, False), drop_rate=0.2, drop_last=0.1
    ),
    "Xception41_deeplab": partial(XceptionDeepLab, "xception_41", 1),
    "VAN_B0": partial(VAN, (32, 64, 160, 256), (1, 1, 1, 1)),
    "DSNet_tiny": partial(DSNet, (1, 1, 1, 1)),
    "UniFormer_small": partial(UniFormer, (1, 1, 1, 1)),
}
# The constants of its attention are float32.
_NOT_IN_FLOAT64 = "SwinTransformerV2"


@pytest.fixture
def _float64() -> Iterator[None]:
    before = paddle.get_default_dtype()
    paddle.set_default_dtype("float64")
    yield
    paddle.set_default_dtype(before)


def _others() -> list[str]:
    """Returns the smallest architecture of each other family and set of options."""
    smallest: dict[tuple[str, tuple[str, ...]], Architecture] = {}
    for entry in sorted(ZOO.values(), key=lambda entry: entry.flops):
        if not entry.fixed_input and not entry.name.startswith(_NOT_IN_FLOAT64):
            smallest.setdefault((entry.family, entry.options), entry)
    return [entry.name for entry in smallest.values() if entry.name not in FAMILIES]


def _build(name: str, layout: str) -> tuple[nn.Layer, int]:
    """Returns a model whose random layers all have the rate `RATE`, and the side of its images."""
    entry = ZOO[name]
    options: dict[str, Any] = {option: RATE for option in entry.options if option in RATES}
    side = max(SIDE, entry.first_side)
    if entry.patch and "img_size" in entry.options:
        options["img_size"] = side = 2 * entry.patch
    elif entry.patch:
        side = entry.side
    paddle.seed(1)
    model = build_model(name, 8, layout, 3, **options)  # type: ignore[arg-type]
    model.train()
    return model, side


def _train(name: str, layout: str, *, masked: bool, fused: bool = False) -> NDArray[Any]:
    """Returns the logits of two training steps, which differ in their masks."""
    model, side = _build(name, layout)
    if fused:
        fuse.fuse(model, "cpu")
    masks = StepMasks(1, 0)
    if masked:
        attach_masks(model, masks)
        assert not draws_random_numbers(model)
    images = np.random.default_rng(1).standard_normal((BATCH, 3, side, side))
    if layout == "NHWC":
        images = images.transpose(0, 2, 3, 1)
    paddle.seed(2)
    results = []
    for update in range(2):
        masks.begin_step(update)
        outputs = model(paddle.to_tensor(images, dtype=paddle.get_default_dtype()))
        results.append((outputs["logits"] if isinstance(outputs, dict) else outputs).numpy())
    return np.stack(results)


def _relative_difference(value: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(value - expected) / np.linalg.norm(expected))


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("masked", [False, True], ids=["generator", "masks"])
@pytest.mark.parametrize(
    "name", [*FAMILIES[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[4:])]
)
def test_feature_maps_drop_the_same_pixels_in_both_layouts(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in SHALLOW:
        monkeypatch.setitem(ARCHITECTURES._entries, name, SHALLOW[name])
    first, second = (_train(name, layout, masked=masked) for layout in ("NCHW", "NHWC"))
    assert _relative_difference(second, first) < 1e-6
    assert _relative_difference(first[1], first[0]) > 0.01  # the steps drop other pixels


@pytest.mark.slow
@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("name", _others())
def test_random_layers_of_all_families_are_the_same_in_both_layouts(name: str) -> None:
    first, second = (_train(name, layout, masked=False) for layout in ("NCHW", "NHWC"))
    assert _relative_difference(second, first) < 1e-6


@pytest.mark.parametrize("name", FAMILIES)
def test_fused_networks_drop_the_same_pixels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in SHALLOW:
        monkeypatch.setitem(ARCHITECTURES._entries, name, SHALLOW[name])
    first = _train(name, "NCHW", masked=False)
    fused = _train(name, "NHWC", masked=False, fused=True)
    # Of float32 sums in another order, in networks with batch norm. Other pixels differ by more than 0.05.
    assert _relative_difference(fused, first) < 0.01


@pytest.mark.parametrize("mode", ["upscale_in_train", "downscale_in_infer"])
def test_channels_last_dropout_equals_dropout_in_nchw(mode: Any) -> None:
    x = paddle.to_tensor(np.random.default_rng(1).standard_normal((4, 5, 6, 7)), dtype="float32")
    nchw, nhwc = nn.Dropout(0.25, mode=mode), ChannelsLastDropout(0.25, mode)
    for training in (True, False):
        results = []
        for layer, image in ((nchw, x), (nhwc, x.transpose([0, 2, 3, 1]))):
            layer.training = training
            image = image.detach()
            image.stop_gradient = False
            paddle.seed(1)
            y = layer(image)
            y.square().sum().backward()
            results.append([y.numpy(), image.grad.numpy()])
        (y, gradient), last = results
        y_last, gradient_last = (array.transpose(0, 3, 1, 2) for array in last)
        np.testing.assert_allclose(y_last, y, rtol=1e-6)
        np.testing.assert_allclose(gradient_last, gradient, rtol=1e-6)
        assert (y == 0).mean() > 0.1 or not training


@pytest.mark.parametrize("masked", [False, True])
def test_channels_last_dropout_draws_for_cuda_graphs_only_with_masks(masked: bool) -> None:
    model = nn.Sequential(ChannelsLastDropout(0.5, "upscale_in_train"))
    if masked:
        attach_masks(model, StepMasks(1, 0))
    assert draws_random_numbers(model) is not masked


def test_channels_last_dropout_compiles() -> None:
    spec = [paddle.static.InputSpec([None, 4, 5, 6])]
    layer = ChannelsLastDropout(0.5, "upscale_in_train")
    compiled = paddle.jit.to_static(layer, input_spec=spec, full_graph=True)
    assert {*np.unique(compiled(paddle.ones([8, 4, 5, 6])).numpy())} == {0.0, 2.0}
