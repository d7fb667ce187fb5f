"""Necks and heads of embedding models.

A neck turns the output of the backbone into an embedding. A head classifies embeddings during training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.component import Component
from ppcls.config.base.fields import ClassCount, Count, NonNegative, Number, Positive, Width
from ppcls.config.base.section import Section
from ppcls.registry import HEADS

if TYPE_CHECKING:
    from paddle import ParamAttr, Tensor, nn


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
        # A config that was written by a run also contains null for all other keys.
        values = self.model_dump(exclude={"name"}, exclude_none=True)
        if unknown := values.keys() - known:
            raise ValueError(f"{self.name} does not support {', '.join(sorted(unknown))}; remove this key")
        return self

    def build(self) -> nn.initializer.Initializer:
        """Returns Paddle's initializer."""
        from paddle import nn

        arguments = self.model_dump(exclude={"name"}, exclude_none=True)
        return getattr(nn.initializer, self.name)(**arguments)


class Parameter(Section):
    """Initial values and learning rate of a parameter."""

    initializer: Initializer | None = None
    """Initializer of the values; default: Paddle's default for the layer."""
    learning_rate: NonNegative = 1.0
    """Factor of the learning rate of this parameter."""

    def build(self) -> ParamAttr:
        """Returns the initializer and the learning rate as Paddle's ``ParamAttr``."""
        from paddle import ParamAttr

        initializer = None if self.initializer is None else self.initializer.build()
        return ParamAttr(initializer=initializer, learning_rate=self.learning_rate)


class NeckOrHead(Component, registry=HEADS):
    """Base class of layers for Neck and Head.

    Attributes:
        is_neck: Whether the layer can be a Neck.
        is_head: Whether the layer can be a Head.
        input_key: Key of `input_size`, for error messages.
    """

    is_neck: ClassVar[bool] = False
    is_head: ClassVar[bool] = False
    input_key: ClassVar[str] = "embedding_size"

    @property
    def input_size(self) -> int | None:
        """Length of the input vector; None for any length."""
        return None

    @property
    def output_size(self) -> int | None:
        """Length of the output vector; None if it is the length of the input."""
        return None

    def build(self) -> nn.Layer:
        """Returns the layer with random weights. It maps [B, input_size] to [B, output_size]."""
        raise NotImplementedError(f"{self.kind} has no method build()")


class SizedHead(NeckOrHead, abstract=True):
    """Base class of layers with an embedding as input."""

    embedding_size: Width
    """Length of the input vector."""
    class_num: ClassCount
    """Length of the output vector. For a Head, this is the number of classes; `auto` counts them as in Arch.
    For a Neck, this is the length of an embedding."""

    @property
    def input_size(self) -> int:
        """Length of the input vector."""
        return self.embedding_size

    @property
    def output_size(self) -> int:
        """Length of the output vector."""
        return self.class_num


class LayerAttributes(NeckOrHead, abstract=True):
    """Keys of layers with a weight and a bias."""

    weight_attr: Parameter | None = None
    """Settings of the weight; default: Paddle's defaults."""
    bias_attr: Parameter | Literal[False] | None = None
    """Settings of the bias; False for no bias. Default: Paddle's defaults."""

    @field_validator("bias_attr", mode="before")
    @classmethod
    def _read_bias(cls, value: Any) -> Any:
        return Parameter.model_validate(value) if isinstance(value, dict) else value

    @property
    def attributes(self) -> dict[str, ParamAttr | Literal[False] | None]:
        """The arguments ``weight_attr`` and ``bias_attr`` of Paddle's layers."""
        return {
            "weight_attr": self.weight_attr.build() if self.weight_attr else None,
            # Paddle builds no bias for False, and a bias with its default settings for None.
            "bias_attr": self.bias_attr.build() if isinstance(self.bias_attr, Parameter) else self.bias_attr,
        }


class FC(SizedHead, LayerAttributes):
    """A linear layer, as Neck or Head."""

    is_neck: ClassVar[bool] = True
    is_head: ClassVar[bool] = True

    def build(self) -> nn.Layer:
        """Returns a linear layer; see `NeckOrHead.build`."""
        from ppcls.arch.embedding import EmbeddingLinear

        return EmbeddingLinear(self.embedding_size, self.class_num, **self.attributes)


class MarginHead(SizedHead, abstract=True):
    """Base class of heads that compute the cosine between an embedding and the weight vector of each class.

    The loss applies a margin to the cosine of the label's class.
    """

    is_head: ClassVar[bool] = True
    margin: NonNegative
    """Margin of the label's class."""
    scale: Positive
    """Factor of the cosines in the loss."""

    def build(self) -> nn.Layer:
        """Returns a layer that computes cosines, in [-1, 1]; see `NeckOrHead.build`."""
        from ppcls.arch.embedding import CosineHead

        return CosineHead(self.embedding_size, self.class_num)

    def apply_margin(self, cosine: Tensor, label: Tensor) -> Tensor:
        """Returns logits whose cross-entropy demands a margin for the cosine of the label, [B, C] float32.

        Args:
            cosine: Output of the head, [B, C] float32.
            label: [B] int64.
        """
        raise NotImplementedError(f"{self.kind} has no method apply_margin()")


class ArcMargin(MarginHead):
    """ArcFace (Deng et al. 2019): adds the margin, in radians, to the angle of the label's class."""

    margin: NonNegative = 0.5
    scale: Positive = 80.0  # as in PaddleClas; the paper uses 64
    easy_margin: bool = False
    """Apply no margin to angles larger than 90 degrees."""

    def apply_margin(self, cosine: Tensor, label: Tensor) -> Tensor:
        """Adds the margin to the angle; see `MarginHead.apply_margin`."""
        from ppcls.arch.margins import arc_margin

        return arc_margin(cosine, label, self.margin, self.scale, self.easy_margin)


class CosMargin(MarginHead):
    """CosFace (Wang et al. 2018): subtracts the margin from the cosine of the label's class."""

    margin: NonNegative = 0.35
    scale: Positive = 64.0

    def apply_margin(self, cosine: Tensor, label: Tensor) -> Tensor:
        """Subtracts the margin; see `MarginHead.apply_margin`."""
        from ppcls.arch.margins import cos_margin

        return cos_margin(cosine, label, self.margin, self.scale)


class CircleMargin(MarginHead):
    """Circle loss (Sun et al. 2020): gives more weight to cosines that are far from their target."""

    def apply_margin(self, cosine: Tensor, label: Tensor) -> Tensor:
        """Weights the cosines; see `MarginHead.apply_margin`."""
        from ppcls.arch.margins import circle_margin

        return circle_margin(cosine, label, self.margin, self.scale)


class VehicleNeck(NeckOrHead):
    """A 1x1 convolution as Neck, equivalent to FC. Its parameters have the names that PaddleClas uses."""

    is_neck: ClassVar[bool] = True
    input_key: ClassVar[str] = "in_channels"
    in_channels: Width
    """Number of channels of the backbone's output."""
    out_channels: ClassCount
    """Length of an embedding."""
    kernel_size: Literal[1] = 1
    """Size of the kernel. Only 1 is supported."""
    stride: Literal[1] = 1
    """Stride of the convolution. Only 1 is supported."""

    @property
    def input_size(self) -> int:
        """Length of the input vector."""
        return self.in_channels

    @property
    def output_size(self) -> int:
        """Length of the output vector."""
        return self.out_channels

    def build(self) -> nn.Layer:
        """Returns a convolution; see `NeckOrHead.build`."""
        from ppcls.arch.embedding import EmbeddingConvolution

        return EmbeddingConvolution(self.in_channels, self.out_channels)


class BNNeck(LayerAttributes):
    """BatchNorm of the backbone's output, as Neck (Luo et al. 2019)."""

    is_neck: ClassVar[bool] = True
    input_key: ClassVar[str] = "num_features"
    num_features: ClassCount
    """Number of channels of the backbone's output."""

    @property
    def input_size(self) -> int:
        """Length of the input vector."""
        return self.num_features

    @property
    def output_size(self) -> int:
        """Length of the output vector."""
        return self.num_features

    def build(self) -> nn.Layer:
        """Returns a batch normalization; see `NeckOrHead.build`."""
        from ppcls.arch.embedding import EmbeddingNorm

        return EmbeddingNorm(self.num_features, **self.attributes)


class Tanh(NeckOrHead):
    """The hyperbolic tangent of the backbone's output, as Neck for hash codes."""

    is_neck: ClassVar[bool] = True

    def build(self) -> nn.Layer:
        """Returns the activation, which keeps the length of its input; see `NeckOrHead.build`."""
        from paddle import nn

        return nn.Tanh()
