"""Joins the preprocessing and the network into one ONNX model whose stages are outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ppcls.deploy.export.precision import remove_unused_domains
from ppcls.errors import UserError

INPUT = "x"
PROBABILITIES = "probabilities"
LOGITS = "logits"
PREPARED = "prepared"
_ACTIVATIONS = ("Softmax", "Sigmoid")
_COPIES = ("Cast", "Identity")
AddScore = Callable[[Any, str], None]


@dataclass(frozen=True)
class JoinedModel:
    """An ONNX model from pixels to probabilities.

    Attributes:
        model: The model. Its first output is `PROBABILITIES`.
        has_logits: Whether it has the output `LOGITS`.
    """

    model: bytes
    has_logits: bool


def join_models(
    preprocessing: bytes, network: bytes, name: str, add_score: AddScore | None = None
) -> JoinedModel:
    """Joins two ONNX models.

    Args:
        preprocessing: Model from pixels [N, H, W, 3] uint8 to the input of the network.
        network: Model from its input to probabilities [N, C].
        name: Name of the network, for messages.
        add_score: Function that adds the output for the answer unknown to a graph, given the name of the
            logits; None for none.

    Raises:
        UserError: The models need different versions of the operators, or onnx rejects the result.
    """
    import onnx
    from onnx import compose

    parts = []
    for prefix, data in (("prepare/", preprocessing), ("network/", network)):
        part = onnx.load_from_string(data)
        remove_unused_domains(part)
        _sort_nodes(part.graph)
        parts.append(compose.add_prefix(part, prefix))
    first, second = _align_opsets(parts, name)
    second.ir_version = first.ir_version = max(first.ir_version, second.ir_version)
    (prepared,) = first.graph.output
    if len(second.graph.input) != 1 or len(second.graph.output) != 1:
        raise UserError(
            f"{name}: a bundle needs a network with one input and one output, got "
            f"{len(second.graph.input)} and {len(second.graph.output)}"
        )
    seam = prepared.name
    try:
        joined = compose.merge_models(first, second, io_map=[(seam, second.graph.input[0].name)])
    except (ValueError, onnx.checker.ValidationError) as error:
        raise UserError(f"{name}: cannot be joined with its preprocessing: {error}") from None
    graph = joined.graph
    (scores,) = graph.output
    logits = _find_logits(graph, scores.name)
    _rename_input(graph, INPUT)
    del graph.output[:]
    add_output(graph, scores.name, PROBABILITIES, [None, None])
    if logits is not None:
        add_output(graph, logits, LOGITS, [None, None])
    if add_score is not None:
        if logits is None:
            raise UserError(
                f"{name}: the answer unknown needs logits, but the network has no last activation"
            )
        add_score(graph, logits)
    add_output(graph, seam, PREPARED, [None] * len(prepared.type.tensor_type.shape.dim))
    _remove_unused_nodes(graph)
    joined.producer_name = "ppcls"
    try:
        onnx.checker.check_model(joined)
    except onnx.checker.ValidationError as error:
        raise UserError(f"{name}: onnx rejects the model with its preprocessing: {error}") from None
    return JoinedModel(bytes(joined.SerializeToString()), logits is not None)


def _align_opsets(models: list[Any], name: str) -> list[Any]:
    """Returns models with the same version of ONNX's operators.

    Raises:
        UserError: onnx cannot convert a model to the version of the other.
    """
    from onnx import version_converter

    versions = [next(each.version for each in model.opset_import if not each.domain) for model in models]
    try:
        return [
            model if version == max(versions) else version_converter.convert_version(model, max(versions))
            for model, version in zip(models, versions, strict=True)
        ]
    except RuntimeError as error:
        raise UserError(
            f"{name}: its operators of opset {versions[1]} cannot be joined with the preprocessing: {error}; "
            f"export the model with opset {versions[0]}"
        ) from None


def add_output(graph: Any, tensor: str, name: str, shape: list[int | None]) -> None:
    """Adds an output ``name`` to a graph, with the values of a tensor, in float32."""
    from onnx import TensorProto, helper

    # The values can be float16. A cast of float32 to float32 has no cost.
    graph.node.append(helper.make_node("Cast", [tensor], [name], name=f"{name}/copy", to=TensorProto.FLOAT))
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def _sort_nodes(graph: Any) -> None:
    """Sorts nodes topologically. The conversion to float16 appends nodes at the end."""
    producers = {name: node for node in graph.node for name in node.output}
    ordered: list[Any] = []
    states: dict[int, bool] = {}  # whether a node is sorted; False while its inputs are
    for root in graph.node:
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) not in states:
                states[id(node)] = False
                needed = [producers[name] for name in node.input if name in producers]
                stack.extend(other for other in needed if id(other) not in states)
                continue
            stack.pop()
            if not states[id(node)]:
                states[id(node)] = True
                ordered.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)


def _remove_unused_nodes(graph: Any) -> None:
    """Removes nodes and initializers that no output needs.

    ONNX Runtime would warn about them whenever it loads the model.
    """
    used = {output.name for output in graph.output}
    kept_nodes = []
    for node in reversed(graph.node):  # in topological order
        if not used.isdisjoint(node.output):
            used.update(node.input)
            for attribute in node.attribute:
                used.update(name for inner in attribute.g.node for name in inner.input)
            kept_nodes.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept_nodes))
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _rename_input(graph: Any, name: str) -> None:
    (image,) = graph.input
    for node in graph.node:
        for position, tensor in enumerate(node.input):
            if tensor == image.name:
                node.input[position] = name
    image.name = name


def _find_logits(graph: Any, scores: str) -> str | None:
    """Returns the input of the last activation; None if the graph ends in another operator."""
    producers = {output: node for node in graph.node for output in node.output}
    node = producers.get(scores)
    while node is not None and node.op_type in _COPIES:
        node = producers.get(node.input[0])
    return node.input[0] if node is not None and node.op_type in _ACTIVATIONS else None
