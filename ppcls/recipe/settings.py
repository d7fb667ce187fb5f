"""The section ``Global``, which joins the keys of several owners, as in PaddleClas's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import model_validator
from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Count, ModuleName, Side
from ppcls.config.base.problems import problem
from ppcls.engine.core.settings import EngineSettings
from ppcls.report.settings import ReportSettings
from ppcls.runtime.settings import RuntimeSettings


# pydantic lists the keys of the last base class first.
class Global(ReportSettings, EngineSettings, RuntimeSettings):
    """General settings of a run: output, device, length, checkpoints, evaluation and speed."""

    ignored: ClassVar[Mapping[str, str]] = {
        "class_num": "set Arch.class_num instead",
        "infer_imgs": "set Infer.infer_imgs instead",
        "iter_per_epoch": "the key samples of ClassBalancedSampler sets the length of an epoch",
    }

    import_modules: tuple[ModuleName, ...] = ()
    """Python modules to import before the config is checked, such as `[my_parts]` for a file my_parts.py in
    the current folder or on PYTHONPATH. The modules can define your own architectures, losses, samplers,
    data sets and other parts (docs/python.md)."""
    use_multilabel: bool = False
    """Accepted for compatibility with PaddleClas; has no effect, because MultiLabelDataset implies it."""
    image_channel: Count | None = None
    """Accepted for compatibility with PaddleClas; must equal Arch.input_image_channel if it is set."""
    image_shape: tuple[Count, Side, Side] = (3, 224, 224)
    """Input of the exported model, [channels, height, width] in pixels. `Infer.transforms` takes
    precedence."""
    save_inference_dir: str = "./inference"
    """Folder of the exported model. If `output_dir` is set, the default is its subfolder `inference`."""

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with other sections."""
        yield from super().problems(facts, part)
        if self.image_channel not in (None, facts.input_channels):
            text = (
                f"expected Arch.input_image_channel ({facts.input_channels}), got {self.image_channel}; "
                "remove it"
            )
            yield problem(text, "image_channel")

    @model_validator(mode="before")
    @classmethod
    def _export_to_output_dir(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "save_inference_dir" in data:
            return data
        folder = data.get("output_dir")
        if not isinstance(folder, str) or not folder.strip():
            return data
        return {**data, "save_inference_dir": f"{folder.rstrip('/')}/inference"}
