"""Programs of Paddle 3 as data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import nn
from programs import operators, pir_operator
from unset_weights import unset_weights

from ppcls.arch.build import build_model
from ppcls.deploy.models.programs.legacy import read_legacy
from ppcls.deploy.models.programs.parts import ProgramError, StoredTensor
from ppcls.deploy.models.programs.pir import read_pir
from ppcls.zoo import ZOO

pytestmark = pytest.mark.hostile


def export_program(folder: Path, network: nn.Layer, shape: list[int | None]) -> Path:
    """Returns the file with the program of a network, whose format is that of the installed Paddle."""
    network.eval()
    static = paddle.jit.to_static(
        network, input_spec=[paddle.static.InputSpec(shape, "float32", "x")], full_graph=True
    )
    paddle.jit.save(static, str(folder / "inference"))
    (file,) = (folder / name for name in ("inference.json", "inference.pdmodel") if (folder / name).exists())
    return file


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    network = nn.Sequential(nn.Conv2D(3, 4, 3, padding=1), nn.BatchNorm2D(4), nn.ReLU(), nn.MaxPool2D(2))
    file = export_program(tmp_path_factory.mktemp("program"), network, [None, 3, 8, 8])
    if file.suffix != ".json":
        pytest.skip("Paddle 2.6 does not write programs of Paddle 3")
    tree: dict[str, Any] = json.loads(file.read_bytes())
    return tree


def check(tree: Any) -> tuple[Any, list[StoredTensor]]:
    content, parameters = read_pir(json.dumps(tree).encode())
    return json.loads(content), parameters


def test_copy_lacks_only_the_names_of_layers(program: dict[str, Any]) -> None:
    copied, parameters = check(program)
    for operator in operators(program):
        if operator["#"] != "p":
            operator["A"] = [item for item in operator["A"] if item["N"] != "struct_name"]
    assert copied == program
    shapes = {parameter.name.rpartition(".")[2]: parameter.shape for parameter in parameters}
    assert shapes["w_0"] == (4,) or shapes["w_0"] == (4, 3, 3, 3)
    assert {parameter.dtype for parameter in parameters} == {"float32"}


FORBIDDEN = (
    *("1.save", "1.save_combine", "1.load", "1.load_combine", "1.print", "1.py_func", "1.run_program"),
    *("1.read_file", "1.decode_jpeg", "1.assert", "1.while", "1.if", "1.select_input", "1.memcpy"),
    *("1.c_allreduce_sum", "1.send_v2", "1.recv_v2", "1.nop", "2.if", "2.while", "2.yield", "3.my_operator"),
    *("cf.yield", "pd_op.save", "custom_op.my_operator", "0.module", "0.set_parameter", "0.parameter"),
    *("1.scatter", "1.put_along_axis", "1.take_along_axis", "1.CONV2D", "1.conv2d\0", "conv2d", "", "p.p"),
)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_operator_that_is_not_in_the_table_is_rejected(name: str, program: dict[str, Any]) -> None:
    tree = copy.deepcopy(program)
    operators(tree).append(pir_operator(name))
    with pytest.raises(ProgramError) as caught:
        check(tree)
    assert str(caught.value).startswith(f"the operator {name!r} is not one of those that networks consist of")


def find(tree: dict[str, Any], name: str) -> dict[str, Any]:
    return next(operator for operator in operators(tree) if operator["#"] == name)


def add_regions(tree: dict[str, Any]) -> None:
    find(tree, "1.relu")["regions"] = copy.deepcopy(tree["program"]["regions"])


def add_block(tree: dict[str, Any]) -> None:
    region = tree["program"]["regions"][0]
    region["blocks"].append(copy.deepcopy(region["blocks"][0]))


def add_region(tree: dict[str, Any]) -> None:
    tree["program"]["regions"] *= 2


def set_attribute(operator: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        attributes = find(tree, operator)["A"]
        attributes[:] = [item for item in attributes if item["N"] != name]
        attributes.append({"AT": value, "N": name})

    return change


def remove_attributes(tree: dict[str, Any]) -> None:
    find(tree, "1.fetch")["A"].pop()


def use_later_value(tree: dict[str, Any]) -> None:
    find(tree, "1.conv2d")["I"][0]["%"] = find(tree, "1.fetch")["O"][0]["%"]


def add_operand(tree: dict[str, Any]) -> None:
    find(tree, "1.conv2d")["I"].append({"%": 0})


def define_twice(tree: dict[str, Any]) -> None:
    find(tree, "1.relu")["O"][0]["%"] = 1


def set_type(tree: dict[str, Any]) -> None:
    find(tree, "1.relu")["O"][0]["TT"] = {"#": "0.t_selected_rows", "D": []}


def text(value: str) -> dict[str, str]:
    return {"#": "0.a_str", "D": value}


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "regions": (add_regions, "expected #, A, I, O, OA, found"),
    "block": (add_block, "expected one block, found 2; control flow is not supported"),
    "region": (add_region, "expected one region, found 2; control flow is not supported"),
    "path": (
        set_attribute("1.conv2d", "data_format", text("/etc/passwd")),
        "expected a word in the attribute",
    ),
    "address": (set_attribute("1.data", "name", text("http://a")), "expected a word in the attribute"),
    "unknown attribute": (
        set_attribute("1.relu", "file_path", text("a")),
        "the attribute 'file_path' of the kind 'text' is not supported",
    ),
    "other kind": (
        set_attribute("1.conv2d", "groups", {"#": "0.a_f32", "D": 1.0}),
        "the attribute 'groups' of the kind 'f32' is not supported",
    ),
    "pointer": (
        set_attribute("1.conv2d", "groups", {"#": "0.a_pointer", "D": 1}),
        "attributes of the kind '0.a_pointer' are not supported",
    ),
    "number": (set_attribute("1.conv2d", "groups", {"#": "0.a_i32", "D": "1"}), "expected a number, found 1"),
    "huge number": (set_attribute("1.conv2d", "groups", {"#": "0.a_i32", "D": 1 << 64}), "expected a number"),
    "device of a plugin": (
        set_attribute("1.data", "place", {"#": "1.a_place", "D": [9, 0, "plugin"]}),
        "expected a device",
    ),
    "huge constant": (
        set_attribute("1.data", "shape", {"#": "1.a_intarray", "D": [1 << 20, 1 << 20]}),
        "expected a tensor of at most 268,435,456 elements",
    ),
    "missing attribute": (remove_attributes, "the attribute 'col' is missing"),
    "later value": (use_later_value, "is not defined before it"),
    "operands": (add_operand, "damaged: 3 operands and 1 result"),
    "value": (define_twice, "is used twice"),
    "type": (set_type, "expected a tensor, found the type 0.t_selected_rows"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_program_is_rejected(name: str, program: dict[str, Any]) -> None:
    change, message = CHANGES[name]
    tree = copy.deepcopy(program)
    change(tree)
    with pytest.raises(ProgramError) as caught:
        check(tree)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged: Expecting value"),
        (b"[" * 100_000, "damaged: "),
        (b'{"a": 1, "a": 2}', "the same key twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"1" * 5000, "damaged: "),
        (b'"\xff"', "damaged: "),
        (b'{"base_code": {}, "program": {}}', "damaged: expected magic, trainable, version"),
        (b"null", "damaged: expected base_code, program, found None"),
    ],
)
def test_other_content_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_pir(content)
    assert message in str(caught.value)


# One small architecture per kind of layer; all architectures are tested with `make test-models`.
VARIED = ("ResNet18", "MobileNetV3_small_x0_35", "LeViT_128S", "SwinTransformer_tiny_patch4_window7_224")
FAMILIES = {
    family: min(
        (entry for entry in ZOO.values() if entry.family == family), key=lambda entry: entry.parameters
    )
    for family in dict.fromkeys(entry.family for entry in ZOO.values())
}


def check_export(name: str, folder: Path) -> None:
    entry = ZOO[name]
    with unset_weights():
        network = nn.Sequential(build_model(name, 10, "NCHW", entry.channels), nn.Softmax())
    file = export_program(folder, network, [None, *entry.input_shape])
    read = read_pir if file.suffix == ".json" else read_legacy
    read(file.read_bytes())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("Swin", "LeViT")))  # most of the time
        for name in VARIED
    ],
)
def test_exported_network_is_accepted(name: str, tmp_path: Path) -> None:
    check_export(name, tmp_path)


@pytest.mark.table
@pytest.mark.parametrize("family", FAMILIES)
def test_exported_network_of_each_family_is_accepted(family: str, tmp_path: Path) -> None:
    check_export(FAMILIES[family].name, tmp_path)


@pytest.mark.parametrize("name", ["paddings", "strides", "dilations"])
@pytest.mark.parametrize("number", [1_048_576, -1_048_576, 1025])
def test_geometry_that_needs_terabytes_is_rejected(program: dict[str, Any], name: str, number: int) -> None:
    tree = copy.deepcopy(program)
    (convolution,) = (operator for operator in operators(tree) if operator["#"] == "1.conv2d")
    (attribute,) = (item for item in convolution["A"] if item["N"] == name)
    attribute["AT"]["D"][0]["D"] = number
    with pytest.raises(ProgramError, match=f"attribute '{name}': expected numbers of at most 1,024, found"):
        check(tree)


def test_number_that_is_not_finite_is_rejected(program: dict[str, Any]) -> None:
    tree = copy.deepcopy(program)
    (norm,) = (operator for operator in operators(tree) if operator["#"].startswith("1.batch_norm"))
    (epsilon,) = (item for item in norm["A"] if item["N"] == "epsilon")
    epsilon["AT"]["D"] = 123456.75
    with pytest.raises(ProgramError, match="a number is not finite"):
        read_pir(json.dumps(tree).replace("123456.75", "1e999").encode())
