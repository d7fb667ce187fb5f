"""Reads the input and the output of an ``.onnx`` file of any program, and checks its operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ppcls.deploy.models.programs.onnx_file import check_onnx
from ppcls.deploy.models.programs.signature import Signature
from ppcls.errors import UserError, counted

# Operators of these domains are part of ONNX Runtime. Others need a library of the author.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_ACTIVATIONS = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
_COPIES = ("Cast", "Identity")
_FLOAT32 = 1  # `TensorProto.FLOAT`
_SHOWN = 5  # operators that a message lists


def read_onnx_signature(file: Path, *, trust: bool = False) -> Signature:
    """Returns the input and the output of a model. The activation is ``none`` if it returns logits.

    Args:
        file: The file.
        trust: Whether the file may refer to other files and contain control flow.

    Raises:
        UserError: The file cannot be read, does more than the user trusts it to do, contains operators that
            ONNX Runtime does not have, or is no network with one input [N, C, H, W] or [N, H, W, C] and one
            output [N, K].
    """
    if not trust:
        check_onnx(file)
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(file), load_external_data=False)
    except (OSError, DecodeError) as error:
        raise UserError(f"{file}: not an ONNX file: {error}; export the model again") from None
    _check_operators(file, model)
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise UserError(f"{file}: damaged: {error}; export the model again") from None
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [tensor for tensor in graph.input if tensor.name not in stored]
    if len(inputs) != 1 or len(graph.output) != 1:
        names = [", ".join(tensor.name for tensor in tensors) for tensors in (inputs, graph.output)]
        raise UserError(
            f"{file}: expected a classifier with one input and one output, found the inputs {names[0]} and "
            f"the outputs {names[1]}"
        )
    shape = _read_shape(inputs[0])
    output = _read_shape(graph.output[0])
    if inputs[0].type.tensor_type.elem_type != _FLOAT32:
        kind = onnx.TensorProto.DataType.Name(inputs[0].type.tensor_type.elem_type)
        raise UserError(
            f"{file}: expected an input of float32 values, found {kind}; export the model in float32"
        )
    if len(shape) != 4 or len(output) != 2 or 3 not in (shape[1], shape[3]):
        raise UserError(
            f"{file}: expected a classifier of RGB images with an input [N, 3, H, W] or [N, H, W, 3] and an "
            f"output [N, K], found {list(shape)} and {list(output)}"
        )
    return Signature(inputs[0].name, shape, output[1], _find_activation(graph))


def _check_operators(file: Path, model: Any) -> None:
    functions = {(function.domain, function.name) for function in model.functions}
    unknown = sorted(
        {
            f"{node.domain}.{node.op_type}"
            for node in model.graph.node
            if node.domain not in _DOMAINS and (node.domain, node.op_type) not in functions
        }
    )
    if unknown:
        raise UserError(
            f"{file}: {counted(len(unknown), 'operator is', 'operators are')} not part of ONNX Runtime and "
            f"would need a library of the author: {', '.join(unknown[:_SHOWN])}; export the model with "
            "standard operators"
        )


def _read_shape(tensor: Any) -> tuple[int, ...]:
    """Returns the shape of a tensor; -1 for any length."""
    return tuple(side.dim_value or -1 for side in tensor.type.tensor_type.shape.dim)


def _find_activation(graph: Any) -> str:
    producers = {name: node for node in graph.node for name in node.output}
    node = producers.get(graph.output[0].name)
    while node is not None and node.op_type in _COPIES:
        node = producers.get(node.input[0])
    return "none" if node is None else _ACTIVATIONS.get(node.op_type, "none")
