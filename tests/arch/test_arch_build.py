from __future__ import annotations

import inspect
from functools import partial

import paddle
import pytest
from paddle.nn import functional as F
from paddle.vision import models

from ppcls.arch.build import build_model
from ppcls.arch.section import ALL_OPTIONS
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import GoogLeNetLoss
from ppcls.registry import ARCHITECTURES, UnknownNameError
from ppcls.zoo import ZOO


def test_build_model_unknown_name_suggests_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'ResNet50'"):
        build_model("Resnet_50")


# Parameters of a shared class that have no effect in a family, or that the family sets itself.
UNUSED = {
    **{family: {"depth"} for family in ("ViT", "DeiT", "TNT")},
    "ResNet with bottlenecks": {"layer_type", "use_first_short_conv"},
    "MobileNetV4": {"timm_variant"},
    "MobileViTV2": {"drop_rate"},
    "MobileViTV3": {"drop_rate"},
    "MobileViTV3 with MobileViTV2 blocks": {"drop_rate"},
    "PPHGNet": {"dropout"},
    "SwinTransformerV2": {"shift_single_window"},
    "SwinTransformerV2 for 384 x 384 pixels": {"shift_single_window"},
    "TinyNet": {"dropout"},
}


def builder_parameters(builder):
    """Returns the names of a builder's parameters, with those of the class that it passes further ones to."""
    signature = inspect.signature(builder)
    names = {*signature.parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        while isinstance(builder, partial):
            builder = builder.func
        built = (
            builder if inspect.isclass(builder) else builder.__globals__[builder.__annotations__["return"]]
        )
        for kind in (built, *built.__bases__):
            names |= {*inspect.signature(kind).parameters}
    return names


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if not entry.fixed_input])
def test_builder_signature_matches_options_of_table(name):
    parameters = builder_parameters(ARCHITECTURES[name]) - UNUSED.get(ZOO[name].family, set())
    assert parameters & {*ALL_OPTIONS} == {
        option for option in ZOO[name].options if not option.startswith("use_fused")
    }
    assert {"class_num", "data_format", "input_image_channel"} <= parameters


def test_table_holds_all_functions_of_paddle_vision_models():
    fixed = {name for name, entry in ZOO.items() if entry.fixed_input}
    named = {name for name in models.__all__ if name[0].islower() or name == "LeNet"}
    assert fixed == named | {"GoogLeNet"}


def test_all_classifiers_of_googlenet_get_gradients():
    model = build_model("GoogLeNet", class_num=7)
    outputs = model(0.1 * paddle.randn([2, 3, 224, 224]))
    label = paddle.to_tensor([1, 6])
    loss = build_criterion((GoogLeNetLoss(),))(outputs, label)
    costs = [float(F.cross_entropy(logits, label)) for logits in outputs.values()]
    assert float(loss) == pytest.approx(costs[0] + 0.3 * (costs[1] + costs[2]), rel=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    logits = model(0.1 * paddle.randn([2, 3, 224, 224]))
    expected = float(F.cross_entropy(logits, label))
    assert float(build_criterion((GoogLeNetLoss(),))(logits, label)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_25", "squeezenet1_1", "LeNet", "googlenet"])
def test_paddle_vision_model_gets_gradients(name):
    shape = ZOO[name].input_shape
    model = build_model(name, class_num=7, input_image_channel=shape[0])
    logits = model(paddle.randn([2, *shape]))
    assert logits.shape == [2, 7]
    logits.square().mean().backward()
    for key, parameter in model.named_parameters():
        assert parameter.stop_gradient or parameter.grad is not None, key


def test_paddle_vision_model_rejects_other_layout_and_channels():
    with pytest.raises(ValueError, match=r"resnet18: expected NCHW images with 3 channels, got NHWC"):
        build_model("resnet18", data_format="NHWC")
    with pytest.raises(ValueError, match=r"LeNet: .* with 1 channel, got NCHW images with 3"):
        build_model("LeNet")


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "LeNet"])
def test_sides_of_table_are_the_limits_of_the_model(name):
    entry = ZOO[name]
    assert entry.last_side is not None
    model = build_model(name, class_num=7, input_image_channel=entry.channels)
    model.eval()
    for side in (entry.first_side, entry.last_side):
        assert model(paddle.zeros([1, entry.channels, side, side])).shape == [1, 7]
    for side in (entry.first_side - 1, entry.last_side + 1):
        with pytest.raises(ValueError, match=r"(?i)matmul"):
            model(paddle.zeros([1, entry.channels, side, side]))
