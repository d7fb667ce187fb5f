"""The section ``Arch`` of embedding models: ``Arch.name: RecModel``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    ClassCount,
    Count,
    NonNegative,
    Number,
    Positive,
    Section,
    Spec,
    Tagged,
    error_at,
)
from ppcls.config.sections.model import Arch, MemberArch
from ppcls.registry import HEADS


class HeadSpec(Spec):
    """Base class of layers for Neck and Head."""

    embedding_size: Count
    """Length of the input vector."""
    class_num: ClassCount
    """Length of the output vector. For a Head, this is the number of classes; `auto` counts them as in Arch.
    For a Neck, this is the length of an embedding."""


class Initializer(Section):
    """Initial values of a parameter."""

    name: Literal["Constant", "Normal", "XavierNormal", "XavierUniform", "KaimingNormal", "KaimingUniform"]
    """Name of an initializer in `paddle.nn.initializer`."""
    value: Number | None = None
    """Value of Constant; default: 0."""
    mean: Number | None = None
    """Mean of Normal; default: 0."""
    std: Positive | None = None
    """Standard deviation of Normal; default: 1."""
    fan_in: Count | None = None
    """Number of inputs from which Xavier and Kaiming compute the scale; default: the inputs of the layer."""

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        known = {"Constant": {"value"}, "Normal": {"mean", "std"}}.get(self.name, {"fan_in"})
        if unknown := self.model_fields_set - known - {"name"}:
            raise ValueError(f"{self.name} does not support {', '.join(sorted(unknown))}; remove this key")
        return self


class Parameter(Section):
    """Initial values and learning rate of a parameter."""

    initializer: Initializer | None = None
    """Initializer of the values; default: Paddle's default for the layer."""
    learning_rate: NonNegative = 1.0
    """Factor of the learning rate of this parameter."""


class LayerAttributes(Spec):
    """Keys of layers with a weight and a bias."""

    weight_attr: Parameter | None = None
    """Settings of the weight; default: Paddle's defaults."""
    bias_attr: Parameter | Literal[False] | None = None
    """Settings of the bias; False for no bias. Default: Paddle's defaults."""

    @field_validator("bias_attr", mode="before")
    @classmethod
    def _read_bias(cls, value: Any) -> Any:
        return Parameter.model_validate(value) if isinstance(value, dict) else value


class FC(HeadSpec, LayerAttributes):
    """A linear layer, as Neck or Head."""


class VehicleNeck(Spec):
    """A 1x1 convolution as Neck, equivalent to FC. Its parameters have the names that PaddleClas uses."""

    in_channels: Count
    """Number of channels of the backbone's output."""
    out_channels: ClassCount
    """Length of an embedding."""
    kernel_size: Literal[1] = 1
    """Size of the kernel. Only 1 is supported."""
    stride: Literal[1] = 1
    """Stride of the convolution. Only 1 is supported."""

    @property
    def embedding_size(self) -> int:
        """Length of the input vector."""
        return self.in_channels

    @property
    def class_num(self) -> int:
        """Length of the output vector."""
        return self.out_channels


class BNNeck(LayerAttributes):
    """BatchNorm of the backbone's output, as Neck (Luo et al. 2019)."""

    num_features: ClassCount
    """Number of channels of the backbone's output."""

    @property
    def embedding_size(self) -> int:
        """Length of the input vector."""
        return self.num_features

    @property
    def class_num(self) -> int:
        """Length of the output vector."""
        return self.num_features


class Tanh(Spec):
    """The hyperbolic tangent of the backbone's output, as Neck for hash codes."""


SizedNeck = FC | VehicleNeck | BNNeck
NeckSpec = SizedNeck | Tanh


class MarginHead(HeadSpec):
    """Base class of heads that compute the cosine between an embedding and the weight vector of each class.

    The loss applies a margin to the cosine of the label's class.
    """

    margin: NonNegative
    """Margin of the label's class."""
    scale: Positive
    """Factor of the cosines in the loss."""


class ArcMargin(MarginHead):
    """ArcFace (Deng et al. 2019): adds the margin, in radians, to the angle of the label's class."""

    margin: NonNegative = 0.5
    scale: Positive = 80.0
    easy_margin: bool = False
    """Apply no margin to angles larger than 90 degrees."""


class CosMargin(MarginHead):
    """CosFace (Wang et al. 2018): subtracts the margin from the cosine of the label's class."""

    margin: NonNegative = 0.35
    scale: Positive = 64.0


class CircleMargin(MarginHead):
    """Circle loss (Sun et al. 2020): gives more weight to cosines that are far from their target."""


class StopLayer(Section):
    """Settings of the last layer of the backbone."""

    ignored: ClassVar[Mapping[str, str]] = {"output_dim": "the backbone determines it"}
    name: Literal["flatten", "avg_pool", "none"] = "flatten"
    """Output of the backbone. With `flatten` or `avg_pool`, it is the input of the last linear layer, with
    one number per channel. With `none`, it is the output of the last linear layer, with Backbone.class_num
    numbers, for example for hash codes."""


class RecModel(Section):
    """A model that computes embeddings: a backbone, an optional neck, and an optional head for training."""

    ignored: ClassVar[Mapping[str, str]] = {"is_rec": "Arch.name: RecModel implies it"}
    name: Literal["RecModel"]
    """Selects this section. Must be `RecModel`."""
    Backbone: MemberArch
    """Keys of Arch for the backbone. `pretrained` sets its initial weights."""
    BackboneStopLayer: StopLayer = StopLayer()
    """Last layer of the backbone, whose output is the input of Neck or Head."""
    Neck: Annotated[NeckSpec, Tagged(HEADS)] | None = None
    """Layer after the backbone, whose output is the embedding: FC, VehicleNeck, BNNeck or Tanh. Default:
    none; the output of the backbone is the embedding."""
    Head: Annotated[HeadSpec, Tagged(HEADS)] | None = None
    """Classifier of embeddings, for training: FC or a head with a margin. Default: none; all losses must then
    use embeddings."""
    infer_output_key: Literal["features"] = "features"
    """Accepted for compatibility with PaddleClas; has no effect."""
    infer_add_softmax: bool = False
    """Accepted for compatibility with PaddleClas; has no effect."""

    @field_validator("Neck")
    @classmethod
    def _check_neck(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, NeckSpec):
            raise ValueError(f"expected FC, VehicleNeck, BNNeck or Tanh, got {value.kind}")
        return value

    @field_validator("Head")
    @classmethod
    def _check_head(cls, value: Any) -> Any:
        if isinstance(value, (VehicleNeck, BNNeck, Tanh)):
            raise ValueError(f"expected FC or a head with a margin, got {value.kind}")
        return value

    @model_validator(mode="after")
    def _check_embedding_size(self) -> Self:
        neck = self.Neck
        head = self.Head
        if isinstance(neck, Tanh) or neck is None:
            return self
        if head is not None and head.embedding_size != neck.class_num:
            text = f"expected Neck.class_num ({neck.class_num}), got {head.embedding_size}"
            raise error_at(text, "Head", "embedding_size")
        return self

    def describe(self) -> str:
        """Returns the parts of the model as text for the log."""
        parts = [f"backbone {self.Backbone.name}"]
        if self.embedding_size is not None:
            parts.append(f"embeddings of size {self.embedding_size}")
        parts.append("no head" if self.Head is None else f"{self.Head.kind} of {self.Head.class_num} classes")
        return ", ".join(parts)

    @property
    def class_num(self) -> int:
        """Number of classes in training. Without a head it is 2^31, because labels may be any numbers."""
        return self.Head.class_num if self.Head is not None else 2**31

    @property
    def embedding_size(self) -> int | None:
        """Length of an embedding; None if the backbone determines it."""
        if self.Neck is not None and not isinstance(self.Neck, Tanh):
            return self.Neck.class_num
        return self.Head.embedding_size if self.Head is not None else None

    @property
    def data_format(self) -> Literal["NCHW", "NHWC"]:
        """Order of the axes of images in the backbone."""
        return self.Backbone.data_format

    @property
    def input_image_channel(self) -> int:
        """Number of channels of the backbone's images."""
        return self.Backbone.input_image_channel

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models of the config, which is only the backbone."""
        return (self.Backbone,)

    @property
    def exported(self) -> Arch:
        """The architecture that is exported, which is the backbone."""
        return self.Backbone

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns a copy of this section with another data format."""
        return self.model_copy(update={"Backbone": self.Backbone.with_data_format(data_format)})

    @property
    def margins(self) -> dict[str, MarginHead]:
        """The margin head, keyed by the name of the model output with its cosines; empty without a margin."""
        return {"logits": self.Head} if isinstance(self.Head, MarginHead) else {}

    @property
    def inferred(self) -> RecModel:
        """The section of the model that is evaluated and exported, which is this one."""
        return self
