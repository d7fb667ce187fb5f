"""Prediction on files: the section ``Infer`` and its post-processing."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from ppcls.config.base.fields import BatchSize, Count, Fraction, Section, Spec, Tagged
from ppcls.config.sections.dataset import FixedChain
from ppcls.registry import POSTPROCESSES

Activation = Literal["softmax", "sigmoid"]  # turns logits into scores from 0 to 1


class PostProcess(Spec):
    """Selects classes by their scores."""

    activation: ClassVar[Activation] = "softmax"
    class_id_map_file: str | None = None
    """File with one line `id name` per class."""


class Topk(PostProcess):
    """The classes with the highest softmax scores of each image."""

    topk: Count = 5
    """Number of classes per image."""


class DistillationPostProcess(Topk):
    """``Topk`` of the student, the only exported model."""

    model_name: Literal["Student"] = "Student"
    """Accepted for compatibility with PaddleClas; has no effect."""
    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""
    func: Literal["Topk"] = "Topk"
    """Accepted for compatibility with PaddleClas; has no effect."""


class ThreshOutput(PostProcess):
    """The second of two classes if its softmax score reaches the threshold, else the first one."""

    threshold: Fraction = 0.5
    """Smallest score of the second class."""
    label_0: str | None = None
    """Name of the first class."""
    label_1: str | None = None
    """Name of the second class."""


class MultiLabelThreshOutput(PostProcess):
    """All classes of an image whose sigmoid reaches the threshold, possibly none."""

    activation: ClassVar[Activation] = "sigmoid"
    threshold: Fraction | tuple[Fraction, ...] = 0.5
    """Smallest score of a predicted class; or a list, one per class."""


# The key PostProcess hides the class in the annotations of Infer, which Python 3.10 cannot evaluate then.
_AnyPostProcess: TypeAlias = PostProcess


class Infer(Section):
    """Prediction on files."""

    infer_imgs: str | None = None
    """File or folder of images, unless the command line names one."""
    batch_size: BatchSize = 10
    """Images per batch."""
    engine: Literal["auto", "onnxruntime", "openvino", "tensorrt"] = "auto"
    """Program that runs an exported `.onnx` file. auto: OpenVINO on a CPU if it is installed, otherwise
    onnxruntime. tensorrt: TensorRT through onnxruntime. OpenVINO alone runs `.xml` files."""
    transforms: FixedChain
    """Transforms of each image, in order. Random ones are not allowed."""
    PostProcess: Annotated[_AnyPostProcess, Tagged(POSTPROCESSES, default="Topk")] = Topk()
    """Which classes of an image are reported; Topk if it has no `name`. A RecModel always returns
    embeddings."""
