"""Embedding models (``Arch.name: RecModel``), losses on embeddings, and retrieval metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import field_validator, model_validator
from pydantic_core import InitErrorDetails
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
    problem,
)
from ppcls.config.objectives.distillation import MemberArch
from ppcls.config.sections.dataset import MultiLabelDataset
from ppcls.config.sections.loader import DataLoader, QueryAndGallery
from ppcls.config.sections.model import Arch
from ppcls.config.sections.objective import Labels, Loss, LossSpec, Metric, MetricSpec
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
    """A 1x1 convolution as Neck. It computes the same as FC, with the parameter names of PaddleClas."""

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
    """Base class of heads that compute the cosine of an embedding and the weight of each class.

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
    """Output of the backbone: `flatten` or `avg_pool`: the input of its last linear layer, with one number
    per channel; `none`: the output of its last linear layer, with Backbone.class_num numbers, for example for
    hash codes."""


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
        neck, head = self.Neck, self.Head
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
    def margin(self) -> MarginHead | None:
        """The head if it has a margin, else None."""
        return self.Head if isinstance(self.Head, MarginHead) else None


class TripletLossV2(LossSpec):
    """Triplet loss with the hardest pairs of a batch (Hermans et al. 2017, batch hard).

    For each image, the distance to the farthest image of the same identity should be smaller, by a margin,
    than the distance to the nearest image of another identity. The pairs are searched in the batch of the
    process, so use ``PKSampler``.
    """

    key_hints: ClassVar[Mapping[str, str]] = {"feat_from": "write feature_from"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: Positive = 0.5
    """Minimum difference between the distances to images of other identities and of the same identity."""
    normalize_feature: bool = True
    """Normalize embeddings to length 1."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""


class TripletLoss(TripletLossV2):
    """``TripletLossV2`` without normalization of the embeddings."""

    margin: Positive = 1.0
    normalize_feature: Literal[False] = False


class SupConLoss(LossSpec):
    """Supervised contrastive loss of normalized embeddings (Khosla et al. 2020, equation 2).

    Images of the same identity are searched in the batch of the process, so use ``PKSampler``. Images for
    which the batch has no other image of the same identity are ignored.
    """

    ignored: ClassVar[Mapping[str, str]] = {"views": "sample_per_id of PKSampler is the number of images"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    temperature: Positive = 0.07
    """Temperature: divisor of the cosines."""
    base_temperature: Positive = 0.07
    """Base temperature. The loss is multiplied by `temperature / base_temperature`."""
    normalize_feature: Literal[True] = True
    """Normalize embeddings to length 1. Only True is supported."""
    contrast_mode: Literal["all"] = "all"
    """Images to compare with. Only `all` is supported: all images of the batch."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""


class CenterLoss(LossSpec):
    """Center loss (Wen et al. 2016): mean squared distance between embeddings and learned class centers.

    SGD with a constant learning rate updates the centers, independent of the optimizer of the model. Use this
    loss in `Loss.Train` only, together with a loss of classes.
    """

    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    has_weights: ClassVar[bool] = True
    num_classes: ClassCount
    """Number of centers. Must equal the number of classes."""
    feat_dim: Count
    """Length of the embeddings."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""
    center_rate: NonNegative = 1000.0
    """Learning rate of the centers. It multiplies the gradient of the weighted loss. To use the rate r with
    the gradient of the unweighted loss, set `center_rate` to r divided by `weight`."""


class PairwiseCosface(LossSpec):
    """Pairwise loss (Sun et al. 2020): log-sum-exp of the cosines of all pairs in the batch of a process."""

    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: NonNegative
    """Minimum difference between the cosines of the same identity and of different identities."""
    gamma: Positive
    """Factor of the cosines."""


class HashLoss(LossSpec):
    """Base class of losses for embeddings whose signs are hash codes, with `Global.feature_binarize: sign`.

    The losses use all pairs in the batch of the process.
    """

    ignored: ClassVar[Mapping[str, str]] = {"n_class": "pairs are compared by their labels"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True


class DCHLoss(HashLoss):
    """Deep Cauchy Hashing (Cao et al. 2018).

    Pairs of the same identity and pairs of different identities are weighted, so that rare pairs count more.
    """

    gamma: Positive = 20.0
    """Scale parameter of the Cauchy distribution of distances."""
    quantization: NonNegative = 0.1
    """Weight of the quantization loss: the distance of each number from -1 or 1."""


class LCDSHLoss(HashLoss):
    """Locality-Constrained Deep Supervised Hashing (Zhu & Gao 2017)."""

    quantization: NonNegative = 3.0
    """Weight of the quantization loss: the difference between the similarities of embeddings and of their
    signs."""


class DSHSDLoss(LossSpec):
    """Deep Supervised Hashing based on Stable Distribution (Wu et al. 2019).

    The loss is the cross-entropy of the head, plus a loss of the distances of pairs.
    """

    labels: ClassVar[Labels] = "one"
    alpha: NonNegative = 0.05
    """Weight of the loss of pairs."""
    multi_label: Literal[False] = False
    """Train with several labels per image. Only False is supported."""


class RetrievalSpec(MetricSpec):
    """Base class of retrieval metrics, which search the identity of each query image in a gallery.

    Without Query and Gallery in the config, each image is a query, and all other images are its gallery. By
    default, the gallery is ranked by the cosine of the embeddings. Queries without another image of their
    identity are ignored.
    """

    whole_dataset: ClassVar[bool] = True


class Recallk(RetrievalSpec):
    """Share of queries with an image of the same identity among the ``k`` nearest images.

    Among equally near images, those of other identities come first.
    """

    topk: tuple[Count, ...] = (1, 5)
    """One value of k, or a list of values."""

    @field_validator("topk", mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("recall1", "recall5")``."""
        return tuple(f"recall{k}" for k in self.topk)


class Precisionk(Recallk):
    """Mean over queries of the share of images of the same identity among the ``k`` nearest images.

    Among equally near images, those of other identities come first.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("precision1", "precision5")``."""
        return tuple(f"precision{k}" for k in self.topk)


class mAP(RetrievalSpec):  # noqa: N801 - PaddleClas's name
    """Mean over queries of the average precision of the ranked images."""


def embedding_problems(
    arch: Section, loss: Loss, metric: Metric, data: DataLoader, retrieval: bool
) -> Iterator[InitErrorDetails]:
    """Yields conflicts of the model and its data with losses and metrics that need embeddings or classes."""
    rec = arch if isinstance(arch, RecModel) else None
    headless = rec is not None and rec.Head is None
    for split in ("Train", "Eval"):
        for position, spec in enumerate(getattr(loss, split)):
            where = ("Loss", split, position, spec.kind)
            if (spec.on_embeddings or isinstance(spec, DSHSDLoss)) and rec is None:
                yield problem("needs embeddings; expected Arch.name: RecModel", *where)
            if isinstance(spec, CenterLoss):
                yield from _center_problems(spec, rec, where)
            if headless and not spec.on_embeddings and not (split == "Eval" and retrieval):
                yield problem("needs classes; add a Head to Arch", *where)
        for position, measure in enumerate(getattr(metric, split)):
            if headless and not isinstance(measure, RetrievalSpec):
                text = "needs classes; add a Head to Arch"
                yield problem(text, "Metric", split, position, measure.kind)
    for position, measure in enumerate(metric.Eval):
        if isinstance(measure, RetrievalSpec) != retrieval:
            text = (
                "needs classes; expected Recallk or mAP, because Global.eval_mode is retrieval"
                if retrieval
                else "expected Global.eval_mode: retrieval"
            )
            yield problem(text, "Metric", "Eval", position, measure.kind)
    if retrieval and rec is None:
        yield problem("retrieval needs embeddings; expected Arch.name: RecModel", "Global", "eval_mode")
    if isinstance(data.Eval, QueryAndGallery) and not retrieval:
        text = "Query and Gallery are only for retrieval; set Global.eval_mode: retrieval"
        yield problem(text, "DataLoader", "Eval")
    if rec is not None:
        yield from _gradient_problems(rec, loss.Train)
        yield from _dataset_problems(data)


def _center_problems(
    spec: CenterLoss, rec: RecModel | None, where: tuple[int | str, ...]
) -> Iterator[InitErrorDetails]:
    if where[1] == "Eval":
        yield problem("supported only in Loss.Train, where the centers are learned; remove it", *where)
    if rec is None or rec.Head is None:
        return
    size = rec.embedding_size if spec.feature_from == "features" else spec.feat_dim
    for key, expected in (("num_classes", rec.class_num), ("feat_dim", size)):
        if (actual := getattr(spec, key)) != expected:
            yield problem(f"expected {expected}, the value in Arch, got {actual}", *where, key)


def _gradient_problems(rec: RecModel, losses: tuple[LossSpec, ...]) -> Iterator[InitErrorDetails]:
    """Yields parts of the model that receive no gradient.

    They would stay random, and block the exchange of gradients between processes.
    """
    if rec.Head is not None and all(spec.on_embeddings for spec in losses):
        text = "no loss uses the classes of the Head; add CELoss to Loss.Train, or remove the Head"
        yield problem(text, "Arch", "Head")
    elif rec.Neck is not None and all(getattr(spec, "feature_from", "") == "backbone" for spec in losses):
        text = "all losses use the input of the Neck; set their feature_from to features, or remove the Neck"
        yield problem(text, "Arch", "Neck")


def _dataset_problems(data: DataLoader) -> Iterator[InitErrorDetails]:
    for place, split in data.splits.items():
        where = ("DataLoader", *place.split("."), "dataset")
        if isinstance(split.dataset, MultiLabelDataset):
            text = "a RecModel needs one identity per image; use a data set with one label per image"
            yield problem(text, *where, "name")
        if split.dataset.batch_transform_ops:
            yield problem("mixed images have no identity; remove this key", *where, "batch_transform_ops")
