"""Logits of models of timm and torchvision with reproducible random weights, for test_timm_names.py.

Run it in an environment with NumPy, PyTorch, torchvision and timm, which the tests do not need:

    python tests/support/timm_reference.py

The script writes tests/support/timm_reference.json, with the shapes of the weights and the first logits of
each model. Tests compute the weights from their names and shapes, so the file does not contain them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
CLASSES, LOGITS = 32, 16
# Models of timm and torchvision to ours.
MODELS = {
    "resnet50": "ResNet50",
    "resnet18": "ResNet18",
    "resnet50d": "ResNet50_vd",
    "resnext50_32x4d": "ResNeXt50_32x4d",
    "seresnet50": "SE_ResNet50",
    "seresnext50_32x4d": "SE_ResNeXt50_32x4d",
    "deit_tiny_patch16_224": "DeiT_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224": "DeiT_tiny_distilled_patch16_224",
    "vit_base_patch16_224": "ViT_base_patch16_224",
    "convnext_tiny": "ConvNeXt_tiny",
    "densenet121": "DenseNet121",
    "regnetx_002": "RegNetX_200MF",
    "repvgg_a0": "RepVGG_A0",
    "tf_efficientnet_b0": "EfficientNetB0",
    "tf_efficientnet_lite0": "EfficientNet_lite0",
    "swin_tiny_patch4_window7_224": "SwinTransformer_tiny_patch4_window7_224",
    "mobilenetv2_100": "mobilenet_v2",
    "mobilenetv3_small_100": "mobilenet_v3_small",
    "mobilenetv3_large_100": "mobilenet_v3_large",
    "vgg11": "vgg11",
    "lcnet_100": "PPLCNet_x1_0",
    "lcnetv2_small": "PPLCNetV2_small",
    "mobilenetv1_100": "MobileNetV1",
    "efficientnet_b0": "EfficientNetB0",
    "efficientnet_lite0": "EfficientNet_lite0",
    "ghostnet_100": "GhostNet_x1_0",
    "res2net50_14w_8s": "Res2Net50_14w_8s",
    "res2net50d": "Res2Net50_vd_26w_4s",
    "seresnet18": "SE_ResNet18",
    "darknet53": "DarkNet53",
    "inception_v3": "inception_v3",
    "hgnet_tiny": "PPHGNet_tiny",
    "hgnetv2_b0": "PPHGNetV2_B0",
    "hgnetv2_b4": "PPHGNetV2_B4",
    "hrnet_w18": "HRNet_W18_C",
    "dla34": "DLA34",
    "dla60x_c": "DLA60x_c",
    "dpn68": "DPN68",
    "fasternet_t0": "FasterNet_T0",
    "pvt_v2_b0": "PVT_V2_B0",
    "pvt_v2_b2_li": "PVT_V2_B2_Linear",
    "rexnet_100": "ReXNet_1_0",
    "starnet_s1": "StarNet_S1",
    "tf_efficientnetv2_s": "EfficientNetV2_S",
    "mobilenetv4_conv_small": "MobileNetV4_conv_small",
    "mobilenetv4_hybrid_medium": "MobileNetV4_hybrid_medium",
    "mobilevit_xxs": "MobileViT_XXS",
    "mobilevitv2_050": "MobileViTV2_x0_5",
    "swinv2_tiny_window8_256": "SwinTransformerV2_tiny_patch4_window8_256",
    "tinynet_e": "TinyNet_E",
    "tnt_s_patch16_224": "TNT_small",
    "twins_pcpvt_small": "pcpvt_small",
    "twins_svt_small": "alt_gvt_small",
    "cspdarknet53": "CSPDarkNet53",
    "resnest50d": "ResNeSt50",
    "levit_128s": "LeViT_128S",
    "mixnet_s": "MixNet_S",
    "mixnet_l": "MixNet_L",
    "nextvit_small": "NextViT_small_224",
    "resnext101_32x8d": "ResNeXt101_32x8d_wsl",
    "xception41": "Xception41_deeplab",
    "inception_v4": "InceptionV4",
    "torchvision/resnet18": "ResNet18",
    "torchvision/densenet121": "DenseNet121",
    "torchvision/swin_t": "SwinTransformer_tiny_patch4_window7_224",
    "torchvision/vit_b_32": "ViT_base_patch32_384",
    "torchvision/convnext_tiny": "ConvNeXt_tiny",
    "torchvision/regnet_x_800mf": "RegNetX_800MF",
    "torchvision/alexnet": "AlexNet",
    "torchvision/inception_v3": "InceptionV3",
    "torchvision/efficientnet_b0": "EfficientNetB0",
    "torchvision/shufflenet_v2_x0_5": "ShuffleNetV2_x0_5",
    "torchvision/mobilenet_v2": "mobilenet_v2",
    "torchvision/mobilenet_v3_small": "mobilenet_v3_small",
    "torchvision/vgg11": "vgg11",
}
_SIDES = {
    "torchvision/vit_b_32": 384,
    "darknet53": 256,
    "cspdarknet53": 256,
    "inception_v3": 299,
    "inception_v4": 299,
    "xception41": 299,
    "torchvision/inception_v3": 299,
    "tinynet_e": 106,
    "tf_efficientnetv2_s": 384,
    "mobilenetv4_conv_small": 256,
    "mobilenetv4_hybrid_medium": 256,
    "mobilevit_xxs": 256,
    "mobilevitv2_050": 256,
    "swinv2_tiny_window8_256": 256,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "torchvision/vit_b_32": {"image_size": 384},
    "torchvision/inception_v3": {"init_weights": False},
}
# Factors on weights that keep features small, so that rounding errors are.
_GAINS = {"starnet_s1": 0.5, "nextvit_small": 0.5}


def random_weights(model: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the weights of a model of timm or torchvision, given their shapes."""
    gain = np.float32(_GAINS.get(model, 1.0))
    arrays = {name: random_array(name, tuple(shape)) for name, shape in shapes.items()}
    return {name: array * (gain if array.ndim > 1 else 1) for name, array in arrays.items()}


def random_array(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns the values of a weight: variances are positive, and activations neither explode nor vanish."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if name.endswith("running_var"):
        return np.exp(numbers * 0.1).astype(np.float32)
    if len(shape) > 1:
        return numbers * np.float32(np.prod(shape[1:]) ** -0.5)
    center = 1.0 if name.endswith("weight") else 0.0
    return np.float32(center) + numbers * np.float32(0.1)


def random_image(side: int = 224) -> np.ndarray[Any, Any]:
    """Returns a batch of one image, [1, 3, side, side]."""
    return np.random.default_rng(0).standard_normal((1, 3, side, side), np.float32)


def main() -> None:
    import timm
    import torch
    import torchvision
    from torchvision import models

    found = {}
    for name in MODELS:
        package, _, function = name.rpartition("/")
        if package:
            model = getattr(models, function)(num_classes=CLASSES, **_OPTIONS.get(name, {})).eval()
        else:
            model = timm.create_model(name, num_classes=CLASSES).eval()
        shapes = {
            key: list(tensor.shape)
            for key, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }
        state = {key: torch.from_numpy(array) for key, array in random_weights(name, shapes).items()}
        model.load_state_dict(state, strict=False)
        with torch.no_grad():
            logits = model(torch.from_numpy(random_image(_SIDES.get(name, 224))))[0, :LOGITS]
        found[name] = {"logits": [round(float(logit), 6) for logit in logits], "shapes": shapes}
    versions = {module.__name__: module.__version__ for module in (timm, torch, torchvision)}
    FILE.write_text(json.dumps({"versions": versions, "models": found}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
