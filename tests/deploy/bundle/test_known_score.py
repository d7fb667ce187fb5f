from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from ppcls.deploy.bundle.known_score import add_distance, add_energy
from ppcls.deploy.models.rejection import energy, fit_means
from ppcls.errors import UserError

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(size=(6, 4)).astype(np.float32)
FEATURES = RANDOM.normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) % 4


def build(kinds: list[str], opset: int) -> Any:
    """Returns a model whose logits are computed by operators, of which the first one is the last layer."""
    from onnx import TensorProto, helper, numpy_helper

    stored = {"MatMul": WEIGHT, "Gemm": WEIGHT, "Add": WEIGHT[0], "Div": np.array([1.5], np.float32)}
    nodes, tensors, name = [], [], "features"
    for number, kind in enumerate(kinds):
        inputs = [name]
        if kind in stored:
            tensors.append(numpy_helper.from_array(stored[kind], f"stored{number}"))
            inputs.append(f"stored{number}")
        name = f"out{number}"
        nodes.append(helper.make_node(kind, inputs, [name]))
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, 6])
    logits = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4])
    graph = helper.make_graph(nodes, "graph", [features], [logits], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


@pytest.mark.parametrize("opset", [13, 17, 19])
@pytest.mark.parametrize("kinds", [["Gemm"], ["MatMul", "Add"], ["MatMul", "Add", "Div", "Identity"]])
def test_scores_in_the_graph_are_those_of_numpy(kinds: list[str], opset: int) -> None:
    means = fit_means(FEATURES, LABELS, 4)
    for kind in ("energy", "distance"):
        model = build(kinds, opset)
        logits = model.graph.output[0].name
        if kind == "energy":
            add_energy(model.graph, logits)
        else:
            add_distance(model.graph, logits, means, "Net")
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        values, score = session.run([logits, "known_score"], {"features": FEATURES})
        expected = energy(values) if kind == "energy" else means.score(FEATURES)
        assert score.shape == (40,)
        np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-5)


def test_network_without_a_linear_last_layer_has_no_distance() -> None:
    model = build(["MatMul", "Relu"], 17)
    with pytest.raises(UserError, match=r"Net: .* needs a network whose last layer is linear, found Relu"):
        add_distance(model.graph, model.graph.output[0].name, fit_means(FEATURES, LABELS, 4), "Net")
