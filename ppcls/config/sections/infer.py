"""Prediction on files: the section ``Infer`` and its post-processing."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ppcls.config.base.fields import Count, Fraction, Section, Spec, Tagged
from ppcls.config.sections.dataset import FixedChain
from ppcls.registry import POSTPROCESSES

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


class Infer(Section):
    """Prediction on files."""

    infer_imgs: str | None = Field(None, description="a file or a folder, where the command line names none")
    batch_size: Count = 10
    transforms: FixedChain = Field(description="what happens to each image, in order; nothing random")
    PostProcess: Annotated[PostProcess, Tagged(POSTPROCESSES, default="Topk")] = Field(
        Topk(),
        description="which classes of an image are told; without a name, Topk. A RecModel tells embeddings, "
        "whatever stands here",
    )
