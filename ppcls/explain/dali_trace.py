"""What became of a chain in DALI: the loader's own graph, run once with all that is in it as outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from nvidia.dali import types

from ppcls.data.loaders.dali.loader import DaliLoader, Graph
from ppcls.data.loaders.dali.reader import shut_down
from ppcls.data.transforms.dali_ops import Node
from ppcls.data.transforms.dali_ops.operators import nodes_between, operator_device, operator_name
from ppcls.data.transforms.specs.decisions import count_decisions
from ppcls.explain.description import ENCODED, Operator, Stage, describe_arrays, sizes_vary, stage_of


def trace_dali(loader: DaliLoader) -> list[Stage]:
    """Describes what a loader does to its first batch."""
    graph = loader.graph()
    added = _added(graph)
    nodes = {each.name: each for each in chain.from_iterable(added)}
    graph.pipeline.set_outputs(*nodes.values(), graph.label)
    try:
        graph.pipeline.build()
        outputs = dict(zip(nodes, graph.pipeline.run(), strict=False))
        reading = nodes_between(graph.source.reader.node, [])
    finally:
        shut_down(graph.pipeline)
        graph.source.close()
    *before, last = [Operator(operator_name(each), operator_device(each)) for each in reading]
    stages = [Stage(("read",), (*before, replace(last, output=ENCODED)))]
    for op, own, vary in zip(graph.ops, added, sizes_vary(graph.ops), strict=True):
        ends = [vary and each is own[-1] for each in own]
        stages.append(
            stage_of(op, [_operator(each, outputs, end) for each, end in zip(own, ends, strict=True)])
        )
    return stages


def _added(graph: Graph) -> list[list[Node]]:
    """Returns the nodes that each op added to the graph, but for constants."""
    waiting = iter(graph.decided)
    befores = (graph.encoded, *graph.images)
    added = (
        nodes_between(after, [before, *islice(waiting, count_decisions(op.spec))])
        for op, before, after in zip(graph.ops, befores, graph.images, strict=False)
    )
    return [[each for each in nodes if operator_name(each) != "constant"] for nodes in added]


def _operator(node: Node, outputs: Mapping[str, Any], vary: bool) -> Operator:
    batch = outputs[node.name]
    dtype = types.to_numpy_type(batch.dtype).__name__
    output = describe_arrays(batch.shape(), batch.layout(), dtype, vary)
    return Operator(operator_name(node), operator_device(node), output)
