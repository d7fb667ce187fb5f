"""What became of a chain in numpy: the functions of OpenCV and Pillow that it called for one batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import cv2
from numpy.typing import NDArray
from PIL import Image

from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.input_size import resize_chain, size_at
from ppcls.data.sampling.order import Cursor
from ppcls.data.transforms.numpy_ops import run_each
from ppcls.data.transforms.specs import count_draws
from ppcls.data.transforms.specs.rng import uniforms
from ppcls.explain.description import ENCODED, Operator, Stage, describe_arrays, sizes_vary, stage_of


def trace_numpy(loader: PaddleLoader) -> list[Stage]:
    """Describes what a loader does to its first batch."""
    ops, order = loader.ops, loader.order
    if loader.sizes is not None:
        ops = resize_chain(ops, size_at(loader.sizes, order.seed, Cursor()))
    step = order.at(Cursor())
    draws = uniforms(order.seed, 0, step.indices, count_draws(ops), step.repeats)
    files = [loader.index.read(position) for position in step.indices.tolist()]
    images: list[list[NDArray[Any]]] = [[] for _ in ops]
    called: list[dict[str, None]] = [{} for _ in ops]
    for file, numbers in zip(files, draws, strict=True):
        steps = run_each(ops, file, numbers)
        for made, names in zip(images, called, strict=True):
            with _library_calls() as calls:
                made.append(next(steps))
            names.update(calls)
    stages, layout = [Stage(("read",), (Operator("read", "cpu", ENCODED),))], "HWC"
    for op, made, names, vary in zip(ops, images, called, sizes_vary(ops), strict=True):
        layout = layout if op.spec.kind != "ToCHWImage" else "CHW"
        output = describe_arrays([each.shape for each in made], layout, made[0].dtype.name, vary)
        *before, last = list(names) or ["numpy"]
        operators = [*(Operator(each, "cpu") for each in before), Operator(last, "cpu", output)]
        stages.append(stage_of(op, operators))
    return stages


@contextmanager
def _library_calls() -> Iterator[dict[str, None]]:
    """Collects the functions of OpenCV and Pillow that our code calls within the block, in order."""
    calls: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = getattr(argument, "__name__", "")
        if event == "c_call" and vars(cv2).get(name) is argument:
            calls[f"cv2.{name}"] = None
        elif event == "call" and frame.f_back is not None:
            module = str(frame.f_globals.get("__name__", ""))
            caller = str(frame.f_back.f_globals.get("__name__", ""))
            function = frame.f_code.co_name
            asked = function.startswith("_") or isinstance(getattr(Image.Image, function, None), property)
            if module.startswith("PIL.") and caller.startswith("ppcls.") and not asked:
                calls[f"{module}.{function}"] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
