"""Names in YAML to the objects behind them.

An entry is a string ``module:attribute`` that is imported when it is first looked up. So the whole
vocabulary is known, and an unknown name can be answered with the nearest known one, without
importing Paddle.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any


def nearest(name: str, known: list[str], listing: str | None = None) -> str:
    """Asks ``; did you mean 'X'?``; where nothing is near it names the known, or says what lists them."""
    folded = {each.lower(): each for each in known}
    match = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    if match:
        return f"; did you mean '{folded[match[0]]}'?"
    if listing is not None:
        return f"; {listing}"
    return f"; known: {', '.join(sorted(known))}" if known else ""


class UnknownNameError(ValueError):
    """A name that the registry does not know; the text suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: list[str], instead: str | None = None) -> None:
        self.hint = f"; {instead}" if instead else nearest(name, known)
        super().__init__(f"unknown {kind} '{name}'{self.hint}")


class Registry:
    """One kind of named thing: transforms, architectures, optimizers.

    Args:
        kind: What an entry is, as error messages call it.
        entries: Name to ``module:attribute``.
        elsewhere: Names that PaddleClas's files have and that are not there, and what to write instead.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, str], elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self._elsewhere = elsewhere or {}
        self._entries: dict[str, Any] = dict(entries)

    def register(self, name: str, entry: Any) -> None:
        """Adds ``entry`` (an object, or ``module:attribute``) under ``name``.

        Raises:
            ValueError: ``name`` is taken.
        """
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> Any:
        """Returns the object called ``name``.

        Raises:
            UnknownNameError: No such name.
        """
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, list(self._entries), self._elsewhere.get(name))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry


def _in(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


# The functions of paddle.vision.models, and the one class there that has none.
VISION_MODELS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnext50_32x4d", "resnext50_64x4d", "resnext101_32x4d", "resnext101_64x4d"),
    *("resnext152_32x4d", "resnext152_64x4d", "vgg11", "vgg13", "vgg16", "vgg19"),
    *("mobilenet_v1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "densenet264", "alexnet"),
    *("inception_v3", "squeezenet1_0", "squeezenet1_1", "googlenet", "LeNet"),
    *("shufflenet_v2_x0_25", "shufflenet_v2_x0_33", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0"),
    *("shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "shufflenet_v2_swish"),
)
ARCHITECTURES = Registry(
    "architecture",
    {
        # First, so that of two names that differ in case only a misspelt one is answered with ours.
        **_in("paddle.vision.models", *VISION_MODELS),
        "googlenet": "ppcls.arch.families.vision:MainGoogLeNet",
        **_in("ppcls.arch.families.resnet", "ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152"),
        **_in("ppcls.arch.families.resnet", "ResNet18_vd", "ResNet34_vd", "ResNet50_vd", "ResNet101_vd"),
        **_in("ppcls.arch.families.resnet", "ResNet152_vd", "ResNet200_vd"),
        **_in("ppcls.arch.families.resnet", "ResNet50_vc"),
        **_in("ppcls.arch.families.resnet", "ResNeXt50_32x4d", "ResNeXt50_64x4d", "ResNeXt101_32x4d"),
        **_in("ppcls.arch.families.resnet", "ResNeXt101_64x4d", "ResNeXt152_32x4d", "ResNeXt152_64x4d"),
        **_in(
            "ppcls.arch.families.resnet", "ResNeXt50_vd_32x4d", "ResNeXt50_vd_64x4d", "ResNeXt101_vd_32x4d"
        ),
        **_in(
            "ppcls.arch.families.resnet", "ResNeXt101_vd_64x4d", "ResNeXt152_vd_32x4d", "ResNeXt152_vd_64x4d"
        ),
        **_in("ppcls.arch.families.resnet", "SE_ResNet18", "SE_ResNet34", "SE_ResNet50"),
        **_in("ppcls.arch.families.resnet", "SE_ResNet18_vd", "SE_ResNet34_vd", "SE_ResNet50_vd"),
        **_in("ppcls.arch.families.resnet", "SE_ResNeXt50_32x4d", "SE_ResNeXt101_32x4d"),
        **_in("ppcls.arch.families.resnet", "SE_ResNeXt50_vd_32x4d", "SENet154_vd"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV1_x0_25", "MobileNetV1_x0_5", "MobileNetV1_x0_75"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV1"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV2_x0_25", "MobileNetV2_x0_5", "MobileNetV2_x0_75"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV2", "MobileNetV2_x1_5", "MobileNetV2_x2_0"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV3_small_x0_35", "MobileNetV3_small_x0_5"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV3_small_x0_75", "MobileNetV3_small_x1_0"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV3_small_x1_25", "MobileNetV3_large_x0_35"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV3_large_x0_5", "MobileNetV3_large_x0_75"),
        **_in("ppcls.arch.families.mobilenet", "MobileNetV3_large_x1_0", "MobileNetV3_large_x1_25"),
        **_in("ppcls.arch.families.efficientnet", "EfficientNetB0_small", "EfficientNetB0", "EfficientNetB1"),
        **_in("ppcls.arch.families.efficientnet", "EfficientNetB2", "EfficientNetB3", "EfficientNetB4"),
        **_in("ppcls.arch.families.efficientnet", "EfficientNetB5", "EfficientNetB6", "EfficientNetB7"),
        **_in(
            "ppcls.arch.families.pp_lcnet", "PPLCNet_x0_25", "PPLCNet_x0_35", "PPLCNet_x0_5", "PPLCNet_x0_75"
        ),
        **_in("ppcls.arch.families.pp_lcnet", "PPLCNet_x1_0", "PPLCNet_x1_5", "PPLCNet_x2_0", "PPLCNet_x2_5"),
        **_in("ppcls.arch.families.pp_lcnet", "PPLCNetV2_small", "PPLCNetV2_base", "PPLCNetV2_large"),
        **_in("ppcls.arch.families.vgg", "VGG11", "VGG13", "VGG16", "VGG19"),
        **_in("ppcls.arch.families.densenet", "DenseNet121", "DenseNet161", "DenseNet169", "DenseNet201"),
        **_in("ppcls.arch.families.densenet", "DenseNet264"),
        **_in(
            "ppcls.arch.families.regnet", "RegNetX_200MF", "RegNetX_400MF", "RegNetX_600MF", "RegNetX_800MF"
        ),
        **_in(
            "ppcls.arch.families.regnet", "RegNetX_1600MF", "RegNetX_3200MF", "RegNetX_4GF", "RegNetX_6400MF"
        ),
        **_in("ppcls.arch.families.regnet", "RegNetX_8GF", "RegNetX_12GF", "RegNetX_16GF", "RegNetX_32GF"),
        **_in("ppcls.arch.families.res2net", "Res2Net50_26w_4s", "Res2Net50_14w_8s", "Res2Net50_vd_26w_4s"),
        **_in("ppcls.arch.families.res2net", "Res2Net101_vd_26w_4s", "Res2Net200_vd_26w_4s"),
        **_in(
            "ppcls.arch.families.shufflenet_v2",
            "ShuffleNetV2_x0_25",
            "ShuffleNetV2_x0_33",
            "ShuffleNetV2_x0_5",
        ),
        **_in(
            "ppcls.arch.families.shufflenet_v2", "ShuffleNetV2_x1_0", "ShuffleNetV2_x1_5", "ShuffleNetV2_x2_0"
        ),
        **_in("ppcls.arch.families.shufflenet_v2", "ShuffleNetV2_swish"),
        **_in("ppcls.arch.families.ghostnet", "GhostNet_x0_5", "GhostNet_x1_0", "GhostNet_x1_3"),
        **_in("ppcls.arch.families.repvgg", "RepVGG_A0", "RepVGG_A1", "RepVGG_A2", "RepVGG_B0", "RepVGG_B1"),
        **_in(
            "ppcls.arch.families.repvgg",
            "RepVGG_B1g2",
            "RepVGG_B1g4",
            "RepVGG_B2",
            "RepVGG_B2g4",
            "RepVGG_B3",
        ),
        **_in("ppcls.arch.families.repvgg", "RepVGG_B3g4", "RepVGG_D2se"),
        **_in("ppcls.arch.families.pp_hgnet", "PPHGNet_tiny", "PPHGNet_small", "PPHGNet_base"),
        **_in("ppcls.arch.families.pp_hgnet", "PPHGNetV2_B0", "PPHGNetV2_B1", "PPHGNetV2_B2", "PPHGNetV2_B3"),
        **_in("ppcls.arch.families.pp_hgnet", "PPHGNetV2_B4", "PPHGNetV2_B5", "PPHGNetV2_B6"),
        **_in("ppcls.arch.families.convnext", "ConvNeXt_tiny", "ConvNeXt_small", "ConvNeXt_base_224"),
        **_in(
            "ppcls.arch.families.convnext", "ConvNeXt_base_384", "ConvNeXt_large_224", "ConvNeXt_large_384"
        ),
        **_in("ppcls.arch.families.vision_transformer", "ViT_small_patch16_224", "ViT_base_patch16_224"),
        **_in("ppcls.arch.families.vision_transformer", "ViT_base_patch16_384", "ViT_base_patch32_384"),
        **_in("ppcls.arch.families.vision_transformer", "ViT_large_patch16_224", "ViT_large_patch16_384"),
        **_in("ppcls.arch.families.vision_transformer", "ViT_large_patch32_384"),
        **_in("ppcls.arch.families.vision_transformer", "DeiT_tiny_patch16_224", "DeiT_small_patch16_224"),
        **_in("ppcls.arch.families.vision_transformer", "DeiT_base_patch16_224", "DeiT_base_patch16_384"),
        **_in(
            "ppcls.arch.families.vision_transformer",
            "DeiT_tiny_distilled_patch16_224",
            "DeiT_small_distilled_patch16_224",
        ),
        **_in(
            "ppcls.arch.families.vision_transformer",
            "DeiT_base_distilled_patch16_224",
            "DeiT_base_distilled_patch16_384",
        ),
        **_in("ppcls.arch.families.swin_transformer", "SwinTransformer_tiny_patch4_window7_224"),
        **_in("ppcls.arch.families.swin_transformer", "SwinTransformer_small_patch4_window7_224"),
        **_in("ppcls.arch.families.swin_transformer", "SwinTransformer_base_patch4_window7_224"),
        **_in("ppcls.arch.families.swin_transformer", "SwinTransformer_base_patch4_window12_384"),
        **_in("ppcls.arch.families.swin_transformer", "SwinTransformer_large_patch4_window7_224"),
        **_in("ppcls.arch.families.swin_transformer", "SwinTransformer_large_patch4_window12_384"),
    },
)
DATASETS = Registry(
    "dataset",
    _in(
        "ppcls.config.sections.dataset",
        "ImageNetDataset",
        "MultiScaleDataset",
        "ImageFolderDataset",
        "MultiLabelDataset",
        "WebDataset",
        "TFRecordDataset",
        "RecordIODataset",
        "LMDBDataset",
        "PythonDataset",
    ),
)
INPUT_SIZES = Registry(
    "schedule of image sizes", _in("ppcls.config.sections.sampler", "MultiScale", "Progressive")
)
SAMPLERS = Registry(
    "sampler",
    _in(
        "ppcls.config.sections.sampler",
        "DistributedBatchSampler",
        "BatchSampler",
        "ClassBalancedSampler",
        "WeightedSampler",
        "RepeatedAugSampler",
        "MultiScaleSampler",
        "PKSampler",
    ),
    {"DistributedRandomIdentitySampler": "write PKSampler, with num_instances as sample_per_id"},
)
TRANSFORMS = Registry(
    "transform",
    {
        **_in(
            "ppcls.data.transforms.specs.basic", "DecodeImage", "ResizeImage", "CropImage", "RandCropImage"
        ),
        **_in("ppcls.data.transforms.specs.arrays", "DecodeNumpy"),
        **_in("ppcls.data.transforms.specs.basic", "RandFlipImage", "NormalizeImage", "ToCHWImage"),
        **_in("ppcls.data.transforms.specs.geometry", "Pad", "RandomCropImage", "RandCropImageV2"),
        **_in("ppcls.data.transforms.specs.geometry", "RandomRotation", "RandomRot90"),
        **_in("ppcls.data.transforms.specs.policies", "AutoAugment", "RandAugment", "TrivialAugment"),
        **_in("ppcls.data.transforms.specs.timm_auto_augment", "TimmAutoAugment"),
        **_in("ppcls.data.transforms.specs.photometric", "ColorJitter", "RandomGrayscale"),
        **_in("ppcls.data.transforms.specs.photometric", "PCALighting", "GaussianBlur"),
        **_in("ppcls.data.transforms.specs.erasing", "RandomErasing", "Cutout", "GridMask"),
        **_in("ppcls.data.transforms.specs.erasing", "HideAndSeek"),
    },
)
SOURCES = Registry("Python source", {})  # filled by the user's code
BATCH_TRANSFORMS = Registry(
    "batch transform", _in("ppcls.config.sections.transform", "MixupOperator", "CutmixOperator", "OpSampler")
)
LOSSES = Registry(
    "loss",
    {
        **_in("ppcls.config.sections.objective", "CELoss", "BCELoss"),
        **_in("ppcls.config.objectives.multi_label", "MultiLabelLoss", "MultiLabelAsymmetricLoss"),
        **_in(
            "ppcls.config.objectives.distillation_losses",
            "DistillationGTCELoss",
            "DistillationMultiLabelLoss",
        ),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationCELoss", "DistillationKLDivLoss"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationDMLLoss", "DistillationDKDLoss"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationWSLLoss", "DistillationSKDLoss"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationDISTLoss"),
        **_in("ppcls.config.objectives.layer_losses", "DistillationDistanceLoss", "DistillationRKDLoss"),
        **_in("ppcls.config.objectives.layer_losses", "DistillationPairLoss", "AFDLoss"),
        **_in("ppcls.config.objectives.embedding", "TripletLossV2", "TripletLoss"),
    },
    {
        "MGDLoss": "write DistillationPairLoss with base_loss_name: MGDLoss",
        "PEFDLoss": "write DistillationPairLoss with base_loss_name: PEFDLoss",
        "MixCELoss": "CELoss takes mixed labels",
    },
)
METRICS = Registry(
    "metric",
    {
        **_in("ppcls.config.sections.objective", "TopkAcc"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationTopkAcc"),
        **_in("ppcls.config.sections.objective", "PerClassRecall", "ConfusionMatrix", "TprAtFpr"),
        **_in("ppcls.config.objectives.embedding", "Recallk", "mAP"),
        **_in(
            "ppcls.config.objectives.multi_label",
            "AccuracyScore",
            "ATTRMetric",
            "HammingDistance",
            "MultiLabelMAP",
        ),
    },
    {"Topk": "write TopkAcc, with topk"},
)
HEADS = Registry(
    "head", _in("ppcls.config.objectives.embedding", "FC", "ArcMargin", "CosMargin", "CircleMargin")
)
POSTPROCESSES = Registry(
    "postprocessing",
    _in("ppcls.config.sections.infer", "Topk", "MultiLabelThreshOutput", "DistillationPostProcess"),
)
OPTIMIZERS = Registry(
    "optimizer",
    _in(
        "ppcls.config.sections.optimizer",
        *("SGD", "Momentum", "Adam", "AdamW", "AdamWDL", "RMSProp", "Lamb", "LARS", "Lion"),
    ),
)
SCHEDULES = Registry(
    "learning-rate schedule",
    {
        **_in("ppcls.config.sections.schedule", "Constant", "Piecewise", "Cosine", "Linear", "Polynomial"),
        **_in(
            "ppcls.config.sections.schedule",
            "MultiStepDecay",
            "Step",
            "Cyclic",
            "OneCycleLR",
            "ReduceOnPlateau",
        ),
        "MultiStep": "ppcls.config.sections.schedule:MultiStepDecay",
    },
)
