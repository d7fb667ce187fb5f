"""A small pipeline description with every kind of stage."""

from __future__ import annotations

from ppcls.explain.description import PipelineDescription, PipelineStage, StageOperator

DESCRIBED = PipelineDescription(
    "DataLoader.Train",
    "DALI on GPU 0",
    {"data": "somewhere", "batch": "[4]"},
    (
        PipelineStage(("read",), (StageOperator("io.file.read", "cpu", "[?] uint8"),)),
        PipelineStage(
            ("[0] DecodeImage", "[1] RandCropImage size=(8, 8)", "[2] Third"),
            (
                StageOperator("decoders.image_slice", "mixed", "[?, ?, 3] HWC uint8"),
                StageOperator("resize", "gpu", "x"),
            ),
            decisions="where",
        ),
    ),
)
