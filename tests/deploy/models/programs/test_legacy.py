"""Programs of Paddle 2.6 as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from programs import connect, legacy_program

from ppcls.deploy.models.programs.legacy import ProgramDesc, read_legacy
from ppcls.deploy.models.programs.parts import ProgramError, StoredTensor

pytestmark = pytest.mark.hostile


def test_copy_lacks_only_attributes_for_messages() -> None:
    program = legacy_program()
    expected = program.SerializeToString(deterministic=True)
    for operator in program.blocks[0].ops:
        operator.attrs.add(name="op_callstack", type=5, strings=["  File /home/me/secret.py, line 1"])
    copied, parameters = read_legacy(program.SerializeToString())
    assert copied == expected
    assert parameters == [StoredTensor("w", "float32", (3, 3))]


FORBIDDEN = (
    *("save", "save_combine", "load", "load_combine", "print", "py_func", "run_program", "pylayer"),
    *("read_file", "decode_jpeg", "assert", "while", "conditional_block", "recurrent", "select_input"),
    *("read", "create_py_reader", "listen_and_serv", "send", "recv", "fetch_barrier", "prefetch"),
    *("c_allreduce_sum", "send_v2", "enqueue", "scatter", "put_along_axis", "my_operator", "Conv2D", ""),
)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_operator_that_is_not_in_the_table_is_rejected(name: str) -> None:
    program = legacy_program()
    program.blocks[0].ops.add(type=name)
    with pytest.raises(ProgramError) as caught:
        read_legacy(program.SerializeToString())
    assert str(caught.value).startswith(f"the operator {name!r} is not one of those that networks consist of")


def add_block(program: Any) -> None:
    program.blocks.add(idx=1, parent_idx=0)


def add_attribute(**fields: Any) -> Callable[[Any], None]:
    return lambda program: program.blocks[0].ops[3].attrs.add(**fields)


def repeat_attribute(program: Any) -> None:
    program.blocks[0].ops[0].attrs.add(name="col", type=0, i=7)


def use_unknown_variable(program: Any) -> None:
    program.blocks[0].ops[1].inputs[0].arguments[0] = "gone"


def set_input(program: Any) -> None:
    program.blocks[0].ops[1].inputs[0].parameter = "Y"


def set_variable(kind: int, data: int = 5) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        variable = program.blocks[0].vars[2]
        variable.type.type = kind
        variable.type.lod_tensor.tensor.data_type = data

    return change


def repeat_variable(program: Any) -> None:
    program.blocks[0].vars[2].name = "w"


def add_constant(sides: list[int], values: int) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        operator = connect(program.blocks[0].ops.add(type="assign_value"), {}, {"Out": "mean"})
        operator.attrs.add(name="shape", type=3, ints=sides)
        operator.attrs.add(name="fp32_values", type=4, floats=[0.0] * values)

    return change


def remove_operator(program: Any) -> None:
    del program.blocks[0].ops[1]


CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "block": (add_block, "expected one block, found 2; control flow is not supported"),
    "reference": (add_attribute(name="sub_block", type=8), "'sub_block' refers to a block or to a variable"),
    "variable": (add_attribute(name="axis_list", type=14), "refers to a block or to a variable"),
    "text": (
        add_attribute(name="file_path", type=2, s="a"),
        "the attribute 'file_path' is not supported: 'a'",
    ),
    "path": (
        add_attribute(name="data_format", type=2, s="/etc/passwd"),
        "the attribute 'data_format' is not supported: '/etc/passwd'",
    ),
    "texts": (add_attribute(name="epmap", type=5, strings=["", "127.0.0.1:80"]), "'epmap' is not supported"),
    "attribute": (repeat_attribute, "damaged: two attributes of the operator 'feed' have the same name"),
    "unknown variable": (use_unknown_variable, "the variable 'gone' is not defined"),
    "no value": (remove_operator, "operator 'matmul_v2': the variable 'mean' has no value before it"),
    "input": (set_input, "operator 'reduce_mean': damaged: its inputs and outputs are Y -> Out"),
    "reader": (set_variable(15), "variable 'x': expected a tensor, found the type 15"),
    "rows": (set_variable(8), "variable 'x': expected a tensor, found the type 8"),
    "complex": (set_variable(7, 23), "variable 'x': expected a tensor"),
    "variables": (repeat_variable, "damaged: two variables have the same name"),
    "huge constant": (
        add_constant([1 << 20, 1 << 20], 1),
        "expected a tensor of at most 268,435,456 elements",
    ),
    "short constant": (add_constant([3], 2), "(2,) values for the shape [3]"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_program_is_rejected(name: str) -> None:
    change, message = CHANGES[name]
    program = legacy_program()
    change(program)
    with pytest.raises(ProgramError) as caught:
        read_legacy(program.SerializeToString())
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\0", b"{}", b"\x0a\xff", bytes(100), b"\x0a\x02\x08\x00" * 2])
def test_other_content_is_rejected(content: bytes) -> None:
    with pytest.raises(ProgramError):
        read_legacy(content)


def test_unknown_fields_are_dropped() -> None:
    """A field that only another parser knows can't reach Paddle."""
    program = legacy_program()
    content = program.SerializeToString(deterministic=True)
    copied, _ = read_legacy(content + b"\xfa\x01\x03abc")
    assert copied == content
    assert ProgramDesc.FromString(copied) == program


@pytest.mark.parametrize("name", ["paddings", "strides", "dilations"])
@pytest.mark.parametrize("number", [1_048_576, -1_048_576, 1025])
def test_geometry_that_needs_terabytes_is_rejected(name: str, number: int) -> None:
    program = legacy_program()
    program.blocks[0].ops[1].attrs.add(name=name, type=3, ints=[1, number])
    with pytest.raises(ProgramError, match=f"attribute '{name}': expected numbers of at most 1,024, found"):
        read_legacy(program.SerializeToString())


def test_slot_that_is_not_utf8_is_rejected() -> None:
    content = legacy_program().SerializeToString()
    slot = legacy_program().blocks[0].ops[1].inputs[0].parameter.encode()
    assert content.count(b"\n" + bytes([len(slot)]) + slot)
    damaged = content.replace(
        b"\n" + bytes([len(slot)]) + slot, b"\n" + bytes([len(slot)]) + b"\xff" * len(slot)
    )
    with pytest.raises(ProgramError):
        read_legacy(damaged)
