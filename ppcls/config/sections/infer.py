"""The section ``Infer``: prediction on files, and its post-processing."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from ppcls.config.base.fields import BatchSize, Bound, Count, Fraction, Section, Spec, Tagged
from ppcls.data.transforms.base import FixedChain
from ppcls.registry import POSTPROCESSES

Activation = Literal["softmax", "sigmoid", "none"]  # the first two convert logits to scores from 0 to 1


class PostProcess(Spec):
    """Base class of post-processing, which selects classes by their scores."""

    activation: ClassVar[Activation] = "softmax"
    class_id_map_file: str | None = None
    """Text file with one line `id name` per class; default: the names stored with the model, if any."""


class Topk(PostProcess):
    """Returns the classes with the highest softmax scores of each image."""

    topk: Count = 5
    """Number of classes per image."""


class DistillationPostProcess(Topk):
    """PaddleClas's name for ``Topk`` with distillation. Only the student is exported."""

    model_name: Literal["Student"] = "Student"
    """Accepted for compatibility with PaddleClas; has no effect."""
    key: Literal["logits", "output"] | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""
    func: Literal["Topk"] = "Topk"
    """Accepted for compatibility with PaddleClas; has no effect."""


class ThreshOutput(PostProcess):
    """Chooses between two classes: the second if its softmax score reaches the threshold, else the first."""

    threshold: Fraction = 0.5
    """Smallest score, 0 to 1, with which the second class is chosen."""
    label_0: str | None = None
    """Name of the first class; default: no name."""
    label_1: str | None = None
    """Name of the second class; default: no name."""


class MultiLabelThreshOutput(PostProcess):
    """Returns all classes of an image whose sigmoid scores reach the threshold. There may be none."""

    activation: ClassVar[Activation] = "sigmoid"
    threshold: Fraction | tuple[Fraction, ...] = 0.5
    """Smallest score, 0 to 1, with which a class is predicted: one value for all classes, or a list with one
    value per class."""


class ScoreOutput(PostProcess):
    """Returns the rounded outputs of the model for each class, without softmax or sigmoid."""

    activation: ClassVar[Activation] = "none"
    decimal_places: Annotated[int, Bound(ge=0, le=15)]
    """Number of decimal places."""


# In the class Infer, the key PostProcess hides the class PostProcess, so annotations need another name.
_AnyPostProcess: TypeAlias = PostProcess


class Infer(Section):
    """Settings of prediction on files."""

    infer_imgs: str | None = None
    """Image file, or folder of images. Paths on the command line take precedence. Default: none."""
    batch_size: BatchSize = 10
    """Number of images per batch."""
    engine: Literal["auto", "onnxruntime", "openvino", "tensorrt"] = "auto"
    """Engine that runs an exported `.onnx` file. `auto`: OpenVINO on a CPU if it is installed, else
    onnxruntime; `tensorrt`: TensorRT through onnxruntime. Files in the format `.xml` always run in
    OpenVINO."""
    transforms: FixedChain
    """Transforms to apply to each image, in this order. Random transforms are not allowed."""
    PostProcess: Annotated[_AnyPostProcess, Tagged(POSTPROCESSES, default="Topk")] = Topk()
    """Selection of the classes to report for an image. Without `name` it is Topk. A RecModel always returns
    embeddings."""
