"""Every architecture equals PaddleClas's: parameter names, shapes, and logits for the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import onnxruntime
import paddle
import pytest
from paddleclas_reference import (
    BATCH,
    CLASSES,
    ODD_SIDES,
    ONLY_SIDES,
    OPTIONS,
    SCALES,
    SIDES,
    digest,
    fill,
    images,
    rates_of,
    run,
    state_of,
    still,
)
from paths import ROOT, SUPPORT
from unset_weights import unset_weights

from ppcls.arch.build import build_model
from ppcls.arch.cost import count_parameters, measure
from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.families.cspnet import CSPDarkNet
from ppcls.arch.families.cswin_transformer import CSWinTransformer
from ppcls.arch.families.cvt import CvT
from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.dsnet import DSNet
from ppcls.arch.families.efficientnet_v2 import EfficientNetV2
from ppcls.arch.families.hardnet import HarDNet
from ppcls.arch.families.hrnet import HRNet
from ppcls.arch.families.levit import LeViT
from ppcls.arch.families.mixnet import MixNet_S
from ppcls.arch.families.nextvit import NextViT
from ppcls.arch.families.pvt_v2 import PyramidVisionTransformerV2
from ppcls.arch.families.rednet import RedNet
from ppcls.arch.families.res2net import Res2Net
from ppcls.arch.families.resnest import ResNeSt
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.families.resnext_wsl import WideResNeXt101
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.swin_transformer_v2 import SwinTransformerV2
from ppcls.arch.families.tnt import TNT
from ppcls.arch.families.twins import Twins
from ppcls.arch.families.uniformer import UniFormer
from ppcls.arch.families.van import VAN
from ppcls.arch.families.vision_transformer import VisionTransformer
from ppcls.arch.families.xception import Xception
from ppcls.arch.families.xception_deeplab import XceptionDeepLab
from ppcls.arch.layers.residual import BottleneckBlock
from ppcls.deploy.export.onnx import convert
from ppcls.registry import ARCHITECTURES
from ppcls.zoo import ZOO

SCRIPT = sys.modules["paddleclas_reference"].__file__
# Written by this script from PaddleClas's own models, measured by `ppcls.arch.cost`.
TABLE = SUPPORT / "paddleclas_models.json"
# Written by `paddleclas_reference.py FILE.npz NAME ...` for `COMPARED`, `SWIN_V2` and ResNet18_dbb.
VALUES = SUPPORT / "paddleclas_values.npz"
PUBLISHED = json.loads(TABLE.read_text())
OURS = {name for name, entry in ZOO.items() if not entry.fixed_input} - {*PUBLISHED}
# One or more per family, which together contain all of its layers.
COMPARED = [
    "ResNet18",
    "ResNet50",
    "ResNet18_vd",
    "ResNet50_vc",
    "ResNeXt50_32x4d",
    "SE_ResNet18_vd",
    "SE_ResNeXt50_vd_32x4d",
    "MobileNetV1_x0_25",
    "MobileNetV2_x0_5",
    "MobileNetV3_small_x0_5",
    "MobileNetV3_large_x0_35",
    "EfficientNetB1",
    "PPLCNet_x0_5",
    "PPLCNetV2_small",
    "VGG11",
    "DenseNet121",
    "RegNetX_200MF",
    "Res2Net50_vd_26w_4s",
    "ShuffleNetV2_swish",
    "GhostNet_x0_5",
    "RepVGG_A0",
    "PPHGNet_tiny",
    "PPHGNetV2_B0",
    "ConvNeXt_tiny",
    "ViT_small_patch16_224",
    "DeiT_tiny_distilled_patch16_224",
    "SwinTransformer_tiny_patch4_window7_224",
    "AlexNet",
    "GoogLeNet",
    "SqueezeNet1_0",
    "SqueezeNet1_1",
    "DarkNet53",
    "Xception41",
    "Xception65",
    "Xception71",
    "HRNet_W18_C",
    "DLA34",
    "DLA60x_c",
    "InceptionV3",
    "InceptionV4",
    "ESNet_x0_25",
    "FasterNet_T0",
    "HarDNet39_ds",
    "HarDNet85",
    "ReXNet_1_3",
    "TinyNet_C",
    "RedNet26",
    "DPN68",
    "VAN_B0",
    "StarNet_S2",
    "PVT_V2_B0",
    "PVT_V2_B2_Linear",
    "ResNeXt101_32x8d_wsl",
    "ResNeSt50_fast_1s1x64d",
    "ResNeSt50",
    "Xception41_deeplab",
    "CSPDarkNet53",
    "pcpvt_small",
    "alt_gvt_small",
    "LeViT_128S",
    "TNT_small",
    "PeleeNet",
    "MobileNeXt_x1_0",
    "MixNet_S",
    "UniFormer_small",
    "UniFormer_small_plus",
    "CvT_13_224",
    "CSWinTransformer_tiny_224",
    "NextViT_small_224",
    "DSNet_tiny",
    "MicroNet_M0",
    "MicroNet_M3",
    "EfficientNetV2_S",
    "MobileNetV4_conv_small",
    "MobileNetV4_hybrid_medium",
    "MobileViT_XXS",
    "MobileViTV2_x0_5",
    "MobileViTV3_XXS",
    "MobileViTV3_x0_5",
]
# Allowed errors as a share of the largest logit. Stored values may come from another kind of CPU. MicroNet
# chooses between branches, so a rounding error can change some logits much, but not most of them.
TOLERANCE, BRANCHING = 1e-3, 0.1
SWIN_V2 = "SwinTransformerV2_tiny_patch4_window16_256"
NARROW = {  # small networks for tests that do not depend on the size
    "ConvNeXt_tiny": partial(ConvNeXt, (1, 1, 2, 1), (8, 12, 16, 24)),
    "ViT_small_patch16_224": partial(VisionTransformer, 224, 16, 24, 2, 3, qkv_bias=False),
    "SwinTransformer_tiny_patch4_window7_224": partial(SwinTransformer, 12, (1, 2, 1, 1), 3, 7),
    SWIN_V2: partial(SwinTransformerV2, 12, (1, 2, 1, 1), 3, 4, 128),
    "EfficientNetV2_S": partial(EfficientNetV2, (1, 1, 2, 1, 1, 2), (8, 8, 16, 16, 16, 24), 0.1),
    "alt_gvt_small": partial(Twins, (8, 12, 16, 24), (1, 2, 2, 3), (4, 4, 4, 4), (2, 2, 1, 1), True),
    "LeViT_128S": partial(LeViT, (16, 24, 32), 8, (1, 1, 1), (2, 3, 4)),
    "TNT_small": partial(TNT, 24, 8, 3, 2),
    "UniFormer_small": partial(UniFormer, (1, 1, 2, 1), scaled=True),
    "UniFormer_small_plus": partial(UniFormer, (1, 1, 1, 1), 32, True),
    "CvT_13_224": partial(CvT, (8, 12, 16), (1, 1, 2), (1, 2, 4)),
    "CSWinTransformer_tiny_224": partial(CSWinTransformer, 8, (1, 1, 2, 1), (2, 2, 4, 4), 3),
    "NextViT_small_224": partial(NextViT, 5),
    "DSNet_tiny": partial(DSNet, (1, 1, 1, 1)),
    "CSPDarkNet53": partial(CSPDarkNet, (1, 2, 1)),
    "MixNet_S": MixNet_S,
    "HRNet_W18_C": partial(HRNet, 4),
    "HarDNet39_ds": partial(HarDNet, (8, 12), (16, 24), (4, 6), (4, 4), (True, False), separable=True),
    "ResNeXt101_32x8d_wsl": partial(WideResNeXt101, 1),
}
SHALLOW = {  # networks with fewer repetitions of the same blocks
    "ResNet50": partial(ResNet, BottleneckBlock, (2, 1, 1, 1)),
    "Xception41": partial(Xception, ((128, 2), (256, 2), (728, 2)), 1),
    "Xception41_deeplab": partial(XceptionDeepLab, "xception_41", 1),
    "PVT_V2_B2_Linear": partial(PyramidVisionTransformerV2, (32, 64, 160, 256), (1,) * 4, linear_cost=True),
    "ResNeSt50_fast_1s1x64d": partial(ResNeSt, (1, 2, 1, 1), 32, 1),
    "DenseNet121": partial(DenseNet, (2, 2, 2, 2)),
    "RedNet26": partial(RedNet, (2, 1, 1, 1)),
    "Res2Net50_vd_26w_4s": partial(Res2Net, (2, 1, 1, 1), 26, 4, True),
    "VAN_B0": partial(VAN, (32, 64, 160, 256), (2, 1, 1, 1)),
}
FIXED_SIZE = ("ViT", "LeViT", "TNT")  # start of the names of networks that need `img_size`
LAYOUT_SIDES = {  # sides, and odd ones, of networks that do not accept the usual ones
    "AlexNet": ((224, 224), (230, 241)),
    "InceptionV3": ((107, 99), (99, 107)),
    "InceptionV4": ((139, 139), (107, 131)),
    "LeViT_128S": ((224, 224), (224, 224)),
    "TNT_small": ((224, 224), (224, 224)),
    "DSNet_tiny": ((96, 64), (96, 67)),
}
# Their layers occur in others of `COMPARED`, too; GoogLeNet has one layout.
SIMILAR = {"GoogLeNet", "ResNet50_vc", "SE_ResNeXt50_vd_32x4d", "ResNeSt50", "pcpvt_small"}
UNUSED = {"CvT_13_224": "stage2.blocks.1.attn.conv_proj_q."}  # the last block classifies by its class token
NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)
# Costly models whose layers occur in a smaller one of their family: only `make test-models` computes them.
COSTLY = {
    "HarDNet85",
    "ResNeXt101_32x8d_wsl",
    "ResNeSt50",
    "ResNeXt50_32x4d",
    "ResNet50_vc",
    "Xception65",
    "Xception71",
}
# Networks with other products than those of convolutions and linear layers, and one with these alone.
COUNTED = {
    *("LeViT_128S", "MobileViT_XXS", "PVT_V2_B0", "RedNet26", "ResNet50", "VAN_B0", "ViT_small_patch16_224"),
    *("SwinTransformer_tiny_patch4_window7_224", "EfficientNetB1"),
}
# Each takes more than a second. The logits of most of them are also compared with those of timm.
SLOW_TO_INITIALIZE = {
    *("VGG11", "InceptionV4", "InceptionV3", "DarkNet53", "CSPDarkNet53", "HRNet_W18_C", "AlexNet"),
    *(
        "EfficientNetV2_S",
        "CSWinTransformer_tiny_224",
        "Xception41_deeplab",
        "NextViT_small_224",
        "TNT_small",
    ),
    *("PVT_V2_B2_Linear", "SE_ResNeXt50_vd_32x4d", "Res2Net50_vd_26w_4s", "UniFormer_small_plus"),
    *("ResNeSt50_fast_1s1x64d", "alt_gvt_small", "CvT_13_224", "ViT_small_patch16_224", "ConvNeXt_tiny"),
    *("SwinTransformer_tiny_patch4_window7_224", "Xception41", "pcpvt_small", "DPN68", "PPHGNet_tiny"),
    *("ResNet50", "MobileNetV4_hybrid_medium", "DLA34", "DenseNet121", "EfficientNetB1"),
}
SLOW_TO_TRAIN = {
    *(
        "InceptionV4",
        "InceptionV3",
        "HRNet_W18_C",
        "DLA34",
        "MobileNetV4_hybrid_medium",
        "DarkNet53",
        "DPN68",
    ),
    *("EfficientNetB1", "AlexNet", "Xception41_deeplab"),
}
# Each takes two to six seconds. Others have blocks of the same kinds: windows, mixed kernels, attention.
SLOW_TO_EXPORT = {
    *("HRNet_W18_C", "NextViT_small_224", SWIN_V2, "CSWinTransformer_tiny_224", "MixNet_S", "DSNet_tiny"),
    *("alt_gvt_small", "UniFormer_small_plus", "UniFormer_small", "CvT_13_224", "CSPDarkNet53"),
}


def choose(names, costly):
    """Returns parameters of tests, of which those of ``costly`` models run in `make test-models`."""
    return [pytest.param(name, marks=[pytest.mark.table] * (name in costly)) for name in names]


@pytest.fixture(scope="module")
def reference():
    """Values of PaddleClas."""
    with np.load(VALUES) as file:
        return dict(file)


def build_like_paddleclas(reference, name):
    """Returns a model after a comparison of its initial state with that of PaddleClas's."""
    paddle.seed(1)
    model = build_model(name, class_num=CLASSES, **OPTIONS.get(name, {}))
    assert digest(model) == str(reference[f"{name}/names"])
    state = state_of(model)
    for key, (mean, std, peak) in zip(sorted(state), reference[f"{name}/init"], strict=True):
        value = state[key].numpy()
        if std < 1e-6 * abs(mean) or std == 0:
            assert np.allclose(value, mean), key
        else:  # six standard errors of the mean and of the deviation, wider for small tensors
            error = std / np.sqrt(value.size)
            assert abs(value.mean() - mean) < 6 * np.sqrt(2) * error, key
            assert abs(value.std() - std) < 6 * error, key
            if value.size > 1000:
                assert abs(np.abs(value).max() / peak - 1) < 0.5, key
    return model


@pytest.mark.parametrize("name", choose(COMPARED, COSTLY | SLOW_TO_INITIALIZE))
def test_initial_state_and_logits_equal_paddleclas(reference, name):
    model = build_like_paddleclas(reference, name)
    found = run(model, name)
    assert set(found) == {"eval", "train"} | ({"odd"} if name not in ONLY_SIDES else set())
    for key, ours in found.items():
        theirs = reference[f"{name}/{key}"]
        classifiers = 3 if name == "GoogLeNet" and key == "train" else 1
        assert theirs.shape == (len(images(ONLY_SIDES.get(name, SIDES))), classifiers * CLASSES)
        assert theirs.std() > 0
        assert_near(ours, theirs, name, key)


def assert_near(found, expected, name, key):
    """Compares logits of two machines."""
    errors = np.abs(found - expected) / np.abs(expected).max()
    assert np.median(errors) <= TOLERANCE, key
    assert errors.max() <= (BRANCHING if name.startswith("MicroNet") else TOLERANCE), key


@pytest.fixture(scope="module")
def computed(reference, tmp_path_factory):
    """Values that PaddleClas's models have on this machine."""
    path = tmp_path_factory.mktemp("paddleclas") / "values.npz"
    names = {key.partition("/")[0]: None for key in reference}
    subprocess.run([sys.executable, SCRIPT, str(path), *names], check=True)
    with np.load(path) as file:
        return dict(file)


@pytest.mark.table
def test_stored_values_equal_paddleclas(reference, computed):
    assert sorted(computed) == sorted(reference)
    for key, value in computed.items():
        if key.endswith("/names"):
            assert str(value) == str(reference[key])
        else:
            assert_near(value, reference[key], *key.split("/"))


@pytest.mark.table
@pytest.mark.parametrize("name", COMPARED)
def test_logits_equal_those_of_paddleclas_on_this_machine(computed, name):
    found = run(build_model(name, class_num=CLASSES, **OPTIONS.get(name, {})), name)
    for key, ours in found.items():
        theirs = computed[f"{name}/{key}"]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max(), err_msg=key)


def test_initial_state_of_swin_v2_equals_paddleclas(reference):
    """PaddleClas's network fails when it is called; test_timm_names.py compares ours with timm's."""
    build_like_paddleclas(reference, SWIN_V2)


@pytest.mark.parametrize("name", choose(PUBLISHED, {*PUBLISHED} - {*COMPARED}))
def test_parameters_and_dropout_rates_equal_paddleclas(name):
    with paddle.LazyGuard():  # initializes no weights
        model = build_model(name)
    assert count_parameters(model) == PUBLISHED[name]["parameters"]
    assert digest(model) == PUBLISHED[name]["names"]
    assert rates_of(model) == PUBLISHED[name]["rates"]


@pytest.mark.parametrize("name", choose(COMPARED, {*COMPARED} - COUNTED))
def test_flops_equal_paddleclas(name):
    cost = measure(partial(build_model, name), ZOO[name].input_shape)
    assert cost.parameters == PUBLISHED[name]["parameters"]
    # PaddleClas's EfficientNet computes an additional row and column when halving, and then crops them.
    excess = 2e-3 if name.startswith("EfficientNet") else 0
    assert cost.flops == pytest.approx(PUBLISHED[name]["flops"], rel=excess, abs=0)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("ResNet50", 4.1),
        ("ResNeXt50_32x4d", 4.2),
        ("SE_ResNeXt50_32x4d", 4.3),
        ("RegNetX_200MF", 0.2),
        ("RegNetX_32GF", 31.7),
        ("Res2Net50_26w_4s", 4.2),
        ("ShuffleNetV2_x1_0", 0.146),
        ("GhostNet_x1_0", 0.141),
        ("ConvNeXt_tiny", 4.5),
        ("ConvNeXt_large_384", 101.0),
        ("DeiT_small_patch16_224", 4.6),
        ("DeiT_base_patch16_224", 17.5),
        ("ViT_base_patch16_384", 55.4),
        ("SwinTransformer_tiny_patch4_window7_224", 4.5),
        ("SwinTransformer_base_patch4_window12_384", 47.0),
        ("SwinTransformer_large_patch4_window12_384", 103.9),
        ("SwinTransformerV2_tiny_patch4_window8_256", 5.9),
        ("SwinTransformerV2_base_patch4_window16_256", 21.8),
        ("SwinTransformerV2_base_patch4_window24_384", 54.7),
        ("SwinTransformerV2_large_patch4_window16_256", 47.5),
        ("SwinTransformerV2_large_patch4_window24_384", 115.4),
    ],
)
def test_flops_equal_papers(name, billions):
    assert ZOO[name].flops / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "plain"), [("SE_ResNet18", 11_689_512), ("SE_ResNet34", 21_797_672), ("SE_ResNet50", 25_557_032)]
)
def test_se_resnet_has_published_size(name, plain):
    """Section 4 of the paper: two layers of C x C/16 per block in addition to torchvision's plain network."""
    model = build_model(name)
    weighed = [
        value for key, value in model.named_parameters() if ".squeeze." in key or ".excitation." in key
    ]
    projection = 64 * 64 + 128 if name != "SE_ResNet50" else 0  # of the first block, which the paper lacks
    extra = sum(int(np.prod(each.shape)) for each in weighed)
    assert count_parameters(model) == plain + projection + extra


def test_architectures_beyond_paddleclas_are_known() -> None:
    lite = {f"EfficientNet_lite{size}" for size in range(5)}
    # PaddleClas has WideResNet, without a size of its own: see test_wide_resnet.py.
    # See test_foundation_transformer.py.
    foundation = {name for name in OURS if "foundation_transformer" in ZOO[name].builder}
    assert {"SE_ResNet18", "SE_ResNet34", "SE_ResNet50", "WideResNet"} | lite | foundation == OURS


@pytest.mark.table
def test_reference_table_equals_paddleclas(tmp_path):
    path = tmp_path / "table.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    # The most expensive ones take minutes, as PaddleClas's models must be computed.
    slow = (
        "CSWinTransformer_large",
        "ConvNeXt_base",
        "ConvNeXt_large",
        "CvT_W24",
        "SwinTransformer_base",
        "SwinTransformer_large",
    )
    expected = {name: row for name, row in PUBLISHED.items() if not name.startswith(slow)}
    subprocess.run([sys.executable, SCRIPT, str(path), *expected], check=True, env=environment)
    assert json.loads(path.read_text()) == expected


def noise(sides):
    """Returns a batch of images with four channels."""
    return np.random.default_rng(0).standard_normal((BATCH, 4, *sides), dtype=np.float32)


@pytest.mark.parametrize("name", choose(sorted({*COMPARED, SWIN_V2} - SIMILAR), COSTLY | SLOW_TO_TRAIN))
def test_layouts_agree_and_all_parameters_get_gradients(name, monkeypatch):
    for family in ("vgg", "alexnet"):  # saves 120 million weights
        monkeypatch.setattr(f"ppcls.arch.families.{family}._HIDDEN", 32)
    monkeypatch.setattr("ppcls.arch.families.darknet._DEPTHS", (1, 1, 2, 1, 1))
    if build := (NARROW | SHALLOW).get(name):
        monkeypatch.setitem(ARCHITECTURES._entries, name, build)
    results, weights = {}, {}
    for data_format, axes in (("NCHW", NCHW), ("NHWC", NHWC)):
        settings = {"data_format": data_format, "input_image_channel": 4, **OPTIONS.get(name, {})}
        with unset_weights():
            model = build_model(name, class_num=7, **settings)
        if weights:
            for key, tensor in model.state_dict().items():
                tensor.set_value(weights[key])
        else:
            fill(model, SCALES.get(name, 1.0))
            weights = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
        still(model)
        model.train()
        sides, odd_sides = LAYOUT_SIDES.get(name, (SIDES, ODD_SIDES))
        logits = model(paddle.to_tensor(noise(sides).transpose(axes)))
        # Without the second mean, the gradient of the last bias is a sum of rounding errors, which can be 0.
        ((logits - logits.mean(0)).square().mean() + logits.mean()).backward()
        found = {"logits": logits.numpy()}
        for key, parameter in model.named_parameters():
            if parameter.stop_gradient:
                found[key] = parameter.numpy()
                continue
            found[f"gradient of {key}"] = gradient = parameter.grad.numpy()
            assert np.isfinite(gradient).all(), key
            assert gradient.any() or key.startswith(UNUSED.get(name, "\0")), key
        model.eval()
        odd_images = noise(sides if name in OPTIONS else odd_sides)
        found["odd logits"] = model(paddle.to_tensor(odd_images.transpose(axes))).numpy()
        results[data_format] = found
    assert results["NCHW"]["logits"].shape == (BATCH, 7)
    for key, value in results["NCHW"].items():
        # One pixel that ReLU passes in one layout but not in the other changes many gradients.
        allowed = 0.2 if key.startswith("gradient") else 1e-3
        error = np.linalg.norm(results["NHWC"][key] - value)
        # LeViT's batch norm makes some gradients zero, except for rounding.
        assert error <= allowed * max(np.linalg.norm(value), 5e-3), key


@pytest.mark.parametrize("data_format", ["NCHW", pytest.param("NHWC", marks=pytest.mark.table)])
@pytest.mark.parametrize(
    "name", choose(sorted(NARROW.keys() - {"ResNeXt101_32x8d_wsl", "EfficientNetV2_S"}), SLOW_TO_EXPORT)
)
def test_exported_model_accepts_any_batch(name, data_format, tmp_path):
    """The batch size is unknown in a program; ONNX is checked for NCHW, the layout of exported models."""
    options = {"data_format": data_format, **({"img_size": 48} if name.startswith(FIXED_SIZE) else {})}
    model = NARROW[name](class_num=CLASSES, **options)
    fill(model)
    model.eval()
    side = 128 if name == "DSNet_tiny" else 48
    shape = [3, side, side] if data_format == "NCHW" else [side, side, 3]
    spec = paddle.static.InputSpec([None, *shape], "float32")
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((3, *shape), np.float32))
    expected = model(x).numpy()
    allowed = TOLERANCE * max(1.0, np.abs(expected).max())
    paddle.jit.save(paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(tmp_path / "m"))
    loaded = paddle.jit.load(str(tmp_path / "m"))
    for rows in (3, 1):
        np.testing.assert_allclose(loaded(x[:rows]).numpy(), expected[:rows], rtol=0, atol=allowed)
    if data_format == "NCHW":
        (program,) = (path for path in tmp_path.iterdir() if path.suffix in (".json", ".pdmodel"))
        session = onnxruntime.InferenceSession(convert(program, name))
        (image,) = session.get_inputs()
        for rows in (3, 1):
            (found,) = session.run(None, {image.name: x[:rows].numpy()})
            np.testing.assert_allclose(found, expected[:rows], rtol=0, atol=allowed)
