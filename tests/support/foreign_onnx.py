"""Writes ``.onnx`` files as tools other than ppcls export them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_onnx(
    file: Path,
    *,
    opset: int = 17,
    batch: int | str = "N",
    layout: str = "NCHW",
    activation: str | None = None,
    domain: str | None = None,
    dtype: str = "FLOAT",
    side: int | str = 64,
) -> Path:
    """Writes a network with 5 classes and random weights.

    Args:
        file: File to write.
        opset: Version of the operators.
        batch: Number of images, or a name for any number.
        layout: ``NCHW`` or ``NHWC``.
        activation: Last operator; None for logits.
        domain: Domain of an operator that ONNX Runtime does not have; None for none.
        dtype: Type of the input.
        side: Side of the images, or a name for any side.
    """
    import onnx
    from onnx import TensorProto, helper

    random = np.random.default_rng(0)
    shape = [batch, 3, side, side] if layout == "NCHW" else [batch, side, side, 3]
    weights = {name: random.standard_normal(size).astype("f4") for name, size in SIZES.items()}
    nodes = [helper.make_node("Cast", ["input"], ["float"], to=TensorProto.FLOAT)]
    order = [0, 1, 2, 3] if layout == "NCHW" else [0, 3, 1, 2]
    nodes.append(helper.make_node("Transpose", ["float"], ["image"], perm=order))
    nodes.append(helper.make_node("Conv", ["image", "filters"], ["c"], strides=[2, 2]))
    nodes.append(helper.make_node("Relu" if domain is None else "Magic", ["c"], ["r"], domain=domain or ""))
    nodes.append(helper.make_node("GlobalAveragePool", ["r"], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["logits" if activation else "output"]))
    if activation is not None:
        nodes.append(helper.make_node(activation, ["logits"], ["output"]))
    image = helper.make_tensor_value_info("input", TensorProto.DataType.Value(dtype), shape)
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, 5])
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "graph", [image], [output], stored)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 7
    onnx.save(model, str(file))
    return file


SIZES = {"filters": (4, 3, 3, 3), "head": (4, 5)}
