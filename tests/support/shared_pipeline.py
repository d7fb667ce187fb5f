"""Many graphs in one DALI pipeline, because building one takes seconds on a GPU, mostly for its decoders.

DALI runs operators with the same inputs and arguments once, so branches share their decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.dali_ops import Device, LoweringContext, Node, lower_chain
from ppcls.data.transforms.numpy_ops import run, run_steps
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.fuse import DecodeRandCrop

Images = list[NDArray[Any]]


@dataclass(frozen=True)
class GraphBranch:
    """One graph.

    Attributes:
        inputs: Batches with one array per image.
        lower: Maps the nodes of the inputs to the node of the images.
    """

    inputs: Sequence[Any]
    lower: Callable[..., Node]


class SharedPipeline:
    """Branches in one pipeline, which runs when images are first requested.

    If it fails, each branch runs alone, so that the error is that of the requested branch.

    Args:
        branches: Branches by name; all of one batch size.
        device: Device that they run on.
        exec_dynamic: Whether DALI's dynamic executor runs them.
    """

    def __init__(
        self, branches: Mapping[Any, GraphBranch], device: Device, exec_dynamic: bool = True
    ) -> None:
        self._branches, self.device, self._exec_dynamic = branches, device, exec_dynamic
        self._images: dict[Any, Images] | None = None

    def images(self, name: Hashable) -> Images:
        """Returns the images of one branch."""
        if self._images is None:
            try:
                self._images = dict(zip(self._branches, self._run(*self._branches.values()), strict=True))
            except (RuntimeError, TypeError, ValueError):  # to which DALI translates errors in C++
                self._images = {}
        return self._images[name] if self._images else self._run(self._branches[name])[0]

    def _run(self, *branches: GraphBranch) -> list[Images]:
        keys = {id(each): _content(each) for each in self._batches(branches)}
        batches = {keys[id(each)]: each for each in self._batches(branches)}
        fed = list(batches.values())
        pipeline = Pipeline(
            batch_size=len(fed[0]),
            num_threads=2,
            device_id=0 if self.device == "gpu" else None,
            prefetch_queue_depth=1,
            exec_dynamic=self._exec_dynamic,
        )
        with pipeline:
            nodes = fn.external_source(lambda: fed, num_outputs=len(fed), batch=True)
            of = dict(zip(batches, nodes, strict=True))
            pipeline.set_outputs(
                *(branch.lower(*(of[keys[id(each)]] for each in branch.inputs)) for branch in branches)
            )
        pipeline.build()
        outputs = list(pipeline.run())
        return [self._arrays(outputs.pop(0)) for _ in branches]  # a copy at a time: there may be many

    def _batches(self, branches: Sequence[GraphBranch]) -> list[Any]:
        """Returns the different objects among the inputs of branches."""
        return list({id(each): each for branch in branches for each in branch.inputs}.values())

    def _arrays(self, batch: Any) -> Images:
        return [np.array(image) for image in (batch.as_cpu() if self.device == "gpu" else batch)]


def _content(batch: Any) -> Hashable:
    """Returns a key that is equal for batches with equal arrays."""
    return tuple((each.dtype.str, each.shape, each.tobytes()) for each in batch)


def chain_branch(
    ops: tuple[Op, ...], files: Sequence[bytes], draws: NDArray[np.float32], place: LoweringContext
) -> GraphBranch:
    """Returns the branch of a whole chain, fused or not, over encoded images."""
    first = ops[0].spec
    decoder = first.decode if isinstance(first, DecodeRandCrop) else first
    sides = np.array([_decode(decoder, file).shape[:2] for file in files])
    inputs = [_encoded(tuple(files)), *chain(*decide_chain(ops, draws, sides))]
    return GraphBranch(inputs, lambda encoded, *decided: lower_chain(ops, encoded, decided, place)[-1])


def expected(ops: tuple[Op, ...], file: bytes, draws: NDArray[np.float32]) -> NDArray[Any]:
    """Returns the same as `numpy_ops.run`, but decodes each file once for all chains."""
    first = _decode(ops[0].spec, file).copy()
    *_, image = first, *run_steps(ops[1:], first, draws)
    return np.ascontiguousarray(image)


@cache
def _encoded(files: tuple[bytes, ...]) -> list[NDArray[np.uint8]]:
    """Returns the same list for the same files, so that it is compared once with other inputs."""
    return [np.frombuffer(file, np.uint8) for file in files]


@cache
def _decode(decoder: Transform, file: bytes) -> NDArray[Any]:
    return run((Op(decoder, 0),), file, np.zeros(0, np.float32))
