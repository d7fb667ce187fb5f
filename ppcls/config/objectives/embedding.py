"""Embedding models: ``Arch.name: RecModel``, losses on embeddings, and retrieval metrics."""

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
    """Maps embeddings to classes."""

    embedding_size: Count
    """Length of the input."""
    class_num: ClassCount
    """Length of the output: classes of a Head (or `auto`, as in Arch), or the embedding size of a Neck."""


class Initializer(Section):
    """Initial values of a parameter."""

    name: Literal["Constant", "Normal", "XavierNormal", "XavierUniform", "KaimingNormal", "KaimingUniform"]
    """Name in `paddle.nn.initializer`."""
    value: Number | None = None
    """Constant: the value; default: 0."""
    mean: Number | None = None
    """Normal: mean; default: 0."""
    std: Positive | None = None
    """Normal: standard deviation; default: 1."""
    fan_in: Count | None = None
    """Xavier, Kaiming: number of inputs that the scale is computed from; default: those of the layer."""

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        known = {"Constant": {"value"}, "Normal": {"mean", "std"}}.get(self.name, {"fan_in"})
        if unknown := self.model_fields_set - known - {"name"}:
            raise ValueError(f"{self.name} has no {', '.join(sorted(unknown))}; remove it")
        return self


class Parameter(Section):
    """Initial values and learning rate of a parameter."""

    initializer: Initializer | None = None
    """Initial values; default: those of the layer."""
    learning_rate: NonNegative = 1.0
    """Factor of the learning rate."""


class LayerAttributes(Spec):
    """Keys of layers with a weight and a bias."""

    weight_attr: Parameter | None = None
    """Settings of the weight."""
    bias_attr: Parameter | Literal[False] | None = None
    """Settings of the bias; False: no bias."""

    @field_validator("bias_attr", mode="before")
    @classmethod
    def _read_bias(cls, value: Any) -> Any:
        return Parameter.model_validate(value) if isinstance(value, dict) else value


class FC(HeadSpec, LayerAttributes):
    """A linear layer."""


class VehicleNeck(Spec):
    """A 1x1 convolution with PaddleClas's parameter names. It equals FC."""

    in_channels: Count
    """Channels of the backbone's output."""
    out_channels: ClassCount
    """Length of an embedding."""
    kernel_size: Literal[1] = 1
    """Must be 1."""
    stride: Literal[1] = 1
    """Must be 1."""

    @property
    def embedding_size(self) -> int:
        """Length of the input."""
        return self.in_channels

    @property
    def class_num(self) -> int:
        """Length of the output."""
        return self.out_channels


class BNNeck(LayerAttributes):
    """BatchNorm of the embeddings (Luo et al. 2019)."""

    num_features: ClassCount
    """Channels of the backbone's output."""

    @property
    def embedding_size(self) -> int:
        """Length of the input."""
        return self.num_features

    @property
    def class_num(self) -> int:
        """Length of the output."""
        return self.num_features


class Tanh(Spec):
    """The hyperbolic tangent of the backbone's output, for hash codes."""


SizedNeck = FC | VehicleNeck | BNNeck
NeckSpec = SizedNeck | Tanh


class MarginHead(HeadSpec):
    """Cosines of the embedding and each class's weight. The loss applies a margin to the label's cosine."""

    margin: NonNegative
    """Margin of the label's class."""
    scale: Positive
    """Factor of the cosines in the loss."""


class ArcMargin(MarginHead):
    """A margin on the label's angle (Deng et al. 2019, ArcFace)."""

    margin: NonNegative = 0.5
    scale: Positive = 80.0
    easy_margin: bool = False
    """No margin on angles larger than 90 degrees."""


class CosMargin(MarginHead):
    """A margin on the label's cosine (Wang et al. 2018, CosFace)."""

    margin: NonNegative = 0.35
    scale: Positive = 64.0


class CircleMargin(MarginHead):
    """A larger weight for cosines that are far from their target (Sun et al. 2020, circle loss)."""


class StopLayer(Section):
    """The last layer of the backbone."""

    ignored: ClassVar[Mapping[str, str]] = {"output_dim": "the backbone determines it"}
    name: Literal["flatten", "avg_pool", "none"] = "flatten"
    """Output of the backbone. `flatten` and `avg_pool`: the input of its last linear layer, one number per
    channel; `none`: the output of that layer, Backbone.class_num numbers, such as hash codes."""


class RecModel(Section):
    """A backbone without its classifier, an optional layer that shrinks its output, and a training head."""

    ignored: ClassVar[Mapping[str, str]] = {"is_rec": "Arch.name: RecModel implies it"}
    name: Literal["RecModel"]
    """Must be RecModel."""
    Backbone: MemberArch
    """Keys of Arch, and a file as `pretrained`."""
    BackboneStopLayer: StopLayer = StopLayer()
    """Last layer of the backbone."""
    Neck: Annotated[NeckSpec, Tagged(HEADS)] | None = None
    """FC, VehicleNeck, BNNeck or Tanh, whose output is the embedding."""
    Head: Annotated[HeadSpec, Tagged(HEADS)] | None = None
    """Classifier for training."""
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
        """Returns the parts of the model, for the log."""
        parts = [f"backbone {self.Backbone.name}"]
        if self.embedding_size is not None:
            parts.append(f"embeddings of size {self.embedding_size}")
        parts.append("no head" if self.Head is None else f"{self.Head.kind} of {self.Head.class_num} classes")
        return ", ".join(parts)

    @property
    def class_num(self) -> int:
        """Number of classes in training. Without a head, labels may be any numbers."""
        return self.Head.class_num if self.Head is not None else 2**31

    @property
    def embedding_size(self) -> int | None:
        """Length of an embedding; None if it is that of the backbone's output."""
        if self.Neck is not None and not isinstance(self.Neck, Tanh):
            return self.Neck.class_num
        return self.Head.embedding_size if self.Head is not None else None

    @property
    def data_format(self) -> Literal["NCHW", "NHWC"]:
        """Order of the axes of images in the backbone."""
        return self.Backbone.data_format

    @property
    def input_image_channel(self) -> int:
        """Channels of the backbone's images."""
        return self.Backbone.input_image_channel

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models: the backbone."""
        return (self.Backbone,)

    @property
    def exported(self) -> Arch:
        """The backbone."""
        return self.Backbone

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same model for images of another layout."""
        return self.model_copy(update={"Backbone": self.Backbone.with_data_format(data_format)})

    @property
    def margin(self) -> MarginHead | None:
        """The head if it has a margin."""
        return self.Head if isinstance(self.Head, MarginHead) else None


class TripletLossV2(LossSpec):
    """The farthest image of the same identity should be nearer, by a margin, than the nearest of any other.

    Both are searched for in the batch of the process (Hermans et al. 2017, batch hard). Batches should
    therefore come from a ``PKSampler``.
    """

    key_hints: ClassVar[Mapping[str, str]] = {"feat_from": "write feature_from"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: Positive = 0.5
    """Minimum difference between the distances to images of other identities and of the same identity."""
    normalize_feature: bool = True
    """Normalize embeddings to length 1."""
    feature_from: Literal["features", "backbone"] = "features"
    """`features`: embeddings; `backbone`: the input of Neck."""


class TripletLoss(TripletLossV2):
    """``TripletLossV2`` without normalization."""

    margin: Positive = 1.0
    normalize_feature: Literal[False] = False


class SupConLoss(LossSpec):
    """Supervised contrastive loss of embeddings of length 1 (Khosla et al. 2020, equation 2).

    Images of the same identity are searched for in the batch of the process, as in `TripletLossV2`. Images
    without one are ignored.
    """

    ignored: ClassVar[Mapping[str, str]] = {"views": "sample_per_id of PKSampler is the number of images"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    temperature: Positive = 0.07
    """Divisor of the cosines."""
    base_temperature: Positive = 0.07
    """The loss is multiplied by `temperature` divided by this."""
    normalize_feature: Literal[True] = True
    """Must be True."""
    contrast_mode: Literal["all"] = "all"
    """Must be `all`."""
    feature_from: Literal["features", "backbone"] = "features"
    """`features`: embeddings; `backbone`: the input of Neck."""


class CenterLoss(LossSpec):
    """Mean squared distance of embeddings from the center of their class, which is learned (Wen et al. 2016).

    Plain SGD with a constant rate updates the centers, whatever the optimizer of the model is. Only for
    `Loss.Train`, beside a loss of classes.
    """

    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    has_weights: ClassVar[bool] = True
    num_classes: ClassCount
    """Number of centers: that of the classes."""
    feat_dim: Count
    """Length of the embeddings."""
    feature_from: Literal["features", "backbone"] = "features"
    """`features`: embeddings; `backbone`: the input of Neck."""
    center_rate: NonNegative = 1000.0
    """Learning rate of the centers, for the gradient of the weighted loss: divide it by `weight`."""


class PairwiseCosface(LossSpec):
    """Log-sum-exp loss of the cosines of all pairs in the batch of the process (Sun et al. 2020)."""

    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: NonNegative
    """Minimum difference between cosines within an identity and between identities."""
    gamma: Positive
    """Factor of the cosines."""


class HashLoss(LossSpec):
    """A loss of embeddings whose signs are hash codes, for `Global.feature_binarize: sign`.

    All pairs in the batch of the process count.
    """

    ignored: ClassVar[Mapping[str, str]] = {"n_class": "pairs are compared by their labels"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True


class DCHLoss(HashLoss):
    """Deep Cauchy Hashing (Cao et al. 2018): pairs of rare kind, same or different identity, weigh more."""

    gamma: Positive = 20.0
    """Scale of the Cauchy distribution of distances."""
    quantization: NonNegative = 0.1
    """Weight of the distance of each number from -1 or 1."""


class LCDSHLoss(HashLoss):
    """Locality-Constrained Deep Supervised Hashing (Zhu & Gao 2017)."""

    quantization: NonNegative = 3.0
    """Weight of the difference between similarities of embeddings and of their signs."""


class DSHSDLoss(LossSpec):
    """Deep Supervised Hashing based on Stable Distribution (Wu et al. 2019): classes, and distances of pairs.

    It contains the cross-entropy of the head.
    """

    labels: ClassVar[Labels] = "one"
    alpha: NonNegative = 0.05
    """Weight of the loss of pairs."""
    multi_label: Literal[False] = False
    """Must be False."""


class RetrievalSpec(MetricSpec):
    """A retrieval metric: each image searches for its identity among all others.

    Images are ranked by the cosine of their embeddings. Identities with a single image are ignored.
    """

    whole_dataset: ClassVar[bool] = True


class Recallk(RetrievalSpec):
    """Share of images with an image of the same identity among the ``k`` nearest; others win ties."""

    topk: tuple[Count, ...] = (1, 5)
    """One or more values of k."""

    @field_validator("topk", mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("recall1", "recall5")``."""
        return tuple(f"recall{k}" for k in self.topk)


class Precisionk(Recallk):
    """Mean share of the same identity among the ``k`` nearest images; others win ties."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("precision1", "precision5")``."""
        return tuple(f"precision{k}" for k in self.topk)


class mAP(RetrievalSpec):  # noqa: N801 - PaddleClas's name
    """Mean average precision of the ranked images of the same identity."""


def embedding_problems(
    arch: Section, loss: Loss, metric: Metric, data: DataLoader, retrieval: bool
) -> Iterator[InitErrorDetails]:
    """Yields conflicts between the model, its data, and the losses and metrics of embeddings."""
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
                yield problem("needs classes; expected a Head in Arch", *where)
        for position, measure in enumerate(getattr(metric, split)):
            if headless and not isinstance(measure, RetrievalSpec):
                text = "needs classes; expected a Head in Arch"
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
        yield problem("has Query and Gallery; expected Global.eval_mode: retrieval", "DataLoader", "Eval")
    if rec is not None:
        yield from _gradient_problems(rec, loss.Train)
        yield from _dataset_problems(data)


def _center_problems(
    spec: CenterLoss, rec: RecModel | None, where: tuple[int | str, ...]
) -> Iterator[InitErrorDetails]:
    if where[1] == "Eval":
        yield problem("its centers exist in training only; remove it", *where)
    if rec is None or rec.Head is None:
        return
    size = rec.embedding_size if spec.feature_from == "features" else spec.feat_dim
    for key, expected in (("num_classes", rec.class_num), ("feat_dim", size)):
        if (actual := getattr(spec, key)) != expected:
            yield problem(f"expected {expected}, as in Arch, got {actual}", *where, key)


def _gradient_problems(rec: RecModel, losses: tuple[LossSpec, ...]) -> Iterator[InitErrorDetails]:
    """Yields parts without gradients, which would stay random and block the exchange between processes."""
    if rec.Head is not None and all(spec.on_embeddings for spec in losses):
        text = "no loss uses its classes; add CELoss to Loss.Train, or remove it"
        yield problem(text, "Arch", "Head")
    elif rec.Neck is not None and all(getattr(spec, "feature_from", "") == "backbone" for spec in losses):
        text = "all losses use its input; set their feature_from to features, or remove it"
        yield problem(text, "Arch", "Neck")


def _dataset_problems(data: DataLoader) -> Iterator[InitErrorDetails]:
    for place, split in data.splits.items():
        where = ("DataLoader", *place.split("."), "dataset")
        if isinstance(split.dataset, MultiLabelDataset):
            yield problem("embeddings need one identity per image", *where, "name")
        if split.dataset.batch_transform_ops:
            yield problem("mixed images have no identity; remove it", *where, "batch_transform_ops")
