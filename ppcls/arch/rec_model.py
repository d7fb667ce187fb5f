"""The section ``Arch`` of embedding models: ``Arch.name: RecModel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import field_validator, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.arch.heads import MarginHead, NeckOrHead
from ppcls.arch.section import Arch, MemberArch, ModelSection
from ppcls.config.base.choices import Tagged
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.problems import error_at, problem
from ppcls.config.base.section import Section
from ppcls.errors import UserError, counted
from ppcls.outputs import BACKBONE, LOGITS
from ppcls.registry import HEADS

if TYPE_CHECKING:
    from paddle import nn

    from ppcls.arch.section import LoadBackbone


class StopLayer(Section):
    """Settings of the last layer of the backbone."""

    ignored: ClassVar[Mapping[str, str]] = {"output_dim": "the backbone determines it"}
    name: Literal["flatten", "avg_pool", "none"] = "flatten"
    """Output of the backbone. With `flatten` or `avg_pool`, it is the input of the last linear layer, with
    one number per channel. With `none`, it is the output of the last linear layer, with Backbone.class_num
    numbers, for example for hash codes."""


class RecModel(ModelSection):
    """A model that computes embeddings: a backbone, an optional neck, and an optional head for training."""

    ignored: ClassVar[Mapping[str, str]] = {"is_rec": "Arch.name: RecModel implies it"}
    name: Literal["RecModel"]
    """Selects this section. Must be `RecModel`."""
    Backbone: MemberArch
    """Keys of Arch for the backbone. `pretrained` sets its initial weights."""
    BackboneStopLayer: StopLayer = StopLayer()
    """Last layer of the backbone, whose output is the input of Neck or Head."""
    Neck: Annotated[NeckOrHead, Tagged(HEADS)] | None = None
    """Layer after the backbone, whose output is the embedding: FC, VehicleNeck, BNNeck or Tanh. Default:
    none; the output of the backbone is the embedding."""
    Head: Annotated[NeckOrHead, Tagged(HEADS)] | None = None
    """Classifier of embeddings, for training: FC or a head with a margin. Default: none; all losses must then
    use embeddings."""
    infer_output_key: Literal["features"] = "features"
    """Accepted for compatibility with PaddleClas; has no effect."""
    infer_add_softmax: bool = False
    """Accepted for compatibility with PaddleClas; has no effect."""

    @field_validator("Neck")
    @classmethod
    def _check_neck(cls, value: NeckOrHead | None) -> NeckOrHead | None:
        if value is not None and not value.is_neck:
            *names, last = (name for name in HEADS if HEADS[name].is_neck)
            raise ValueError(f"expected {', '.join(names)} or {last}, got {value.kind}")
        return value

    @field_validator("Head")
    @classmethod
    def _check_head(cls, value: NeckOrHead | None) -> NeckOrHead | None:
        if value is not None and not value.is_head:
            raise ValueError(f"expected FC or a head with a margin, got {value.kind}")
        return value

    @model_validator(mode="after")
    def _check_embedding_size(self) -> Self:
        output = self.Neck.output_size if self.Neck is not None else None
        if self.Head is not None and output is not None and self.Head.input_size != output:
            text = f"expected Neck.class_num ({output}), got {self.Head.input_size}"
            raise error_at(text, "Head", "embedding_size")
        return self

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields parts of the model that receive no gradient, and the conflict with random labels.

        Parts without a gradient would stay random, and block the exchange of gradients between ranks.
        """
        if self.Head is not None and LOGITS not in facts.trained_outputs:
            text = "no loss uses the classes of the Head; add CELoss to Loss.Train, or remove the Head"
            yield problem(text, "Head")
        elif self.Neck is not None and facts.trained_outputs == {BACKBONE}:
            text = (
                "all losses use the input of the Neck; set their feature_from to features, or remove the Neck"
            )
            yield problem(text, "Neck")
        if facts.random_labels:
            text = "a RecModel needs identities, which CustomLabelDataset does not have; use a classifier"
            yield problem(text, "name")

    def describe(self) -> str:
        """Returns the parts of the model as text for the log."""
        parts = [f"backbone {self.Backbone.name}"]
        if self.embedding_size is not None:
            parts.append(f"embeddings of size {self.embedding_size}")
        parts.append(
            "no head" if self.Head is None else f"{self.Head.kind} of {counted(self.class_num, 'class')}"
        )
        return ", ".join(parts)

    @property
    def class_num(self) -> int:
        """Number of classes in training. Without a head it is 2^31, because labels may be any numbers."""
        size = self.Head.output_size if self.Head is not None else None
        return size or 2**31

    @property
    def embedding_size(self) -> int | None:
        """Length of an embedding; None if the backbone determines it."""
        size = self.Neck.output_size if self.Neck is not None else None
        if size is None and self.Head is not None:
            return self.Head.input_size
        return size

    @property
    def momentum_key(self) -> str:
        """Key of the config that sets the momentum of the backbone's BatchNorm."""
        return "Arch.Backbone.batch_norm_momentum"

    @property
    def embeds(self) -> bool:
        """True: the model returns embeddings."""
        return True

    @property
    def has_classes(self) -> bool:
        """Whether the model returns the logits of classes in training."""
        return self.Head is not None

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

    @property
    def backbone_weights(self) -> str | None:
        """The file, folder or name of the backbone's initial weights; None for random weights."""
        return self.Backbone.weights

    def build(self, load_backbone: LoadBackbone | None = None) -> nn.Layer:
        """Returns the model, with random weights in the neck and the head.

        Args:
            load_backbone: Function that loads `backbone_weights` into the complete backbone, before its last
                layer is removed. None for random weights.

        Raises:
            UserError: The weights can't be loaded, or the parts do not fit.
        """
        from ppcls.arch.embedding import EmbeddingNetwork, remove_classifier

        backbone = self.Backbone.build()
        if load_backbone is not None and self.backbone_weights:
            load_backbone(backbone, self.backbone_weights)
        if self.BackboneStopLayer.name == "none":
            size = self.Backbone.class_num
        else:
            try:
                size = remove_classifier(backbone)
            except ValueError as error:
                raise UserError(f"Arch.Backbone: {error}; choose another architecture") from None
        neck = None
        head = None
        if self.Neck is not None:
            neck = _build_head("Neck", self.Neck, size)
            size = self.Neck.output_size or size
        if self.Head is not None:
            head = _build_head("Head", self.Head, size)
        return EmbeddingNetwork(backbone, neck, head, size)

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns a copy of this section with another data format."""
        return self.model_copy(update={"Backbone": self.Backbone.with_data_format(data_format)})

    @property
    def margins(self) -> dict[str, MarginHead]:
        """The margin head, keyed by the name of the model output with its cosines; empty without a margin."""
        return {LOGITS: self.Head} if isinstance(self.Head, MarginHead) else {}

    @property
    def inferred(self) -> RecModel:
        """The section of the model that is evaluated and exported, which is this one."""
        return self


def _build_head(name: str, section: NeckOrHead, size: int) -> nn.Layer:
    """Builds a neck or head, and checks that it accepts vectors of length ``size``."""
    if section.input_size not in (None, size):
        raise UserError(
            f"Arch.{name}.{section.input_key}: expected {size}, the size of the layer's input, got "
            f"{section.input_size}"
        )
    return section.build()
