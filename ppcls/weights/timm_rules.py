"""Rules that rename the parameters of ppcls, named as in PaddleClas, to the names in timm and torchvision.

A rule is a pattern and a replacement for `re.sub`. The rules of a family are applied one after the other.
Rules may depend on the model, for example on the numbers of the blocks that start a stage. If no rule matches
a parameter, its name is the same in both. Only networks that compute the same numbers have rules.
`tests/support/timm_reference.py` compares their logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from paddle import nn
from paddle.vision import models

from ppcls.arch.families.alexnet import AlexNet
from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.families.cspnet import CSPDarkNet
from ppcls.arch.families.darknet import DarkNet53
from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.dla import DLA
from ppcls.arch.families.dpn import DPN
from ppcls.arch.families.efficientnet import EfficientNet
from ppcls.arch.families.efficientnet_lite import EfficientNetLite
from ppcls.arch.families.efficientnet_v2 import EfficientNetV2
from ppcls.arch.families.fasternet import FasterNet
from ppcls.arch.families.ghostnet import GhostNet
from ppcls.arch.families.hrnet import HRNet
from ppcls.arch.families.inception_v3 import InceptionV3
from ppcls.arch.families.inception_v4 import InceptionV4
from ppcls.arch.families.levit import LeViT
from ppcls.arch.families.mixnet import MixNet
from ppcls.arch.families.mobilenet import MobileNetV1Net
from ppcls.arch.families.mobilenet_v4 import MobileNetV4
from ppcls.arch.families.mobilevit import MobileViT
from ppcls.arch.families.mobilevit_v2 import MobileViTV2
from ppcls.arch.families.nextvit import NextViT
from ppcls.arch.families.pp_hgnet import PPHGNet, PPHGNetV2
from ppcls.arch.families.pp_lcnet import PPLCNet, PPLCNetV2
from ppcls.arch.families.pvt_v2 import PyramidVisionTransformerV2
from ppcls.arch.families.regnet import RegNet
from ppcls.arch.families.repvgg import RepVGG
from ppcls.arch.families.resnest import ResNeSt
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.families.resnext_wsl import WideResNeXt101
from ppcls.arch.families.rexnet import ReXNet
from ppcls.arch.families.shufflenet_v2 import ShuffleNetV2
from ppcls.arch.families.starnet import StarNet
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.tnt import TNT
from ppcls.arch.families.twins import Twins
from ppcls.arch.families.vision_transformer import VisionTransformer
from ppcls.arch.families.xception_deeplab import XceptionDeepLab
from ppcls.arch.layers.residual import NumberedResNet
from ppcls.weights.timm_hybrid_rules import (
    MOBILEVIT,
    MOBILEVIT_V2,
    efficientnet_v2,
    levit,
    mobilenet_v4,
    nextvit,
)
from ppcls.weights.timm_mobile_rules import (
    GHOSTNET,
    LCNET,
    LCNET_V2,
    MOBILENET_V1,
    TORCHVISION_SHUFFLENET_V2,
    Replacement,
    Rules,
    block_positions,
    efficientnet,
    mixnet,
    mobilenet_v2,
    mobilenet_v3,
    shift,
    torchvision_efficientnet,
    torchvision_mobilenet_v3,
    unit,
)
from ppcls.weights.timm_network_rules import (
    HRNET,
    INCEPTION_V3,
    INCEPTION_V4,
    RESNEST,
    RESNEXT_WSL,
    dpn,
    xception,
)


def timm_rules(model: nn.Layer) -> Rules | None:
    """Returns the rules for timm's names; None for a family that timm does not have."""
    return next((rules(model) for kind, rules in _TIMM.items() if isinstance(model, kind)), None)


def torchvision_rules(model: nn.Layer) -> Rules:
    """Returns the rules for torchvision's names. For some families, they are the same as for timm."""
    own_rules = next((rules(model) for kind, rules in _TORCHVISION.items() if isinstance(model, kind)), None)
    return (timm_rules(model) or ()) if own_rules is None else own_rules


def apply_rules(rules: Rules, name: str) -> str:
    """Returns ``name`` after applying all rules in order."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _resnet(model: nn.Layer) -> Rules:
    """Returns the rules of ResNet, ResNeXt, SE-ResNet, Res2Net and their "vd" variants ("d" in timm)."""
    numbered = isinstance(model, NumberedResNet)
    shortcuts = (layer for name, layer in model.named_sublayers() if name.endswith(".pool"))
    pooled = int(any(isinstance(layer, nn.AvgPool2D) for layer in shortcuts))
    names = model.state_dict()
    if "conv1_1._conv.weight" in names or "stem.1.conv.weight" in names:
        by = -1 if numbered else 0
        start = unit(
            r"^(?:conv1_|stem\.)(\d)\.",
            lambda match: f"conv1.{3 * (int(match[1]) + by)}.",
            lambda match: "bn1." if int(match[1]) + by == 2 else f"conv1.{3 * (int(match[1]) + by) + 1}.",
        )
    else:
        start = unit(rf"^{model.stem_name if numbered else 'stem.0'}\.", "conv1.", "bn1.")
    blocks: tuple[str, Replacement] = (
        r"^bb_(\d)_(\d+)\.",
        lambda match: f"layer{int(match[1]) + 1}.{match[2]}.",
    )
    if not numbered:
        count = len(model.blocks)
        places = block_positions(i == 0 or f"blocks.{i}.short.conv.weight" in names for i in range(count))
        blocks = (
            r"^blocks\.(\d+)\.",
            lambda match: f"layer{places[int(match[1])][0] + 1}.{places[int(match[1])][1]}.",
        )
    return [
        *start,
        blocks,
        *unit(r"^(layer.*)\.res\d\w+_branch2b_(\d)\.", shift("{}.convs.{}.", -1), shift("{}.bns.{}.", -1)),
        *unit(r"^(layer.*)\.conv(\d)\.", shift("{}.conv{}.", 1), shift("{}.bn{}.", 1)),
        *unit(r"\.short\.", f".downsample.{pooled}.", f".downsample.{pooled + 1}."),
        (r"\.scale\.squeeze\.", ".se.fc1."),
        (r"\.scale\.excitation\.", ".se.fc2."),
        (r"^out\.", "fc."),
    ]


_CONVNEXT: Rules = [
    (r"^head\.", "head.fc."),
    (r"^norm\.", "head.norm."),
    (r"^downsample_layers\.0\.", "stem."),
    (r"^stages\.(\d)\.", r"stages.\1.blocks."),
    (r"^downsample_layers\.(\d)\.", r"stages.\1.downsample."),
    (r"\.dwconv\.", ".conv_dw."),
    (r"\.pwconv(\d)\.", r".mlp.fc\1."),
]
_TORCHVISION_CONVNEXT: Rules = [
    (r"^head\.", "classifier.2."),
    (r"^norm\.", "classifier.0."),
    (r"^downsample_layers\.(\d)\.", lambda match: f"features.{2 * int(match[1])}."),
    (r"^stages\.(\d)\.", lambda match: f"features.{2 * int(match[1]) + 1}."),
    (r"\.gamma$", ".layer_scale"),
    (r"\.dwconv\.", ".block.0."),
    (r"\.norm\.", ".block.2."),
    (r"\.pwconv1\.", ".block.3."),
    (r"\.pwconv2\.", ".block.5."),
]
_DENSENET: Rules = [
    *unit(r"^conv1_func\.", "features.conv0.", "features.norm0."),
    (r"^batch_norm\.", "features.norm5."),
    (
        r"^db_conv_(\d)\.conv\d_(\d+)\.",
        lambda match: f"features.denseblock{int(match[1]) - 1}.denselayer{match[2]}.",
    ),
    *unit(
        r"^tr_conv(\d)_blk\.conv_ac_func\.",
        shift("features.transition{}.conv.", -1),
        shift("features.transition{}.norm.", -1),
    ),
    *unit(r"\.bn_ac_func(\d)\.", r".conv\1.", r".norm\1."),
    (r"^out\.", "classifier."),
]
_REGNET: Rules = [
    (r"^conv\.", "stem."),
    (r"^s(\d)_b(\d+)\.", r"s\1.b\2."),
    (r"\.conv(\d)\.", shift(".conv{}.", 1)),
    (r"\.short\.", ".downsample."),
    *unit(r"\.", ".conv.", ".bn."),
    (r"^out\.", "head.fc."),
]
_TORCHVISION_REGNET: Rules = [
    (r"^conv\.", "stem."),
    (r"^s(\d)_b(\d+)\.", lambda match: f"trunk_output.block{match[1]}.block{match[1]}-{int(match[2]) - 1}."),
    (r"\.conv(\d)\.", lambda match: f".f.{'abc'[int(match[1])]}."),
    (r"\.short\.", ".proj."),
    *unit(r"\.", ".0.", ".1."),
    (r"^out\.", "fc."),
]
_REPVGG: Rules = [
    (r"^stage0\.", "stem."),
    (r"^stage(\d)\.", shift("stages.{}.", -1)),
    (r"\.rbr_dense\.", ".conv_kxk."),
    (r"\.rbr_1x1\.", ".conv_1x1."),
    (r"\.rbr_identity\.", ".identity."),
    (r"\.se\.down\.", ".attn.fc1."),
    (r"\.se\.up\.", ".attn.fc2."),
    (r"^linear\.", "head.fc."),
]
_SWIN: Rules = [
    (r"^layers\.(\d)\.downsample\.", shift("layers.{}.downsample.", 1)),
    (r"^head\.", "head.fc."),
]
_TORCHVISION_SWIN: Rules = [
    (r"^patch_embed\.proj\.", "features.0.0."),
    (r"^patch_embed\.norm\.", "features.0.2."),
    (r"^layers\.(\d)\.blocks\.", lambda match: f"features.{2 * int(match[1]) + 1}."),
    (r"^layers\.(\d)\.downsample\.", lambda match: f"features.{2 * int(match[1]) + 2}."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
]
_TORCHVISION_VIT: Rules = [
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    (r"\.norm(\d)\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
    (r"^norm\.", "encoder.ln."),
    (r"^head\.", "heads.head."),
]
_HGNET: Rules = [
    (r"\.aggregation_conv\.|\.aggregation_squeeze_conv\.", ".aggregation.0."),
    (r"\.att\.conv\.", ".aggregation.1.conv."),
    (r"\.aggregation_excitation_conv\.", ".aggregation.1."),
    (r"^last_conv\.", "head.last_conv.0."),
    (r"^lab\.", "head.last_conv.2."),
    (r"^fc\.", "head.fc."),
]
_VGG: Rules = [
    (r"^classifier\.0\.", "pre_logits.fc1."),
    (r"^classifier\.3\.", "pre_logits.fc2."),
    (r"^classifier\.6\.", "head.fc."),
]
_DARKNET: Rules = [
    (r"^_conv1\.", "stem.conv1."),
    (r"^_conv2\.", "stages.0.conv_down."),
    (r"^_downsample_(\d)\.", shift("stages.{}.conv_down.", 1)),
    (r"^_basic_block_(\d)(\d)\._", lambda match: f"stages.{match[1]}.blocks.{int(match[2]) - 1}."),
    (r"\._conv\.", ".conv."),
    (r"\._bn\.", ".bn."),
    (r"^_out\.", "head.fc."),
]
_ALEXNET = {"_conv1": 0, "_conv2": 3, "_conv3": 6, "_conv4": 8, "_conv5": 10}
_TORCHVISION_ALEXNET: Rules = [
    (r"^(_conv\d)\.(?:_conv\.)?", lambda match: f"features.{_ALEXNET[match[1]]}."),
    (r"^_fc6\.", "classifier.1."),
    (r"^_fc7\.", "classifier.4."),
    (r"^_fc8\.", "classifier.6."),
]
_FASTERNET: Rules = [
    (r"^stages\.(\d)\.blocks\.", lambda match: f"stages.{int(match[1]) // 2}.blocks."),
    (
        r"^stages\.(\d)\.(reduction|norm)\.",
        lambda match: f"stages.{(int(match[1]) + 1) // 2}.downsample.{match[2]}.",
    ),
    (r"^avgpool_pre_head\.1\.", "conv_head."),
    (r"^head\.", "classifier."),
]
_PVT_V2: Rules = [
    (r"^patch_embed1\.", "patch_embed."),
    (r"^patch_embed(\d)\.", shift("stages.{}.downsample.", -1)),
    (r"^block(\d)\.", shift("stages.{}.blocks.", -1)),
    (r"^norm(\d)\.", shift("stages.{}.norm.", -1)),
    (r"\.dwconv\.dwconv\.", ".dwconv."),
]
_REXNET_LAYERS = {"e": "conv_exp", "d": "conv_dw", "s": "se", "p": "conv_pwl"}


def _rexnet_block(match: re.Match[str]) -> str:
    number, layer = int(match[1]) - 3, int(match[2])
    order = "ee dds pp" if number > 2 else "ee dd pp" if number else "dd pp"  # order of the layers of a block
    kind = "" if order[layer] == "s" else "bn." if layer and order[layer - 1] == order[layer] else "conv."
    return f"features.{number}.{_REXNET_LAYERS[order[layer]]}.{kind}"


_REXNET: Rules = [
    (r"^features\.(\d+)\.out\.(\d)\.", _rexnet_block),
    (r"\.se\.fc\.1\.", ".se.bn."),
    (r"\.se\.fc\.0\.", ".se.fc1."),
    (r"\.se\.fc\.3\.", ".se.fc2."),
    (r"^features\.0\.(?=\w+$)", "stem.conv."),
    (r"^features\.1\.(?=\w+$)", "stem.bn."),
    (r"^features\.19\.", "features.16.conv."),
    (r"^features\.20\.", "features.16.bn."),
    (r"^output\.1\.", "head.fc."),
]


_TIMM: dict[type[nn.Layer], Callable[[nn.Layer], Rules]] = {
    ResNet: _resnet,
    NumberedResNet: _resnet,
    ConvNeXt: lambda _: _CONVNEXT,
    DenseNet: lambda _: _DENSENET,
    RegNet: lambda _: _REGNET,
    RepVGG: lambda _: _REPVGG,
    EfficientNet: efficientnet,
    EfficientNetV2: efficientnet_v2,
    MobileNetV4: mobilenet_v4,
    MobileViT: lambda _: MOBILEVIT,
    MobileViTV2: lambda _: MOBILEVIT_V2,
    SwinTransformer: lambda _: _SWIN,
    PPHGNet: lambda _: [(r"^stem\.", "stem.stem."), *_HGNET],
    PPHGNetV2: lambda _: _HGNET,
    VisionTransformer: lambda _: (),
    EfficientNetLite: lambda _: (),
    DarkNet53: lambda _: _DARKNET,
    DLA: lambda _: (),
    DPN: dpn,
    FasterNet: lambda _: _FASTERNET,
    HRNet: lambda _: HRNET,
    InceptionV3: lambda _: INCEPTION_V3,
    InceptionV4: lambda _: INCEPTION_V4,
    LeViT: levit,
    MixNet: mixnet,
    NextViT: nextvit,
    ResNeSt: lambda _: RESNEST,
    WideResNeXt101: lambda _: RESNEXT_WSL,
    XceptionDeepLab: xception,
    PyramidVisionTransformerV2: lambda _: _PVT_V2,
    ReXNet: lambda _: _REXNET,
    StarNet: lambda _: (),
    TNT: lambda _: (),
    Twins: lambda _: (),
    CSPDarkNet: lambda _: [(r"^fc\.", "head.fc.")],
    GhostNet: lambda _: GHOSTNET,
    MobileNetV1Net: lambda _: MOBILENET_V1,
    PPLCNet: lambda _: LCNET,
    PPLCNetV2: lambda _: LCNET_V2,
    models.DenseNet: lambda _: _DENSENET,
    models.InceptionV3: lambda _: INCEPTION_V3,
    models.ResNet: lambda _: (),
    models.VGG: lambda _: _VGG,
    models.MobileNetV2: mobilenet_v2,
    models.MobileNetV3Large: mobilenet_v3,
    models.MobileNetV3Small: mobilenet_v3,
}
_TORCHVISION: dict[type[nn.Layer], Callable[[nn.Layer], Rules]] = {
    AlexNet: lambda _: _TORCHVISION_ALEXNET,
    ConvNeXt: lambda _: _TORCHVISION_CONVNEXT,
    EfficientNet: torchvision_efficientnet,
    ShuffleNetV2: lambda _: TORCHVISION_SHUFFLENET_V2,
    RegNet: lambda _: _TORCHVISION_REGNET,
    SwinTransformer: lambda _: _TORCHVISION_SWIN,
    VisionTransformer: lambda _: _TORCHVISION_VIT,
    models.VGG: lambda _: (),  # Paddle's VGG has the names of torchvision
    models.MobileNetV2: lambda _: (),
    models.MobileNetV3Large: torchvision_mobilenet_v3,
    models.MobileNetV3Small: torchvision_mobilenet_v3,
}
