"""What prediction makes of a model's scores: ``Infer.PostProcess``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ppcls.config.base.fields import Count, Fraction, Spec

Activation = Literal["softmax", "sigmoid"]  # makes scores, 0..1, of logits


class PostProcess(Spec):
    """How classes are chosen by their scores."""

    activation: ClassVar[Activation] = "softmax"
    class_id_map_file: str | None = Field(None, description="lines of `id name`")


class Topk(PostProcess):
    """The best classes of each image, by the softmax."""

    topk: Count = 5


class DistillationPostProcess(Topk):
    """``Topk`` of the student, who is all that is exported."""

    model_name: Literal["Student"] = Field("Student", description="read for PaddleClas")
    key: Literal["logits", "output"] | None = Field(None, description="read for PaddleClas")
    func: Literal["Topk"] = Field("Topk", description="read for PaddleClas")


class MultiLabelThreshOutput(PostProcess):
    """All classes of an image whose sigmoid reaches the threshold; perhaps none."""

    activation: ClassVar[Activation] = "sigmoid"
    threshold: Fraction = 0.5
