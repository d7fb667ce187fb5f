"""ONNX files that refer to other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from small_classifier import export_model, forget_files

from ppcls.deploy.models.programs.onnx_file import check_onnx
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError

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


def in_branch(model: onnx.ModelProto) -> Any:
    node = model.graph.node.add(op_type="If", output=["branch"])
    node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
    return node.attribute[0].g.initializer.add(name="inner")


def in_function(model: onnx.ModelProto) -> Any:
    node = model.functions.add(name="f", domain="d").node.add(op_type="Constant", output=["y"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    return node.attribute[0].t


def sparse(model: onnx.ModelProto) -> Any:
    return model.graph.sparse_initializer.add().values


@pytest.mark.parametrize("location", ["other.bin", "../other.bin", "/etc/passwd"])
@pytest.mark.parametrize("find", [weight, constant, in_branch, in_function, sparse])
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
