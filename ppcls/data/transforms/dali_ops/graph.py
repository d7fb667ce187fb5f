"""A graph of DALI's operators for a chain; each family's file registers how it does its transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import singledispatch, wraps
from itertools import count, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.config.sections.transform import Transform
from ppcls.data.transforms.dali_ops.operators import (
    is_supported,
    nodes_between,
    operator_device,
    operator_name,
)
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import count_decisions

Array = NDArray[Any]
Node = Any  # a DataNode of a graph under construction
Device = Literal["cpu", "gpu"]
Lowering = Callable[[Any, Any, "Place"], Any]


@dataclass(frozen=True)
class Place:
    """Where an op stands in the graph.

    Attributes:
        device: Where pixels are transformed.
        decodes_on_gpu: Whether they are there from decoding on; without it they are moved there, if anywhere.
        threads: CPU threads for what is not done by DALI's own.
        pool: Lends these threads; without one each op that needs them makes its own.
        callbacks: Whether numpy_ops works from within the graph where it is faster than DALI's operator for
            the CPU. Never on a GPU: there a call into Python costs a third of the throughput.
        decided: Nodes of what `ppcls.data.transforms.specs.decisions.decide` says of the images, on the CPU.
        decoder: More arguments of DALI's image decoders.
        size: Node of the size (width, height) to resize to, where it changes from step to step.
    """

    device: Device
    threads: int = 1
    pool: Executor | None = None
    callbacks: bool = True
    decided: tuple[Node, ...] = ()
    decoder: Mapping[str, Any] = field(default_factory=dict)
    size: Node | None = None
    decodes_on_gpu: bool = True

    @property
    def decoder_device(self) -> Literal["mixed", "cpu"]:
        """The device of DALI's image decoders."""
        return "mixed" if self.device == "gpu" and self.decodes_on_gpu else "cpu"

    def moved(self, images: Node) -> Node:
        """Returns decoded images where pixels are transformed."""
        return images.gpu() if self.device == "gpu" and not self.decodes_on_gpu else images

    @property
    def calls_numpy(self) -> bool:
        """Whether `by_numpy` may be used."""
        return self.device == "cpu" and self.callbacks


class UnsupportedError(NotImplementedError):
    """A transform that DALI can't do where it is asked to.

    Attributes:
        op: The transform at its place.
    """

    def __init__(self, op: Op, text: str) -> None:
        super().__init__(text)
        self.op = op


def lower_chain(ops: Sequence[Op], encoded: Node, decided: Iterable[Node], place: Place) -> Node:
    """Builds the graph of a whole chain.

    Args:
        ops: The chain, fused or not.
        encoded: Node of the files' bytes, on the CPU.
        decided: Nodes of all ops' decisions, one after the other, as `decide_chain` gives them.
        place: Device, threads and decoder options.

    Returns:
        Node of the images, on the place's device.

    Raises:
        UnsupportedError: A transform has no DALI form, or none for the place's device.
    """
    return lower_each(ops, encoded, decided, place)[-1]


def lower_each(ops: Sequence[Op], encoded: Node, decided: Iterable[Node], place: Place) -> list[Node]:
    """Builds the graph of a whole chain as `lower_chain` does, and returns the images' node after each op."""
    nodes, waiting = [encoded], iter(decided)
    for op in ops:
        try:
            own = tuple(islice(waiting, count_decisions(op.spec)))
            nodes.append(lower(op.spec, nodes[-1], replace(place, decided=own)))
        except RuntimeError as error:  # ours, NotImplementedError; or DALI's, of what its executor refuses
            raise UnsupportedError(op, str(error)) from error
        for each in nodes_between(nodes[-1], [nodes[-2], *own]):
            if not is_supported(each):
                text = f"its operator {operator_name(each)} does not work on '{operator_device(each)}'"
                raise UnsupportedError(op, text)
    return nodes[1:]


def draft(ops: Sequence[Op], device_id: int | None, exec_dynamic: bool = True) -> None:
    """Builds a chain's graph and drops it: no pipeline is built, and no GPU is touched.

    Args:
        ops: The chain, fused or not.
        device_id: GPU to work on; None for the CPU.
        exec_dynamic: Whether DALI's dynamic executor will run it, which lets more through.

    Raises:
        UnsupportedError: As `lower_chain`.
    """
    with Pipeline(batch_size=1, num_threads=1, device_id=device_id, exec_dynamic=exec_dynamic):
        inputs = (fn.external_source(source=lambda: None) for _ in count())
        lower_chain(ops, next(inputs), inputs, Place("cpu" if device_id is None else "gpu"))


@singledispatch
def lower(spec: Transform, node: Node, place: Place) -> Node:
    """Adds one transform to the graph; ``node`` is the files' bytes for decoders, else images."""
    raise NotImplementedError(f"dali_ops knows no {spec.kind}")


def by_numpy(
    function: Callable[..., Array], images: Node, place: Place, *decided: Node, layout: str = "HWC"
) -> Node:
    """Calls ``function(image, *decisions)`` for each image of a batch, on the CPU.

    So pixels are exactly those of numpy_ops. OpenCV and numpy work without Python's lock, so threads share
    a batch.

    Args:
        function: From an image [H, W, C] and its rows of ``decided`` to an image of ``layout``.
        images: Node of the images.
        place: Whose threads do it.
        *decided: Nodes of decisions, one row an image.
        layout: ``HWC`` or ``CHW``.
    """
    threads = place.threads
    pool = place.pool or ThreadPoolExecutor(max_workers=threads)

    def part(samples: list[tuple[Array, ...]]) -> list[Array]:
        return [np.ascontiguousarray(function(*sample)) for sample in samples]

    def whole(*batch: list[Array]) -> list[Array]:
        samples = list(zip(*batch, strict=True))
        done: list[Any] = list(samples)
        parts = pool.map(part, [samples[begin::threads] for begin in range(threads)])
        for begin, images in enumerate(parts):
            done[begin::threads] = images
        return done

    return fn.python_function(images, *decided, function=whole, batch_processing=True, output_layouts=layout)


def numpy_on_cpu(lowering: Lowering) -> Lowering:
    """Makes a way to lower a transform that of GPUs: on the CPU numpy_ops does it, in less time than DALI."""

    @wraps(lowering)
    def choose(spec: Any, node: Any, place: Place) -> Node:
        if place.calls_numpy:
            return by_numpy(lambda image, *rows: apply(spec, image, rows), node, place, *place.decided)
        return lowering(spec, node, place)

    return choose
