"""Checks models against the operators that TensorRT documents.

The table is that of TensorRT 10.0, https://github.com/onnx/onnx-tensorrt/blob/10.0-GA/docs/operators.md, for
the operators that we write. Later versions support more. TensorRT itself needs a GPU, and is not run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

OPSETS = range(9, 21)
FLOATS = {"FLOAT", "FLOAT16"}
NUMBERS = FLOATS | {"INT32", "INT64"}
ANY = NUMBERS | {"BOOL"}
# Operators by the types of their data
OPERATORS = (
    (
        NUMBERS,
        "Abs Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Range",
    ),
    (NUMBERS, "ReduceMean ReduceSum Relu Sub TopK"),
    (
        FLOATS,
        "AveragePool BatchNormalization Clip Conv Erf Floor Gemm GlobalAveragePool HardSigmoid",
    ),
    (
        FLOATS,
        "HardSwish LayerNormalization LogSoftmax MatMul MaxPool Pow QuantizeLinear Sigmoid Softmax Sqrt",
    ),
    ({"BOOL"}, "And Not"),
    (ANY, "Concat ConstantOfShape Expand Flatten Gather Identity Pad Reshape Shape Slice Split Squeeze Tile"),
    (ANY, "Transpose Unsqueeze Where"),
    (ANY | {"UINT8"}, "Cast"),
    ({"INT8"}, "DequantizeLinear"),
)
TYPES = {name: types for types, names in OPERATORS for name in names.split()}
# Position of the input that must be stored in the model, by operator
STORED = {"Pad": 3, "ReduceMean": 1, "ReduceSum": 1, "Slice": 3, "Squeeze": 1, "Unsqueeze": 1}


def unsupported(file: Path) -> list[str]:
    """Returns descriptions of all nodes of a model that TensorRT does not document."""
    return sorted(set(_find_unsupported(onnx.load(file))))


def _find_unsupported(model: Any) -> Iterator[str]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    for entry in model.opset_import:
        if entry.domain or entry.version not in OPSETS:
            yield f"opset {entry.domain} {entry.version}"
    stored = {tensor.name: tensor for tensor in graph.initializer}
    stored |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    types = {name: tensor.data_type for name, tensor in stored.items()}
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    inputs = {value.name for value in graph.input}
    for node in graph.node:
        kind = node.op_type
        if kind == "Constant":
            continue
        if kind not in TYPES:
            yield kind
            continue
        data = node.input[1 if kind == "Where" else 0]
        name = TensorProto.DataType.Name(types.get(data, 0))
        if name not in TYPES[kind] or (name == "UINT8" and data not in inputs):
            yield f"{kind} of {name}"
        if kind in ("QuantizeLinear", "DequantizeLinear") and not _is_symmetric(node, stored):
            yield f"{kind} with a zero point"
        position = STORED.get(kind)
        if position is not None and len(node.input) > position and node.input[position] not in stored:
            yield f"{kind} with a computed input {position}"


def _is_symmetric(node: Any, stored: dict[str, Any]) -> bool:
    if len(node.input) < 3:
        return node.op_type == "DequantizeLinear"  # without a zero point, QuantizeLinear returns uint8
    zero = stored[node.input[2]]
    return zero.data_type == TensorProto.INT8 and not numpy_helper.to_array(zero).any()
