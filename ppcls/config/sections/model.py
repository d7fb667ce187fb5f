"""The section ``Arch``: which model is built, and with which options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    ClassCountOrAuto,
    Count,
    Decay,
    NonNegative,
    Positive,
    Section,
    Side,
    error_at,
    show,
)
from ppcls.registry import ARCHITECTURES, suggest_architecture
from ppcls.zoo import ZOO, architecture, families_with

AUTO = "auto"  # value of `Arch.pretrained`
ALL_OPTIONS = tuple(dict.fromkeys(option for entry in ZOO.values() for option in entry.options))


def _known_architecture(name: str) -> str:
    if name not in ARCHITECTURES:
        known = [*ARCHITECTURES, "DistillationModel", "RecModel"]
        hint = suggest_architecture(name, known)
        raise ValueError(f"unknown architecture '{name}'{hint}")
    return name


Stride = Count | tuple[Count, Count]


class EfficientNetOverrides(Section):
    """Settings of a TinyNet, as in PaddleClas's files. Its published weights need `depth_trunc: round`."""

    batch_norm_momentum: Decay = 0.99
    """Weight of the old value in updates of batch norm's running statistics."""
    batch_norm_epsilon: Positive = 1e-3
    """Epsilon of batch norm."""
    depth_trunc: Literal["ceil", "round"] = "ceil"
    """How numbers of blocks are rounded."""
    drop_connect_rate: Decay = 0.2
    """Probability of skipping the last block, lower for earlier blocks."""


class MLDecoder(Section):
    """A classification head of attention for many labels (Ridnik et al. 2021), in place of pooling and fc."""

    ignored: ClassVar[Mapping[str, str]] = {
        "in_channels": "the backbone determines it",
        "class_num": "Arch.class_num is the key",
    }
    query_num: Count = 80
    """Number of queries; at most the number of classes is used."""
    embed_dim: Count = 768
    """Width of queries and features, a multiple of `num_heads`."""
    num_heads: Count = 8
    """Heads of the attention."""
    mlp_hidden_dim: Count = 2048
    """Width of the hidden layer after the attention."""
    dropout: Decay = 0.1
    """Dropout in attention and hidden layer."""
    depth: Literal[1] = 1
    """Must be 1."""
    freeze_query_embed: Literal[True] = True
    """Must be True: queries are random and fixed."""
    remove_self_attn: Literal[True] = True
    """Must be True: queries do not attend to each other."""
    replace_layer: str = "fc"
    """Name of the linear layer that it replaces."""
    remove_layers: tuple[str, ...] = ("avg_pool", "flatten")
    """Names of the layers before it that are removed."""

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.embed_dim % self.num_heads:
            text = f"expected a multiple of num_heads ({self.num_heads}), got {self.embed_dim}"
            raise error_at(text, "embed_dim")
        return self


class Arch(Section):
    """The model."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "return_patterns": "write it in the items of DistillationModel.models, whose losses use it",
        "return_stages": "write return_patterns with the names of the layers",
    }
    ignored: ClassVar[Mapping[str, str]] = {
        "infer_add_softmax": "Infer.PostProcess determines the activation of the exported model"
    }
    name: Annotated[str, AfterValidator(_known_architecture)]
    """Architecture, such as `ResNet50`."""
    class_num: ClassCountOrAuto = 1000
    """Number of classes; `auto`: the number of class folders in DataLoader.Train.dataset
    (ImageFolderDataset), or, if that folder is missing, the number of names in output_dir/label_list.txt."""
    data_format: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of the axes of images in the model."""
    input_image_channel: Count = Field(3, validate_default=True)
    """Channels of the images."""
    pretrained: str | bool = False
    """Initial weights: a .pdparams, .safetensors or .pth file, a checkpoint folder, the name of an
    architecture whose published weights are used, or `hf-hub:OWNER/MODEL`. True uses the published weights of
    this architecture. They are downloaded once, to ~/.paddleclas/weights. `auto` uses them if they exist, can
    be downloaded, and there are at most 20,000 training images; otherwise it trains from scratch, and the log
    gives the reason. Global.pretrained_model takes precedence."""
    use_ssld: bool = False
    """With pretrained: True, use the weights that PaddleClas distilled (SSLD)."""
    img_size: Side | None = None
    """ViT, DeiT: side of the images; default: the number at the end of the name."""
    drop_path_rate: Decay | None = None
    """Probability of skipping the last block, lower for earlier blocks; default: PaddleClas's."""
    drop_rate: Decay | None = None
    """Dropout of tokens and layers; default: 0."""
    attn_drop_rate: Decay | None = None
    """Dropout of attention weights; default: 0."""
    layer_scale_init_value: NonNegative | None = None
    """ConvNeXt: initial scale of each block's channels, 0 for no scale; default: 1e-6."""
    head_init_scale: Positive | None = None
    """ConvNeXt: factor on the initial weights of the classifier; default: 1."""
    layer_type: Literal["ConvBNLayer", "DiverseBranchBlock"] | None = None
    """ResNet18, ResNet34: DiverseBranchBlock trains several branches in place of each convolution of the
    blocks and merges them for inference (Ding et al. 2021); default: ConvBNLayer."""
    use_first_short_conv: bool | None = None
    """ResNet18, ResNet34: whether the shortcut of the first block has a convolution; default: True."""
    shift_single_window: bool | None = None
    """Swin: whether every second block shifts its window even if it covers the whole feature map, as in
    PaddleClas; False, as in the paper, for weights of timm and torchvision; default: True."""
    timm_variant: bool | None = None
    """Build timm's network instead of PaddleClas's, for its weights. The differences: DarkNet53: leaky ReLU;
    EfficientNet, EfficientNet_lite: even padding; GhostNet: squeeze-and-excitation, bias of the last
    convolution; InceptionV4: order of convolutions; LeViT: second classifier; MobileNetV1: ReLU6;
    MobileNetV4_hybrid: scale of attention; PPLCNet: bias of the last convolution; Res2Net: pooling, first
    block; ResNeSt: pooling; SE_ResNet18, SE_ResNet34: squeeze-and-excitation, first shortcut; TinyNet: number
    of blocks; Xception_deeplab: dilation. Default: False."""
    last_stage_stride: Literal[1, 2] | None = None
    """ResNet50 and other ResNets: stride of the last stage. 1 doubles the resolution of the features, as in
    re-identification; default: 2."""
    stem_act: Literal["relu", "none"] | None = None
    """ResNet50 and other ResNets: activation of the first convolutions; default: relu."""
    stride_list: tuple[Stride, Stride, Stride, Stride, Stride] | None = None
    """PP-LCNet: strides of the first convolution and of the four later stages; ResNet50 and other ResNets:
    of the first convolution, the max pooling and the three later stages, instead of `last_stage_stride`. Each
    is a number or [vertical, horizontal]; default: 2."""
    override_params: EfficientNetOverrides | None = None
    """TinyNet: settings of the network; default: those of EfficientNet."""
    use_last_conv: bool | None = None
    """PP-LCNet: whether a convolution computes 1280 features before the classifier; default: True."""
    dropout_prob: Decay | None = 0.2
    """MobileNetV3, PP-LCNet, ESNet: dropout before the classifier; null for none."""
    ml_decoder: MLDecoder | None = None
    """ResNet, PP-LCNet, PP-HGNet and others: the head ML-Decoder, for many labels per image."""
    dropout: Decay | None = None
    """MobileViTV3: dropout within transformers; default: 0.1. WideResNet: dropout in the blocks; default:
    0."""
    depth: Count | None = None
    """WideResNet: number of layers, 6 n + 4 with n blocks per stage; default: 28."""
    widen_factor: Count | None = None
    """WideResNet: channels of the first stage, in multiples of 16; default: 2."""
    classifier_dropout: Decay | None = None
    """MobileViTV3: dropout before the classifier; default: 0.1."""
    use_fused_attn: Literal[False] | None = None
    """Accepted for compatibility with PaddleClas; attention uses plain operators."""
    use_fused_linear: Literal[False] | None = None
    """Accepted for compatibility with PaddleClas; linear layers are Paddle's own."""

    @property
    def margin(self) -> None:
        """The margin that the loss adds to logits: none."""
        return None

    @property
    def exported(self) -> Arch:
        """The model that is evaluated, saved and exported: this one."""
        return self

    @property
    def weights(self) -> str | None:
        """The file or folder with its initial weights; None for new weights."""
        if self.pretrained is True:
            branched = self.layer_type == "DiverseBranchBlock"
            return str(architecture(self.name).weights_file(ssld=self.use_ssld, branched=branched))
        return self.pretrained or None

    @field_validator("pretrained", mode="before")
    @classmethod
    def _check_pretrained(cls, value: object) -> object:
        if not isinstance(value, (str, bool)):
            raise ValueError(f"expected True, False or a file, got {show(value)}")
        return value

    @field_validator("depth")
    @classmethod
    def _check_depth(cls, value: int | None) -> int | None:
        if value is not None and (value < 10 or value % 6 != 4):
            raise ValueError(f"expected 6 n + 4, such as 28, got {value}")
        return value

    @field_validator("timm_variant", "shift_single_window")
    @classmethod
    def _check_variant(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if info.data.get("pretrained") is True and value is (info.field_name == "timm_variant"):
            raise ValueError(
                f"the published weights (Arch.pretrained=True) need {not value}; "
                "correct it, or name other weights as pretrained"
            )
        return value

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same model for images of another layout."""
        return self.model_copy(update={"data_format": data_format})

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models: this one."""
        return (self,)

    @property
    def options(self) -> dict[str, Any]:
        """The options of this architecture that are set, with their values."""
        accepted = architecture(self.name).options
        values = {key: getattr(self, key) for key in accepted if not key.startswith("use_fused")}
        if "dropout_prob" in values:
            values["dropout_prob"] = self.dropout_prob or 0.0
        if self.override_params is not None:
            values["override_params"] = self.override_params.model_dump()
        return {key: value for key, value in values.items() if value is not None}

    @field_validator(*ALL_OPTIONS)
    @classmethod
    def _check_option(cls, value: Any, info: ValidationInfo) -> Any:
        name, option = info.data.get("name"), info.field_name
        assert option is not None
        if name is None or value == cls.model_fields[option].default:
            return value
        entry = architecture(name)
        if option not in entry.options:
            raise ValueError(f"{name} has no such option, only {', '.join(families_with(option))}; remove it")
        if option == "img_size" and value is not None and int(value) % entry.patch:
            raise ValueError(
                f"expected a multiple of {entry.patch}, the side of {name}'s patches, got {value}"
            )
        return value

    @field_validator("data_format", "input_image_channel")
    @classmethod
    def _check_input(cls, value: str | int, info: ValidationInfo) -> str | int:
        name = info.data.get("name", "")
        entry = architecture(name)
        expected = "NCHW" if info.field_name == "data_format" else entry.channels
        if entry.fixed_input and value != expected:
            known_name = next(
                (candidate for candidate in ARCHITECTURES if candidate.lower() == name and candidate != name),
                None,
            )
            hint = f"; Arch.name={known_name} accepts others" if known_name else ""
            raise ValueError(f"paddle.vision.models' {name} accepts {expected} only, got {value}{hint}")
        return value
