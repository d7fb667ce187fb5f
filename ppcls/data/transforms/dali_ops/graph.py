"""Builds the DALI graph of a chain.

`lower` adds one transform to the graph. The other files in this folder implement it for each transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import singledispatch, wraps
from inspect import getclosurevars
from itertools import count, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.dali_ops.internals import Node as Node
from ppcls.data.transforms.dali_ops.internals import full_operator_name, operator_of
from ppcls.data.transforms.numpy_ops.chain import apply
from ppcls.data.transforms.specs.chain import Op
from ppcls.data.transforms.specs.decisions import count_decisions

Array = NDArray[Any]
Device = Literal["cpu", "gpu"]
Lowering = Callable[[Any, Any, "LoweringContext"], Any]


@dataclass(frozen=True)
class LoweringContext:
    """Settings and inputs for adding a transform to the graph.

    Attributes:
        device: Device that transforms the pixels.
        threads: Number of CPU threads for work outside of DALI's operators.
        pool: Thread pool for this work. If it is None, each op that needs threads creates a pool.
        callbacks: Whether a graph on the CPU may call the NumPy backend where it is faster than DALI's
            operator. A graph on a GPU never calls it, because calls into Python cost a third of the
            throughput.
        decisions: Nodes with the values of `ppcls.data.transforms.specs.decisions.decide`, on the CPU.
        decoder: Additional arguments of DALI's image decoders.
        size: Node of the size (width, height) to resize to if it changes from step to step, else None.
        decodes_on_gpu: Whether the GPU also decodes images, if the device is a GPU.
        channels_in_memory: Number of channels (1 or 3) of images that the pipeline receives as pixels; 0 if
            it receives encoded images.
    """

    device: Device
    threads: int = 1
    pool: Executor | None = None
    callbacks: bool = True
    decisions: tuple[Node, ...] = ()
    decoder: Mapping[str, Any] = field(default_factory=dict)
    size: Node | None = None
    decodes_on_gpu: bool = True
    channels_in_memory: int = 0

    @property
    def decoder_device(self) -> Literal["mixed", "cpu"]:
        """Value of ``device`` for DALI's image decoders."""
        return "mixed" if self.device == "gpu" and self.decodes_on_gpu else "cpu"

    def to_device(self, decoded: Node) -> Node:
        """Returns decoded images on the device that transforms them."""
        return decoded.gpu() if self.device == "gpu" and not self.decodes_on_gpu else decoded

    @property
    def calls_numpy(self) -> bool:
        """Whether `by_numpy` may be used."""
        return self.device == "cpu" and self.callbacks


class UnsupportedError(NotImplementedError):
    """DALI does not support a transform on the requested device.

    Attributes:
        op: Op with the transform, and its position in the chain.
    """

    def __init__(self, op: Op, text: str) -> None:
        super().__init__(text)
        self.op = op


@singledispatch
def lower(spec: Transform, node: Node, context: LoweringContext) -> Node:
    """Adds one transform to the graph.

    Args:
        spec: The transform.
        node: Node of the encoded images if the transform is a decoder, else node of the images.
        context: Settings and inputs of the transform.

    Returns:
        Node of the transformed images.

    Raises:
        NotImplementedError: There is no implementation for DALI.
    """
    raise NotImplementedError(f"the DALI backend does not implement {spec.kind}")


def lower_chain(
    ops: Sequence[Op], encoded: Node, decisions: Iterable[Node], context: LoweringContext
) -> list[Node]:
    """Builds the graph of a whole chain.

    Args:
        ops: The chain, before or after fusion.
        encoded: Node of the encoded images, on the CPU.
        decisions: Nodes of the decisions of all ops, in the order of `decide_chain`.
        context: Device, threads and decoder options.

    Returns:
        Node of the images after each op, on the context's device.

    Raises:
        UnsupportedError: DALI does not support a transform, or not on the context's device.
    """
    nodes = [encoded]
    remaining = iter(decisions)
    for op in ops:
        try:
            of_op = tuple(islice(remaining, count_decisions(op.spec)))
            nodes.append(lower(op.spec, nodes[-1], replace(context, decisions=of_op)))
        except RuntimeError as error:  # NotImplementedError of `lower`, or DALI rejects the graph
            raise UnsupportedError(op, str(error)) from error
        for node in nodes_between(nodes[-1], [nodes[-2], *of_op]):
            device = operator_device(node)
            if device not in operator_of(node).schema.GetSupportedBackends():
                text = f"its operator {operator_name(node)} does not support the device '{device}'"
                raise UnsupportedError(op, text)
    return nodes[1:]


def check_graph(ops: Sequence[Op], device_id: int | None, exec_dynamic: bool = True) -> None:
    """Checks that DALI supports a chain: builds its graph and discards it, without using a GPU.

    Args:
        ops: The chain, before or after fusion.
        device_id: Id of the GPU that transforms images; None for the CPU.
        exec_dynamic: Whether DALI's dynamic executor will run the graph. It supports more graphs.

    Raises:
        UnsupportedError: See `lower_chain`.
    """
    with Pipeline(batch_size=1, num_threads=1, device_id=device_id, exec_dynamic=exec_dynamic):
        inputs = (fn.external_source(source=lambda: None) for _ in count())
        lower_chain(ops, next(inputs), inputs, LoweringContext("cpu" if device_id is None else "gpu"))


def by_numpy(
    function: Callable[..., Array],
    images: Node,
    context: LoweringContext,
    *decisions: Node,
    layout: str = "HWC",
) -> Node:
    """Adds a node that calls ``function(image, *decisions)`` for each image of a batch, on the CPU.

    With the functions of the NumPy backend, the pixels are exactly the same as without DALI. OpenCV and NumPy
    release the global interpreter lock, so several threads can process one batch.

    Args:
        function: Function of an image [H, W, C] and the image's rows of ``decisions``. It returns an image.
        images: Node of the images.
        context: Provides the threads.
        *decisions: Nodes of decisions, one row per image.
        layout: Layout of the returned images, ``HWC`` or ``CHW``.
    """
    threads = context.threads
    pool = context.pool or ThreadPoolExecutor(max_workers=threads)

    def run_part(samples: list[tuple[Array, ...]]) -> list[Array]:
        return [np.ascontiguousarray(function(*sample)) for sample in samples]

    def run_batch(*batch: list[Array]) -> list[Array]:
        samples = list(zip(*batch, strict=True))
        results: list[Any] = list(samples)
        parts = pool.map(run_part, [samples[begin::threads] for begin in range(threads)])
        for begin, images in enumerate(parts):
            results[begin::threads] = images
        return results

    return fn.python_function(
        images, *decisions, function=run_batch, batch_processing=True, output_layouts=layout
    )


def numpy_on_cpu(lowering: Lowering) -> Lowering:
    """Returns a lowering that calls the NumPy backend on a CPU, where it is faster than ``lowering``."""

    @wraps(lowering)
    def choose(spec: Any, node: Any, context: LoweringContext) -> Node:
        if context.calls_numpy:
            return by_numpy(lambda image, *rows: apply(spec, image, rows), node, context, *context.decisions)
        return lowering(spec, node, context)

    return choose


def nodes_between(node: Node, before: Iterable[Node]) -> list[Node]:
    """Returns the operators between nodes of the graph, each one after its inputs.

    An operator is represented by one of its output nodes.

    Args:
        node: Last node, which is included.
        before: Nodes where the search stops. They are excluded.
    """
    known = {node.name for node in before}
    nodes: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if node.name in known or id(node.source) in nodes:
            return
        for parent in node.source.inputs:
            visit(parent)
        nodes[id(node.source)] = node

    visit(node)
    return list(nodes.values())


def operator_name(node: Node) -> str:
    """Returns the name of a node's operator in ``nvidia.dali.fn``, such as ``decoders.image``.

    For a call into Python, the name includes the function, such as ``python_function(by_numpy)``.
    """
    operator = operator_of(node)
    name = full_operator_name(operator).removeprefix("nvidia.dali.").removeprefix("fn.")
    if (wrapper := getattr(operator, "function", None)) is None:
        return name
    function = getclosurevars(wrapper).nonlocals.get("function", wrapper)
    return f"{name}({function.__qualname__.split('.')[0]})"


def operator_device(node: Node) -> str:
    """Returns the device of a node's operator: ``"cpu"``, ``"gpu"``, or ``"mixed"`` if it uses both."""
    return str(operator_of(node).device)
