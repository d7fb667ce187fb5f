"""The section ``Arch``: its base class for models of any kind, and the section of a single classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from ppcls.config.base.facts import ModelFacts
from ppcls.config.base.fields import (
    MAX_SIDE,
    ClassCountOrAuto,
    Count,
    Decay,
    Depth,
    NonNegative,
    Positive,
    Side,
    Width,
)
from ppcls.config.base.problems import EXPLAINED_KEY, error_at, show
from ppcls.config.base.section import Section
from ppcls.registry import ARCHITECTURES, suggest_architecture
from ppcls.zoo import ZOO, architecture, families_with

if TYPE_CHECKING:
    from paddle import nn

    from ppcls.arch.heads import MarginHead
    from ppcls.arch.rec_model import RecModel

    LoadBackbone: TypeAlias = Callable[[nn.Layer, str], None]

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
    """Settings of a TinyNet. The published weights of TinyNet need `depth_trunc: round`."""

    batch_norm_momentum: Decay = 0.99
    """Weight of the previous value when BatchNorm updates its running statistics."""
    batch_norm_epsilon: Positive = 1e-3
    """Number that BatchNorm adds to the variance."""
    depth_trunc: Literal["ceil", "round"] = "ceil"
    """Rounding of the number of blocks per stage: up (`ceil`) or to the nearest integer (`round`)."""
    drop_connect_rate: Decay = 0.2
    """Probability that training skips the last block (stochastic depth). It decreases linearly to 0 at the
    first block."""


class MLDecoder(Section):
    """An attention head for many labels (Ridnik et al. 2021), which replaces pooling and the last layer."""

    ignored: ClassVar[Mapping[str, str]] = {
        "in_channels": "the backbone determines it",
        "class_num": "set Arch.class_num instead",
    }
    query_num: Width = 80
    """Number of queries. It is limited to the number of classes."""
    embed_dim: Width = 768
    """Width of queries and features. Must be a multiple of `num_heads`."""
    num_heads: Width = 8
    """Number of attention heads."""
    mlp_hidden_dim: Width = 2048
    """Width of the hidden layer after the attention."""
    dropout: Decay = 0.1
    """Dropout rate of the attention and the hidden layer."""
    depth: Literal[1] = 1
    """Number of attention layers. Only 1 is supported."""
    freeze_query_embed: Literal[True] = True
    """Keep the random initial queries fixed. Only True is supported."""
    remove_self_attn: Literal[True] = True
    """Use no attention between queries. Only True is supported."""
    replace_layer: str = "fc"
    """Name of the linear layer that the head replaces."""
    remove_layers: tuple[str, ...] = ("avg_pool", "flatten")
    """Names of the layers in front of the head that are removed, such as pooling."""

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.embed_dim % self.num_heads:
            text = f"expected a multiple of num_heads ({self.num_heads}), got {self.embed_dim}"
            raise error_at(text, "embed_dim")
        return self


class ModelSection(Section):
    """Base class of the section ``Arch``, which answers what other folders ask about a model of any kind.

    Other code uses these properties instead of the type of the section: a classifier (`Arch`), an embedding
    model (`RecModel`) or several models for distillation (`DistillationModel`). The defaults are those of one
    network. The answers of several models are those of the student, unless the property says otherwise.
    """

    @property
    def embeds(self) -> bool:
        """Whether the model returns embeddings."""
        return False

    @property
    def embedding_size(self) -> int | None:
        """Length of an embedding; None if the backbone determines it, or for a classifier."""
        return None

    @property
    def has_classes(self) -> bool:
        """Whether the model returns the logits of classes in training."""
        return True

    @property
    def single_network(self) -> bool:
        """Whether the model is one network that returns logits, whose steps can be compiled and captured."""
        # Compiled and captured steps support neither several networks nor several tensors as outputs.
        return False

    @property
    def chooses_weights(self) -> bool:
        """Whether the run decides if it starts from published weights (``pretrained: auto``)."""
        return False

    @property
    def start_weights(self) -> str | None:
        """The file, folder or name of the weights of the whole model; None for random weights."""
        return None

    @property
    def backbone_weights(self) -> str | None:
        """The file, folder or name of the weights of only the backbone; None for random weights."""
        return None

    @property
    def student(self) -> str:
        """Name of the model that is evaluated, saved and exported; "" if there is only one model."""
        return ""

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the models that are trained together with the student."""
        return ()

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the models that are not trained (teachers)."""
        return ()

    @property
    def momentum_key(self) -> str:
        """Key of the config that sets the momentum of BatchNorm."""
        return "Arch.batch_norm_momentum"

    @property
    def teacher_weights(self) -> Mapping[str, str]:
        """The file, folder or name of the weights of each frozen classifier, by its name."""
        return {}

    @property
    def members(self) -> Mapping[str, Arch | RecModel]:
        """All models by name, if there are several; else empty."""
        return {}

    def initial_weights(self, name: str) -> str | None:
        """Returns the file or name of the initial weights of one of several models; None for random weights.

        Args:
            name: Name of the model, see `members`.
        """
        raise KeyError(name)

    @property
    def margins(self) -> Mapping[str, MarginHead]:
        """Margin heads of all models, keyed by the name of the model output that contains their cosines."""
        return {}

    @property
    def model_facts(self) -> Mapping[str, ModelFacts]:
        """What losses and metrics may know about several models, by name; empty for a single model."""
        return {}

    def describe(self) -> str:
        """Returns the parts of the model as text for the log; "" if its name says all."""
        return ""


class Arch(ModelSection):
    """The architecture of the model, its options and its initial weights."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "return_patterns": "write it in the items of DistillationModel.models, whose losses use it",
        "return_stages": "write return_patterns with the names of the layers",
    }
    ignored: ClassVar[Mapping[str, str]] = {
        "infer_add_softmax": "Infer.PostProcess determines the activation of the exported model"
    }
    name: Annotated[str, AfterValidator(_known_architecture)]
    """Name of the architecture, such as `ResNet50`; docs/models.md lists all names."""
    class_num: ClassCountOrAuto = 1000
    """Number of classes. `auto` uses the number of class folders in DataLoader.Train.dataset
    (ImageFolderDataset), or, if this folder is missing, the number of names in output_dir/label_list.txt."""
    data_format: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of the axes of images in the model: channels first (`NCHW`) or last (`NHWC`)."""
    input_image_channel: Width = Field(3, validate_default=True)
    """Number of channels of the images."""
    pretrained: str | bool = False
    """Initial weights: a .pdparams, .safetensors or .pth file, a checkpoint folder, the name of an
    architecture with published weights, or `hf-hub:OWNER/MODEL`. True selects the published weights of this
    architecture, which are downloaded once to ~/.paddleclas/weights. False trains from scratch. `auto`
    selects the published weights if they exist, can be downloaded, and the data set has at most 20,000
    training images; otherwise training starts from scratch, and the log gives the reason.
    Global.pretrained_model takes precedence."""
    use_ssld: bool = False
    """With `pretrained: True`, load the published weights that were trained by distillation (SSLD)."""
    patch_size: Side | None = None
    """ViT, DeiT, ConvNeXt: side of the patches that the first layer maps to tokens or features, in pixels.
    Small images need small patches: ConvNeXt needs images of at least 8 x 8 patches. Published weights need
    the default, which is the number in the name of a transformer, and 4 for ConvNeXt."""
    img_size: Side | None = None
    """Vision transformers: side of the images in pixels, a multiple of the side of a patch. Default: the side
    in docs/models.md. Position embeddings of weights for another side are interpolated."""
    batch_norm_momentum: Decay | None = None
    """Weight of the previous value when BatchNorm updates its running statistics, as in Paddle (PyTorch's
    momentum is 1 minus this value). A smaller value suits short runs: statistics with 0.999 lag behind the
    weights by about 1,000 updates. Default: the published value of the architecture, usually 0.9."""
    drop_path_rate: Decay | None = None
    """Probability that training skips the last block (stochastic depth). In most networks, it decreases
    linearly to 0 at the first block; LeViT uses it for all blocks. Default: the value of PaddleClas for this
    architecture."""
    drop_rate: Decay | None = None
    """Dropout rate of tokens and linear layers; default: 0."""
    attn_drop_rate: Decay | None = None
    """Dropout rate of attention weights; default: 0."""
    layer_scale_init_value: NonNegative | None = None
    """ConvNeXt: initial factor of the output of each block (layer scale); 0 for none; default: 1e-6."""
    head_init_scale: Positive | None = None
    """ConvNeXt: factor of the initial weights of the classifier; default: 1."""
    layer_type: Literal["ConvBNLayer", "DiverseBranchBlock"] | None = None
    """ResNet18, ResNet34: type of the convolutions in the blocks. DiverseBranchBlock trains several branches
    and merges them into one convolution for inference (Ding et al. 2021). Default: ConvBNLayer."""
    use_first_short_conv: bool | None = None
    """ResNet18, ResNet34: use a convolution in the shortcut of the first block; default: True."""
    shift_single_window: bool | None = None
    """Swin: shift the window in every second block even if it covers the whole feature map. True, the
    default, is PaddleClas's network; False is the network of the paper, which the weights of timm and
    torchvision require."""
    timm_variant: bool | None = None
    """Build the network of timm instead of PaddleClas, to load weights from timm; default: False. These parts
    differ: DarkNet53: leaky ReLU; EfficientNet, EfficientNet_lite: even padding; GhostNet:
    squeeze-and-excitation, bias of the last convolution; InceptionV4: order of convolutions; LeViT: second
    classifier; MobileNetV1: ReLU6; MobileNetV4_hybrid: scale of attention; PPLCNet: bias of the last
    convolution; Res2Net: pooling, first block; ResNeSt: pooling; SE_ResNet18, SE_ResNet34:
    squeeze-and-excitation, first shortcut; TinyNet: number of blocks; Xception_deeplab: dilation."""
    last_stage_stride: Literal[1, 2] | None = None
    """ResNet50 and other ResNets: stride of the last stage; default: 2. With 1, feature maps have twice the
    height and width, which is common for re-identification."""
    stem_act: Literal["relu", "none"] | None = None
    """ResNet50 and other ResNets: activation after the first convolutions; default: relu."""
    stride_list: tuple[Stride, Stride, Stride, Stride, Stride] | None = None
    """Five strides, each a number or [vertical, horizontal]; default: 2. PP-LCNet: strides of the first
    convolution and the four later stages. ResNet50 and other ResNets: strides of the first convolution, the
    max pooling and the three later stages; `last_stage_stride` is then ignored."""
    override_params: EfficientNetOverrides | None = None
    """TinyNet: settings of the network; default: the defaults of EfficientNetOverrides."""
    use_last_conv: bool | None = None
    """PP-LCNet: add a convolution with 1280 output channels before the classifier; default: True."""
    dropout_prob: Decay | None = 0.2
    """MobileNetV3, PP-LCNet, ESNet: dropout rate before the classifier; null for no dropout."""
    ml_decoder: MLDecoder | None = None
    """ResNet, PP-LCNet, PP-HGNet and others: use the head ML-Decoder, for many labels per image; default: the
    architecture's own head."""
    dropout: Decay | None = None
    """MobileViTV3: dropout rate within transformers; default: 0.1. WideResNet: dropout rate in the blocks;
    default: 0."""
    depth: Depth | None = None
    """WideResNet: number of layers. Must be 6 n + 4 for n blocks per stage; default: 28."""
    widen_factor: Width | None = None
    """WideResNet: number of channels of the first stage divided by 16; default: 2."""
    wide_block: Literal["fixmatch", "original"] | None = None
    """WideResNet: blocks of the paper (`original`), with ReLU, or those of FixMatch's code, with leaky ReLU.
    There, the first blocks of the last two stages do not normalize their input. Default: fixmatch."""
    classifier_dropout: Decay | None = None
    """MobileViTV3: dropout rate before the classifier; default: 0.1."""
    use_fused_attn: Literal[False] | None = None
    """Accepted for compatibility with PaddleClas; only False is supported."""
    use_fused_linear: Literal[False] | None = None
    """Accepted for compatibility with PaddleClas; only False is supported."""

    @property
    def exported(self) -> Arch:
        """The model that is evaluated, saved and exported, which is this model."""
        return self

    @property
    def single_network(self) -> bool:
        """True: steps of one network that returns logits can be compiled and captured."""
        return True

    @property
    def chooses_weights(self) -> bool:
        """Whether the run decides if it starts from published weights (``pretrained: auto``)."""
        return self.pretrained == AUTO

    @property
    def start_weights(self) -> str | None:
        """The file, folder or name of the weights of the whole model; None for random weights."""
        return self.weights

    def build(self, load_backbone: LoadBackbone | None = None) -> nn.Layer:  # noqa: ARG002 - see RecModel
        """Returns the model, with random weights."""
        from ppcls.arch.batch_statistics import set_momentum
        from ppcls.arch.build import build_model
        from ppcls.arch.layers.ml_decoder import replace_head

        model = build_model(
            self.name, self.class_num, self.data_format, self.input_image_channel, **self.options
        )
        if self.batch_norm_momentum is not None:
            set_momentum(model, self.batch_norm_momentum, self.name)
        if (head := self.ml_decoder) is not None:
            decoder = {
                "queries": head.query_num,
                "width": head.embed_dim,
                "heads": head.num_heads,
                "hidden": head.mlp_hidden_dim,
                "dropout": head.dropout,
            }
            layers = head.replace_layer, head.remove_layers
            replace_head(model, decoder, self.class_num, self.data_format, layers)
        return model

    @property
    def weights(self) -> str | None:
        """The file, folder or name of the initial weights; None for random weights."""
        if self.pretrained is True:
            branched = self.layer_type == "DiverseBranchBlock"
            return str(architecture(self.name).weights_file(ssld=self.use_ssld, branched=branched))
        return self.pretrained or None

    @field_validator("pretrained", mode="before")
    @classmethod
    def _check_pretrained(cls, value: object) -> object:
        if not isinstance(value, (str, bool)):
            raise ValueError(f"expected True, False, 'auto', a file, or a name of weights, got {show(value)}")
        return value

    @field_validator("depth")
    @classmethod
    def _check_depth(cls, value: int | None) -> int | None:
        if value is not None and (value < 10 or value % 6 != 4):
            raise ValueError(f"expected 6 n + 4 layers with an integer n, such as 28, got {value}")
        return value

    @field_validator("stride_list")
    @classmethod
    def _check_strides(cls, value: tuple[Stride, ...] | None) -> tuple[Stride, ...] | None:
        flat = [
            side for stride in value or () for side in (stride if isinstance(stride, tuple) else (stride,))
        ]
        if flat and max(flat) > MAX_SIDE:
            raise ValueError(f"expected strides of at most {MAX_SIDE}, got {max(flat)}")
        return value

    @field_validator("timm_variant", "shift_single_window")
    @classmethod
    def _check_variant(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if info.data.get("pretrained") is True and value is (info.field_name == "timm_variant"):
            raise ValueError(
                f"the published weights (Arch.pretrained=True) need {not value}; "
                "change it, or set Arch.pretrained to other weights"
            )
        return value

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns a copy of this model with another data format."""
        return self.model_copy(update={"data_format": data_format})

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models of the config, which is only this model."""
        return (self,)

    @property
    def inferred(self) -> Arch:
        """The section of the model that is evaluated and exported, which is this one."""
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The values of the options of this architecture, without unset options."""
        accepted = architecture(self.name).options
        values = {key: getattr(self, key) for key in accepted if not key.startswith("use_fused")}
        if "dropout_prob" in values:
            values["dropout_prob"] = self.dropout_prob or 0.0
        if self.override_params is not None:
            values["override_params"] = self.override_params.model_dump()
        return {key: value for key, value in values.items() if value is not None}

    @field_validator("ml_decoder")
    @classmethod
    def _check_decoder(cls, value: MLDecoder | None, info: ValidationInfo) -> MLDecoder | None:
        # It would replace only one of the three classifiers.
        if value is not None and info.data.get("name") == "GoogLeNet":
            raise ValueError("GoogLeNet does not support this option; remove it")
        return value

    @field_validator(*ALL_OPTIONS, mode="wrap")
    @classmethod
    def _check_option(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = info.data.get("name")
        option = info.field_name
        assert option is not None
        options = architecture(name).options if name is not None else ()
        if name is None or option in options:
            return handler(value)
        default = cls.model_fields[option].default
        try:
            if handler(value) == default:
                return default
        except ValidationError:
            pass  # the rules of the value are those of other architectures
        families = ", ".join(families_with(option))
        own = ", ".join(key for key in options if not key.startswith("use_fused")) or "none"
        text = (
            f"{name} has no such option; it exists only for {families}; remove it; "
            f"options of {name} itself: {own}"
        )
        raise PydanticCustomError(EXPLAINED_KEY, "{text}", {"text": text})

    @field_validator("img_size")
    @classmethod
    def _check_img_size(cls, value: int | None, info: ValidationInfo) -> int | None:
        name = info.data.get("name")
        if name is None or value is None:
            return value
        patch = info.data.get("patch_size") or architecture(name).patch
        if value % patch:
            raise ValueError(f"expected a multiple of {patch}, the side of {name}'s patches, got {value}")
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
            hint = f"; Arch.name={known_name} accepts other values" if known_name else ""
            raise ValueError(f"paddle.vision.models' {name} accepts {expected} only, got {value}{hint}")
        return value


class MemberArch(Arch):
    """The keys of Arch, for one of several models.

    `class_num`, `data_format` and `input_image_channel` have the values of the enclosing section by default.
    """

    @field_validator("name")
    @classmethod
    def _check_outputs(cls, name: str) -> str:
        # In training, GoogLeNet also returns the logits of its auxiliary classifiers.
        if name == "GoogLeNet":
            raise ValueError("GoogLeNet is only supported as Arch.name; choose another architecture")
        return name
