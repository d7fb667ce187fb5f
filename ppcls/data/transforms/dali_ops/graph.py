"""Builds DALI's graph of a chain; the other files of the folder lower single transforms."""

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

from ppcls.config.sections.transform import Transform
from ppcls.data.transforms.numpy_ops.chain import apply
from ppcls.data.transforms.specs.chain import Op
from ppcls.data.transforms.specs.decisions import count_decisions

Array = NDArray[Any]
Node = Any  # a DataNode of a graph under construction
Device = Literal["cpu", "gpu"]
Lowering = Callable[[Any, Any, "LoweringContext"], Any]


@dataclass(frozen=True)
class LoweringContext:
    """What a transform needs to know to be added to the graph.

    Attributes:
        device: Device that transforms the pixels.
        decodes_on_gpu: Whether decoding takes place on the GPU too, if that is the device.
        threads: CPU threads for work outside DALI's own operators.
        pool: Provides these threads; by default each op that needs them creates its own.
        callbacks: Whether the graph calls numpy_ops where that is faster than DALI's CPU operator. It never
            does on a GPU: there a call into Python costs a third of the throughput.
        decisions: Nodes of what `ppcls.data.transforms.specs.decisions.decide` returns, on the CPU.
        decoder: Additional arguments of DALI's image decoders.
        size: Node of the size (width, height) to resize to, if it changes from step to step.
    """

    device: Device
    threads: int = 1
    pool: Executor | None = None
    callbacks: bool = True
    decisions: tuple[Node, ...] = ()
    decoder: Mapping[str, Any] = field(default_factory=dict)
    size: Node | None = None
    decodes_on_gpu: bool = True

    @property
    def decoder_device(self) -> Literal["mixed", "cpu"]:
        """The device of DALI's image decoders."""
        return "mixed" if self.device == "gpu" and self.decodes_on_gpu else "cpu"

    def to_device(self, decoded: Node) -> Node:
        """Returns decoded images on the device that transforms them."""
        return decoded.gpu() if self.device == "gpu" and not self.decodes_on_gpu else decoded

    @property
    def calls_numpy(self) -> bool:
        """Whether `by_numpy` may be used."""
        return self.device == "cpu" and self.callbacks


class UnsupportedError(NotImplementedError):
    """DALI can't do a transform on the requested device.

    Attributes:
        op: The transform at its position in the chain.
    """

    def __init__(self, op: Op, text: str) -> None:
        super().__init__(text)
        self.op = op


@singledispatch
def lower(spec: Transform, node: Node, context: LoweringContext) -> Node:
    """Adds one transform to the graph; ``node`` is a decoder's encoded images, or else images."""
    raise NotImplementedError(f"dali_ops does not implement {spec.kind}")


def lower_chain(
    ops: Sequence[Op], encoded: Node, decisions: Iterable[Node], context: LoweringContext
) -> list[Node]:
    """Builds the graph of a whole chain.

    Args:
        ops: The chain, fused or not.
        encoded: Node of the encoded images, on the CPU.
        decisions: Nodes of all ops' decisions, one after the other, as `decide_chain` yields them.
        context: Device, threads and decoder options.

    Returns:
        Nodes of the images after each op, on the context's device.

    Raises:
        UnsupportedError: DALI does not implement a transform, or not for the context's device.
    """
    nodes, remaining = [encoded], iter(decisions)
    for op in ops:
        try:
            of_op = tuple(islice(remaining, count_decisions(op.spec)))
            nodes.append(lower(op.spec, nodes[-1], replace(context, decisions=of_op)))
        except RuntimeError as error:  # our NotImplementedError, or DALI's, if its executor rejects the graph
            raise UnsupportedError(op, str(error)) from error
        for node in nodes_between(nodes[-1], [nodes[-2], *of_op]):
            device = operator_device(node)
            if device not in node.source._op.schema.GetSupportedBackends():
                text = f"its operator {operator_name(node)} does not work on '{device}'"
                raise UnsupportedError(op, text)
    return nodes[1:]


def check_graph(ops: Sequence[Op], device_id: int | None, exec_dynamic: bool = True) -> None:
    """Builds a chain's graph and discards it, without building a pipeline or using a GPU.

    Args:
        ops: The chain, fused or not.
        device_id: GPU to transform on; None for the CPU.
        exec_dynamic: Whether DALI's dynamic executor will run it, which supports more graphs.

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
    """Calls ``function(image, *decisions)`` for each image of a batch, on the CPU.

    Pixels are then exactly those of numpy_ops. OpenCV and NumPy release Python's lock, so several threads
    work on one batch.

    Args:
        function: From an image [H, W, C] and its rows of ``decisions`` to an image of ``layout``.
        context: Provides the threads.
        *decisions: Nodes of decisions, one row per image.
        layout: ``HWC`` or ``CHW``.
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
    """Restricts a lowering to the GPU; on the CPU the graph calls numpy_ops, which is faster than DALI."""

    @wraps(lowering)
    def choose(spec: Any, node: Any, context: LoweringContext) -> Node:
        if context.calls_numpy:
            return by_numpy(lambda image, *rows: apply(spec, image, rows), node, context, *context.decisions)
        return lowering(spec, node, context)

    return choose


def nodes_between(node: Node, before: Iterable[Node]) -> list[Node]:
    """Lists the operators between nodes of the graph.

    Each operator is represented by the first of its outputs that is used.

    Args:
        node: Last node.
        before: Nodes to stop at; they are excluded.

    Returns:
        Nodes, each after its inputs.
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
    """Returns the name of a node's operator in ``nvidia.dali.fn``: ``decoders.image``.

    For a call into Python it includes the function: ``python_function(by_numpy)``.
    """
    operator = node.source._op
    name = str(operator._operator_name()).removeprefix("nvidia.dali.").removeprefix("fn.")
    if (wrapper := getattr(operator, "function", None)) is None:
        return name
    function = getclosurevars(wrapper).nonlocals.get("function", wrapper)
    return f"{name}({function.__qualname__.split('.')[0]})"


def operator_device(node: Node) -> str:
    """Returns the device of a node's operator: ``"cpu"``, ``"gpu"``, or ``"mixed"`` if it uses both."""
    return str(node.source._op.device)
