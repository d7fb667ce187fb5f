"""Adds the score for the answer unknown to the ONNX model of a bundle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.bundle.graph import add_output
from ppcls.deploy.models.rejection import KNOWN_SCORE, ClassMeans
from ppcls.errors import UserError

_LINEAR = ("Gemm", "MatMul")
# Operators between the last layer and the activation: bias, temperature, and those of other precisions
_AFTER = ("Add", "Cast", "DequantizeLinear", "Div", "Identity", "Mul", "QuantizeLinear")


def add_energy(graph: Any, logits: str) -> None:
    """Adds the output `KNOWN_SCORE` with the energy of logits [N, C]; see `rejection.energy`."""
    builder = _Builder(graph)
    # The logarithm of a softmax is the difference from the energy, so each class gives the energy.
    values = builder.add("Cast", logits, to=1)
    shares = builder.add("LogSoftmax", values, axis=1)
    difference = builder.add("Sub", values, shares)
    first = builder.add("Gather", difference, builder.constant(np.array(0, np.int64)), axis=1)
    add_output(graph, first, KNOWN_SCORE, [None])


def add_distance(graph: Any, logits: str, means: ClassMeans, name: str) -> None:
    """Adds the output `KNOWN_SCORE` with negative distances to means; see `ClassMeans.score`.

    Args:
        graph: Graph of the model.
        logits: Tensor whose last linear layer has the features as input.
        means: Means of the classes.
        name: Name of the network, for messages.

    Raises:
        UserError: The last layer is not linear.
    """
    builder = _Builder(graph)
    features = builder.add("Cast", _find_features(graph, logits, name), to=1)
    centred = builder.add("Sub", features, builder.constant(means.centre))
    scaled = builder.add("Mul", centred, builder.constant(1 / means.deviation))
    ones = builder.constant(np.ones((len(means.centre), 1), np.float32))
    squares = builder.add("MatMul", builder.add("Mul", scaled, scaled), ones)  # [N, 1]
    products = builder.add("MatMul", scaled, builder.constant(np.ascontiguousarray(-2 * means.means.T)))
    relative = builder.add("Add", products, builder.constant(means.offsets()))
    # TopK has the same form in all versions of the operators, ReduceMin has not.
    largest = builder.add(
        "TopK", builder.add("Neg", relative), builder.constant(np.array([1], np.int64)), axis=1
    )
    distance = builder.add("Relu", builder.add("Sub", squares, largest))
    mean = builder.add("Mul", distance, builder.constant(np.array([1 / len(means.centre)], np.float32)))
    score = builder.add("Neg", builder.add("Sqrt", mean))
    flat = builder.add("Reshape", score, builder.constant(np.array([-1], np.int64)))
    add_output(graph, flat, KNOWN_SCORE, [None])


def _find_features(graph: Any, logits: str, name: str) -> str:
    """Returns the input of the last linear layer."""
    producers = {output: node for node in graph.node for output in node.output}
    node = producers.get(logits)
    while node is not None and node.op_type in _AFTER:
        # A bias and a temperature are constants, which no node or a node without inputs produces.
        computed = [producers[each] for each in node.input if each in producers and producers[each].input]
        node = computed[0] if computed else None
    if node is None or node.op_type not in _LINEAR:
        last = "no layer" if node is None else node.op_type
        raise UserError(
            f"{name}: the score distance needs a network whose last layer is linear, found {last}; run "
            "ppcls calibrate --unknown --score energy"
        )
    features: str = node.input[0]
    return features


class _Builder:
    """Appends nodes to a graph."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._count = 0

    def constant(self, values: NDArray[Any]) -> str:
        """Returns the name of a stored tensor."""
        from onnx import numpy_helper

        name = self._next("constant")
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: int) -> str:
        """Appends a node, and returns the name of its first output."""
        from onnx import helper

        name = self._next(kind)
        outputs = [name, f"{name}/indices"] if kind == "TopK" else [name]
        self._graph.node.append(helper.make_node(kind, list(inputs), outputs, name=name, **attributes))
        return name

    def _next(self, kind: str) -> str:
        self._count += 1
        return f"{KNOWN_SCORE}/{kind}{self._count}"
