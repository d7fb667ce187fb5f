"""Models that give embeddings: ``Arch.name: RecModel``, its losses, and metrics of retrieval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.fields import Count, NonNegative, Positive, Section, Spec, Tagged, problem
from ppcls.config.objectives.distillation import MemberArch
from ppcls.config.sections.dataset import MultiLabelDataset
from ppcls.config.sections.loader import DataLoader, QueryAndGallery
from ppcls.config.sections.model import Arch
from ppcls.config.sections.objective import Labels, Loss, LossSpec, Metric, MetricSpec, TopkAcc
from ppcls.registry import HEADS


class HeadSpec(Spec):
    """From an embedding to the classes that are trained on."""

    embedding_size: Count = Field(description="numbers of an embedding that comes in")
    class_num: Count = Field(
        description="classes, of a Head also auto, as in Backbone; or numbers that go out of a Neck"
    )


class FC(HeadSpec):
    """A linear layer."""


class MarginHead(HeadSpec):
    """CosineHead between an embedding and each class's direction; a loss makes that of the label harder."""

    margin: NonNegative
    scale: Positive = Field(description="factor of the cosines in the loss")


class ArcMargin(MarginHead):
    """A margin on the label's angle (Deng et al. 2019, ArcFace)."""

    margin: NonNegative = 0.5
    scale: Positive = 80.0
    easy_margin: bool = Field(False, description="no margin on angles beyond 90 degrees")


class CosMargin(MarginHead):
    """A margin on the label's cosine (Wang et al. 2018, CosFace)."""

    margin: NonNegative = 0.35
    scale: Positive = 64.0


class CircleMargin(MarginHead):
    """CosineHead that are far from their goal weigh more (Sun et al. 2020, circle loss)."""


class StopLayer(Section):
    """Where the backbone ends."""

    name: Literal["flatten", "avg_pool"] = Field(
        "flatten", description="both: what goes into the last linear layer, one number a channel"
    )


class RecModel(Section):
    """A backbone without its classifier, perhaps a layer that shrinks its output, and a head to train by."""

    name: Literal["RecModel"]
    Backbone: MemberArch = Field(description="keys of Arch, and a file as `pretrained`")
    BackboneStopLayer: StopLayer = StopLayer()
    Neck: Annotated[FC, Tagged(HEADS)] | None = Field(None, description="FC: what comes out is the embedding")
    Head: Annotated[HeadSpec, Tagged(HEADS)] | None = Field(None, description="what classes are learnt by")
    infer_output_key: Literal["features"] = Field("features", description="read for PaddleClas")
    infer_add_softmax: bool = Field(False, description="read for PaddleClas")

    @field_validator("Neck")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, FC):
            raise ValueError(f"expected FC, got {value.kind}")
        return value

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if (
            self.Neck is not None
            and self.Head is not None
            and self.Head.embedding_size != self.Neck.class_num
        ):
            text = f"expected Neck.class_num ({self.Neck.class_num}), got {self.Head.embedding_size}"
            raise ValidationError.from_exception_data("Arch", [problem(text, "Head", "embedding_size")])
        return self

    def describe(self) -> str:
        """Says what the model is made of."""
        parts = [f"backbone {self.Backbone.name}"]
        if self.Neck is not None:
            parts.append(f"embeddings of {self.Neck.class_num} numbers")
        parts.append("no head" if self.Head is None else f"{self.Head.kind} of {self.Head.class_num} classes")
        return ", ".join(parts)

    @property
    def class_num(self) -> int:
        """Classes that are trained on; without a head there are none, and labels may be any numbers."""
        return self.Head.class_num if self.Head is not None else 2**31

    @property
    def embedding_size(self) -> int | None:
        """Numbers of an embedding; None where they are as many as the backbone gives."""
        if self.Neck is not None:
            return self.Neck.class_num
        return self.Head.embedding_size if self.Head is not None else None

    @property
    def data_format(self) -> Literal["NCHW", "NHWC"]:
        """Of the backbone's images."""
        return self.Backbone.data_format

    @property
    def input_image_channel(self) -> int:
        """Of the backbone's images."""
        return self.Backbone.input_image_channel

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models that there are."""
        return (self.Backbone,)

    @property
    def exported(self) -> Arch:
        """What the images go through first."""
        return self.Backbone

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same model for images of another layout."""
        return self.model_copy(update={"Backbone": self.Backbone.with_data_format(data_format)})

    @property
    def margin(self) -> MarginHead | None:
        """The head, if it gives cosines."""
        return self.Head if isinstance(self.Head, MarginHead) else None


class TripletLossV2(LossSpec):
    """Of each image, the farthest of its identity should be nearer than the nearest of others, by a margin.

    Both are looked for among the images of the batch on the process (Hermans et al. 2017, batch hard), so
    batches should be a ``PKSampler``'s.
    """

    key_hints: ClassVar[Mapping[str, str]] = {"feat_from": "write feature_from"}
    labels: ClassVar[Labels] = "one"
    on_embeddings: ClassVar[bool] = True
    margin: Positive = 0.5
    normalize_feature: bool = Field(True, description="make embeddings of length 1 before")
    feature_from: Literal["features", "backbone"] = Field("features", description="before Neck: backbone")


class TripletLoss(TripletLossV2):
    """``TripletLossV2`` of embeddings as they are."""

    margin: Positive = 1.0
    normalize_feature: Literal[False] = False


class Retrieval(MetricSpec):
    """A metric of finding images of the same identity: each image looks for its own among all others.

    Images are near whose embeddings' cosine is large. Those whose identity occurs once don't count.
    """

    whole: ClassVar[bool] = True


class Recallk(Retrieval):
    """Share of images with one of their identity among the ``k`` nearest; equally near others go first."""

    topk: tuple[Count, ...] = (1, 5)
    _one_or_many = field_validator("topk", mode="before")(TopkAcc._one_or_many.__func__)  # type: ignore[attr-defined]

    @property
    def names(self) -> tuple[str, ...]:
        """Such as ``("recall1", "recall5")``."""
        return tuple(f"recall{k}" for k in self.topk)


class mAP(Retrieval):  # noqa: N801 - PaddleClas's name
    """Mean average precision of the others of an image's identity, ordered by nearness."""


def embedding_problems(
    arch: Any, loss: Loss, metric: Metric, data: DataLoader, eval_mode: str
) -> Iterator[InitErrorDetails]:
    """Yields what losses and metrics of embeddings don't find in the model, or the other way round."""
    rec = arch if isinstance(arch, RecModel) else None
    for split in ("Train", "Eval"):
        for position, spec in enumerate(getattr(loss, split)):
            where = ("Loss", split, position, spec.kind)
            if spec.on_embeddings and rec is None:
                yield problem("is of embeddings; expected Arch.name: RecModel", *where)
            needs_head = not spec.on_embeddings and (split, eval_mode) != ("Eval", "retrieval")
            if rec is not None and rec.Head is None and needs_head:
                yield problem("is of classes; expected a Head in Arch", *where)
        for position, spec in enumerate(getattr(metric, split)):
            if rec is not None and rec.Head is None and not isinstance(spec, Retrieval):
                yield problem("is of classes; expected a Head in Arch", "Metric", split, position, spec.kind)
    if rec is not None:
        yield from _untaught(rec, loss.Train)
    retrieval = eval_mode == "retrieval"
    for position, spec in enumerate(metric.Eval):
        if isinstance(spec, Retrieval) != retrieval:
            text = (
                "is of classes; expected Recallk or mAP, as Global.eval_mode is retrieval"
                if retrieval
                else "expected Global.eval_mode: retrieval"
            )
            yield problem(text, "Metric", "Eval", position, spec.kind)
    if retrieval and rec is None:
        yield problem("retrieval is by embeddings; expected Arch.name: RecModel", "Global", "eval_mode")
    if isinstance(data.Eval, QueryAndGallery) and not retrieval:
        yield problem("has Query and Gallery; expected Global.eval_mode: retrieval", "DataLoader", "Eval")
    for split, given in data.splits.items():
        if rec is None:
            continue
        place = ("DataLoader", *split.split("."), "dataset")
        if isinstance(given.dataset, MultiLabelDataset):
            yield problem("embeddings are learnt from one identity an image", *place, "name")
        if given.dataset.batch_transform_ops:
            yield problem("mixed images have no identity; remove it", *place, "batch_transform_ops")


def _untaught(rec: RecModel, losses: tuple[LossSpec, ...]) -> Iterator[InitErrorDetails]:
    """Yields parts that no loss teaches: random for ever, and several processes wait for their gradients."""
    if rec.Head is not None and all(spec.on_embeddings for spec in losses):
        yield problem("no loss is of its classes; add CELoss to Loss.Train, or remove it", "Arch", "Head")
    elif rec.Neck is not None and all(getattr(spec, "feature_from", "") == "backbone" for spec in losses):
        text = "all losses are of what comes before it; set their feature_from to features, or remove it"
        yield problem(text, "Arch", "Neck")
