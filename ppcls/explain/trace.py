"""Traces the first batch of a loader, to find the operators of each transform and their outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from types import FrameType
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.transforms.numpy_ops import run_steps
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import count_decisions, decide, sides_after
from ppcls.explain.description import PipelineStage, StageOperator, describe_arrays, describe_stage

if TYPE_CHECKING:  # DALI may be missing
    from ppcls.data.loaders.dali.loader import DaliLoader

_ENCODED = "[?] uint8"  # a file's bytes
_MEMORY = StageOperator("memory", "cpu", "pixels")  # of images that are not read from files


def trace_numpy(loader: PaddleLoader) -> list[PipelineStage]:
    """Transforms the first batch with NumPy, and returns the stages with the OpenCV and Pillow functions."""
    inputs = loader.first_batch_inputs()
    ops = inputs[0].ops
    images: list[list[NDArray[Any]]] = [[] for _ in ops]
    functions: list[dict[str, None]] = [{} for _ in ops]
    for sample in inputs:
        steps = run_steps(*sample)
        for outputs, names in zip(images, functions, strict=True):
            with _recorded_calls() as calls:
                outputs.append(next(steps))
            names.update(calls)
    stages = [PipelineStage(("read",), (StageOperator("read", "cpu", _ENCODED),))]
    layout = "HWC"
    for op, outputs, names, vary in zip(ops, images, functions, _sizes_vary(ops), strict=True):
        layout = layout if op.spec.kind != "ToCHWImage" else "CHW"
        output = describe_arrays([array.shape for array in outputs], layout, outputs[0].dtype.name, vary)
        *before, last = list(names) or ["numpy"]
        operators = [*(StageOperator(name, "cpu") for name in before), StageOperator(last, "cpu", output)]
        stages.append(describe_stage(op, operators))
    return stages


@contextmanager
def _recorded_calls() -> Iterator[dict[str, None]]:
    """Yields a dictionary whose keys are the OpenCV and Pillow functions that ppcls calls in the block."""
    calls: dict[str, None] = {}

    def record(frame: FrameType, event: str, argument: Any) -> None:
        name = getattr(argument, "__name__", "")
        if event == "c_call" and vars(cv2).get(name) is argument:
            calls[f"cv2.{name}"] = None
        elif event == "call" and frame.f_back is not None:
            module = str(frame.f_globals.get("__name__", ""))
            caller = str(frame.f_back.f_globals.get("__name__", ""))
            function = frame.f_code.co_name
            is_getter = isinstance(getattr(Image.Image, function, None), property)
            calls_pillow = module.startswith("PIL.") and caller.startswith("ppcls.")
            if calls_pillow and not function.startswith("_") and not is_getter:
                calls[f"{module}.{function}"] = None

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def trace_dali(loader: DaliLoader) -> list[PipelineStage]:
    """Runs the loader's DALI graph once with all nodes as outputs, and returns the stages."""
    from nvidia.dali import types

    from ppcls.data.transforms.dali_ops.graph import Node, nodes_between, operator_device, operator_name
    from ppcls.data.transforms.dali_ops.internals import shut_down

    graph = loader.graph()
    decisions = iter(graph.decisions)
    of_ops: list[list[Node]] = []
    for op, before, after in zip(graph.ops, (graph.encoded, *graph.images), graph.images, strict=False):
        nodes = nodes_between(after, [before, *islice(decisions, count_decisions(op.spec))])
        of_ops.append([node for node in nodes if operator_name(node) != "constant"])
    traced = {node.name: node for node in chain.from_iterable(of_ops)}
    graph.pipeline.set_outputs(*traced.values(), graph.label)
    try:
        graph.pipeline.build()
        outputs = dict(zip(traced, graph.pipeline.run(), strict=False))
        reader = graph.input.reader.node
        reading = [] if reader is None else nodes_between(reader, [])
    finally:
        shut_down(graph.pipeline)
        graph.input.close()

    def operator(node: Node, vary: bool) -> StageOperator:
        batch = outputs[node.name]
        dtype = types.to_numpy_type(batch.dtype).__name__
        output = describe_arrays(batch.shape(), batch.layout(), dtype, vary)
        return StageOperator(operator_name(node), operator_device(node), output)

    *before_last, last = [StageOperator(operator_name(node), operator_device(node)) for node in reading] or [
        _MEMORY
    ]
    stages = [PipelineStage(("read",), (*before_last, replace(last, output=last.output or _ENCODED)))]
    for op, nodes, vary in zip(graph.ops, of_ops, _sizes_vary(graph.ops), strict=True):
        stages.append(describe_stage(op, [operator(node, vary and node is nodes[-1]) for node in nodes]))
    return stages


def _sizes_vary(ops: Sequence[Op]) -> Iterator[bool]:
    """Yields for each op whether images that differ in size before the first op still differ after it."""
    sides = np.array([[600, 800], [900, 700]])
    for op in ops:
        decisions = decide(op.spec, np.full([2, op.spec.draws], 0.5, np.float32), sides)
        sides = sides_after(op.spec, sides, decisions)
        yield bool((sides[0] != sides[1]).any())
