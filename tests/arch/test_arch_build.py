from __future__ import annotations

import inspect

import paddle
import pytest
from paddle.vision import models

from ppcls.arch.build import build_model, input_shape
from ppcls.arch.families.vision_transformer import VisionTransformer
from ppcls.config.sections.model import ALL_OPTIONS, options, wrong_size
from ppcls.registry import ARCHITECTURES, VISION_MODELS, UnknownNameError


def test_unknown_architecture_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'ResNet50'"):
        build_model("Resnet_50")


def test_options_are_those_that_the_models_take():
    common = {"class_num", "data_format", "input_image_channel"}
    for name in set(ARCHITECTURES) - set(VISION_MODELS):
        parameters = inspect.signature(ARCHITECTURES[name]).parameters
        if "others" in parameters:  # handed on to the plain ViT
            parameters = {**inspect.signature(VisionTransformer).parameters, **parameters}
        named = {each for each in options(name) if not each.startswith("use_fused")}
        taken = {*parameters} & {*ALL_OPTIONS}
        if name.startswith("ResNet") and not named:  # of bottlenecks, by the class of basic blocks
            taken -= {"layer_type", "use_first_short_conv"}
        assert taken == named, name
        assert common <= {*parameters}, name


def test_all_functions_of_paddle_vision_models_are_known():
    assert {*models.__all__} - {*VISION_MODELS} == {name for name in models.__all__ if name[0].isupper()} - {
        "LeNet"
    }


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_25", "squeezenet1_1", "LeNet", "googlenet"])
def test_a_model_of_paddle_vision_learns(name):
    shape = input_shape(name)
    model = build_model(name, class_num=7, input_image_channel=shape[0])
    logits = model(paddle.randn([2, *shape]))
    assert logits.shape == [2, 7]
    logits.square().mean().backward()
    for key, parameter in model.named_parameters():
        assert parameter.stop_gradient or parameter.grad is not None, key


def test_a_model_of_paddle_vision_takes_its_own_images_only():
    with pytest.raises(ValueError, match=r"resnet18 takes .*NCHW.* only"):
        build_model("resnet18", data_format="NHWC")
    with pytest.raises(ValueError, match=r"LeNet takes .*1.* only"):
        build_model("LeNet")


@pytest.mark.parametrize(
    ("name", "sides"), [("alexnet", (223, 254)), ("googlenet", (189, 236)), ("LeNet", (28, 31))]
)
def test_sides_that_a_model_of_paddle_vision_takes(name, sides):
    channels = input_shape(name)[0]
    model = build_model(name, class_num=7, input_image_channel=channels)
    model.eval()
    for side in sides:
        assert wrong_size(name, None, (side, side)) == ""
        assert model(paddle.zeros([1, channels, side, side])).shape == [1, 7]
    for side in (sides[0] - 1, sides[1] + 1):
        assert wrong_size(name, None, (side, side)) != ""
        with pytest.raises(ValueError, match=r"(?i)matmul"):
            model(paddle.zeros([1, channels, side, side]))
