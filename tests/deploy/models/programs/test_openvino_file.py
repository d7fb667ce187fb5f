"""Files of OpenVINO that contain control flow, or are damaged."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ppcls.deploy.models.programs.openvino_file import check_openvino
from ppcls.errors import UserError

pytestmark = pytest.mark.hostile

LAYER = '<layer id="0" name="a" type="{}" version="opset5">{}</layer>'
NET = '<?xml version="1.0"?>\n<net name="a" version="11"><layers>{}</layers></net>'


def write(file: Path, layers: str) -> Path:
    file.write_text(NET.format(layers), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", ["If", "Loop", "TensorIterator", "loop", "LOOP"])
@pytest.mark.parametrize("body", ["", "<body><layers/></body>", "<then_body/>"])
def test_control_flow_is_rejected(kind: str, body: str, tmp_path: Path) -> None:
    file = write(tmp_path / "inference.xml", LAYER.format("ReLU", "") + LAYER.format(kind, body))
    with pytest.raises(UserError, match=f"the layer '{kind}' contains layers; control flow is not supported"):
        check_openvino(file)


def test_layers_of_an_unknown_layer_are_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "inference.xml", LAYER.format("Other", "<else_body/>"))
    with pytest.raises(UserError, match="the layer 'else_body' contains layers"):
        check_openvino(file)


def test_network_is_accepted(tmp_path: Path) -> None:
    check_openvino(write(tmp_path / "inference.xml", LAYER.format("Convolution", '<data strides="1,1"/>')))


ENTITIES = '<!DOCTYPE net [<!ENTITY a "aaaa">]>\n<net>&a;</net>'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no element found"),
        (b"PK\3\4", "not well-formed"),
        (NET.format("<layer>").encode(), "mismatched tag"),
        (NET.format("").encode("utf-16"), "codec can't decode"),
        (
            NET.format("").replace("?>", ' encoding="UTF-7"?>').encode(),
            "expected the encoding UTF-8, found 'U",
        ),
        (ENTITIES.encode(), "a document type is not supported"),
        (b"<net>" + b"<a>" * 200_000, "no element found"),
    ],
)
def test_other_content_is_an_error(content: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "inference.xml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"not an exported network: .*({reason})"):
        check_openvino(file)


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the package openvino")
def test_loop_that_openvino_writes_is_rejected(tmp_path: Path) -> None:
    import openvino
    from openvino import opset13

    value = opset13.parameter([-1, 3], np.float32)
    proceed = opset13.constant(np.array([True]))
    body = openvino.Model([opset13.relu(value), proceed], [value], "body")
    images = opset13.parameter([-1, 3], np.float32)
    loop = opset13.loop(opset13.constant(np.array(2**40)), opset13.constant(np.array([True])))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(value, images.output(0), body.outputs[0])
    network = openvino.Model([loop.get_iter_value(body.outputs[0], -1)], [images], "network")
    openvino.save_model(network, tmp_path / "inference.xml")
    with pytest.raises(UserError, match="the layer 'Loop' contains layers"):
        check_openvino(tmp_path / "inference.xml")
