"""ONNX files that refer to other files, or contain control flow."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_onnx import write_onnx
from onnx import TensorProto, helper
from small_classifier import export_model, forget_files, write_config, write_image

from ppcls.classifier import Classifier
from ppcls.cli import export as export_cli
from ppcls.cli import index as index_cli
from ppcls.cli import infer as infer_cli
from ppcls.deploy.models.programs.onnx_file import check_onnx
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification
from ppcls.serve.limits import RequestError
from ppcls.serve.models import LoadableModels, ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("model"))


def make_external(tensor: Any, location: str) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def weight(model: onnx.ModelProto) -> Any:
    return model.graph.initializer.add(name="weight")


def constant(model: onnx.ModelProto) -> Any:
    node = model.graph.node.add(op_type="Constant", output=["constant"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    return node.attribute[0].t


def in_training(model: onnx.ModelProto) -> Any:
    return model.training_info.add().algorithm.initializer.add(name="gradient")


def in_function(model: onnx.ModelProto) -> Any:
    node = model.functions.add(name="f", domain="d").node.add(op_type="Constant", output=["y"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    return node.attribute[0].t


def sparse(model: onnx.ModelProto) -> Any:
    return model.graph.sparse_initializer.add().values


@pytest.mark.parametrize("location", ["other.bin", "../other.bin", "/etc/passwd"])
@pytest.mark.parametrize("find", [weight, constant, in_training, in_function, sparse])
def test_weights_in_other_files_are_rejected(
    find: Any, location: str, exported: Path, tmp_path: Path
) -> None:
    model = onnx.load(exported / "inference.onnx")
    make_external(find(model), location)
    file = tmp_path / "inference.onnx"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="weights in other files are not supported"):
        check_onnx(file)


def test_engine_of_a_device_is_rejected(tmp_path: Path) -> None:
    graph = helper.make_graph([helper.make_node("EPContext", [], ["y"], domain="com.microsoft")], "g", [], [])
    file = tmp_path / "inference.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(UserError, match="the operator EPContext contains code for a device"):
        check_onnx(file)


def branch(model: onnx.ModelProto) -> None:
    bodies = {name: identity_graph([], "result") for name in ("then_branch", "else_branch")}
    model.graph.node.append(helper.make_node("If", ["yes"], ["output"], **bodies))


def loop(model: onnx.ModelProto) -> None:
    """Adds a loop of 2^62 steps."""
    model.graph.node.append(helper.make_node("Loop", ["steps", "yes", "logits"], ["output"], body=step()))


def scan(model: onnx.ModelProto) -> None:
    node = helper.make_node("Scan", ["logits"], ["output"], body=step(), num_scan_inputs=1)
    model.graph.node.append(node)


def sequence_map(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("SequenceMap", ["logits"], ["output"], body=step()))


def generator(model: onnx.ModelProto) -> None:
    model.graph.node.append(
        helper.make_node("GreedySearch", ["logits"], ["output"], domain="com.microsoft", decoder=step())
    )


def in_list(model: onnx.ModelProto) -> None:
    node = helper.make_node("Relu", ["logits"], ["output"])
    node.attribute.append(helper.make_attribute("bodies", [step()]))
    model.graph.node.append(node)


def loop_in_function(model: onnx.ModelProto) -> None:
    inner = helper.make_node("Loop", ["steps", "yes", "x"], ["y"], body=step())
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "Endless", ["x", "steps", "yes"], ["y"], [inner], opsets)
    model.functions.append(function)
    node = helper.make_node("Endless", ["logits", "steps", "yes"], ["output"], domain="mine")
    model.graph.node.append(node)


def step() -> onnx.GraphProto:
    inputs = [
        helper.make_tensor_value_info("count", TensorProto.INT64, []),
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("value", TensorProto.FLOAT, None),
    ]
    outputs = [
        helper.make_tensor_value_info("go_on_again", TensorProto.BOOL, []),
        helper.make_tensor_value_info("result", TensorProto.FLOAT, None),
    ]
    nodes = [
        helper.make_node("Identity", ["go_on"], ["go_on_again"]),
        helper.make_node("Identity", ["value"], ["result"]),
    ]
    return helper.make_graph(nodes, "step", inputs, outputs)


def identity_graph(inputs: list[Any], output: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("Identity", ["logits"], [output])], "body", inputs, [result])


def with_control_flow(file: Path, add: Any) -> Path:
    """Writes a classifier of 5 classes with an operator between its logits and its output."""
    model = onnx.load(str(write_onnx(file)))
    (last,) = (node for node in model.graph.node if "output" in node.output)
    last.output[:] = ["logits"]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2**62), "steps"))
    model.opset_import.extend([helper.make_opsetid("mine", 1), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    add(model)
    file.write_bytes(model.SerializeToString())
    return file


CONTROL_FLOW = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    "SequenceMap": sequence_map,
    "GreedySearch": generator,
    "Relu": in_list,
}


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_operator_that_contains_a_graph_is_rejected(name: str, tmp_path: Path) -> None:
    file = with_control_flow(tmp_path / "model.onnx", CONTROL_FLOW[name])
    with pytest.raises(UserError, match=f"the operator '{name}' contains a graph; control flow is not supp"):
        check_onnx(file)


def predict(file: Path, image: Path) -> None:
    Predictor(file, device="cpu").predict([image.read_bytes()])


def infer(file: Path, image: Path) -> None:
    assert infer_cli.infer(["--model", str(file), str(image)]) == 0


def classify(file: Path, image: Path) -> None:
    Classifier(file, device="cpu").predict(image)


def build_index(file: Path, image: Path) -> None:
    index = file.with_name("images.index")
    assert index_cli.main(["build", str(index), str(image), "--model", str(file)]) == 0


def convert(file: Path, image: Path) -> None:
    assert export_cli.export(["--model", str(file), "--output", str(image.parent / "out")]) == 0


def put(file: Path, _: Path) -> None:
    """Loads the model while a server runs."""
    folder = file.parent / "models" / "strange"
    folder.mkdir(parents=True)
    file.rename(folder / "inference.onnx")
    described = {"Global": {}, "PreProcess": {"transform_ops": []}, "PostProcess": {"Topk": {"topk": 1}}}
    write_config(folder / "inference.yml", described)  # as of PaddleClas
    with TimedPool(1, "model") as worker:
        served = ServedModels({}, worker, BatchingOptions(1, 0.0, 1), LoadableModels(folder.parent))
        with pytest.raises(RequestError) as caught:
            asyncio.run(served.load(folder.name))
    raise UserError(str(caught.value))


@pytest.mark.parametrize("way", [predict, infer, classify, build_index, convert, put])
@pytest.mark.parametrize("add", [loop, loop_in_function])
def test_endless_loop_is_not_run(
    way: Any, add: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = with_control_flow(tmp_path / "model.onnx", add)
    image = write_image(tmp_path / "images" / "a" / "0.png", 0)
    with pytest.raises((UserError, AssertionError)) as caught:
        way(file, image)
    message = f"{caught.value}{capfd.readouterr().err}"
    assert re.search(r"the operator 'Loop' contains a graph; control flow is not supported", message), message


def test_trusted_model_may_contain_control_flow(tmp_path: Path) -> None:
    file = with_control_flow(tmp_path / "model.onnx", branch)
    image = write_image(tmp_path / "image.png", 0)
    source = find_source(file, ["Global.device=cpu"], trust=True)
    (prediction,) = Predictor(source).predict([image.read_bytes()])
    assert isinstance(prediction, Classification)
    assert len(prediction.scores) == 5


def nested_functions(file: Path, levels: int, calls: int = 2) -> Path:
    """Writes a classifier with ``calls ** levels`` nodes after functions are replaced by their nodes."""

    def add(model: onnx.ModelProto) -> None:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        for level in range(levels):
            tensors = ["x", *(f"t{number}" for number in range(1, calls)), "y"]
            name, domain = ("Relu", "") if level == 0 else (f"F{level - 1}", "mine")
            nodes = [
                helper.make_node(name, [source], [target], domain=domain)
                for source, target in itertools.pairwise(tensors)
            ]
            model.functions.append(helper.make_function("mine", f"F{level}", ["x"], ["y"], nodes, opsets))
        model.graph.node.append(helper.make_node(f"F{levels - 1}", ["logits"], ["output"], domain="mine"))

    return with_control_flow(file, add)


def test_functions_are_counted_before_they_are_replaced_by_their_nodes(tmp_path: Path) -> None:
    check_onnx(nested_functions(tmp_path / "small.onnx", 4))
    for levels, calls in ((64, 2), (4, 30), (2_000, 2)):
        with pytest.raises(UserError, match="expected at most 50,000 nodes, found more in nested functions"):
            check_onnx(nested_functions(tmp_path / "large.onnx", levels, calls))


def test_function_that_calls_itself_is_damaged(tmp_path: Path) -> None:
    file = nested_functions(tmp_path / "model.onnx", 3)
    model = onnx.load(str(file))
    model.functions[0].node[0].op_type = "F2"
    model.functions[0].node[0].domain = "mine"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"damaged: the function 'F\d' calls itself"):
        check_onnx(file)


@pytest.mark.parametrize("content", [b"\x0f", b"\x3a\xff", b"PK\3\4", b"\x3a\x03" * 1000])
def test_other_content_is_an_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "inference.onnx"
    file.write_bytes(content)
    with pytest.raises(UserError, match="not an exported network"):
        check_onnx(file)


def test_predictor_checks_the_file(exported: Path) -> None:
    Predictor(exported, device="cpu")
    file = exported / "inference.onnx"
    model = onnx.load(file)
    make_external(weight(model), "inference.onnx")
    file.write_bytes(model.SerializeToString())
    forget_files(exported)
    with pytest.raises(UserError, match="weights in other files are not supported"):
        Predictor(exported, device="cpu")
