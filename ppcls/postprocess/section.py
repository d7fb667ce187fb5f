"""The section ``Infer``: prediction on files, and its post-processing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic_core import InitErrorDetails

from ppcls.config.base.choices import Tagged
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import BatchSize
from ppcls.config.base.problems import located
from ppcls.config.base.section import Section
from ppcls.data.transforms.base import FixedChain, chain_problems
from ppcls.postprocess.base import PostProcess
from ppcls.postprocess.methods import Topk
from ppcls.registry import POSTPROCESSES

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

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of the transforms with the input of the model."""
        yield from super().problems(facts, part)
        yield from located(chain_problems(self.transforms, facts), "transforms")

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields the key that has no effect on an embedding model."""
        yield from super().warnings(facts, part)
        if facts.embeds and self.PostProcess != Topk():
            yield "PostProcess has no effect; a RecModel returns embeddings"
