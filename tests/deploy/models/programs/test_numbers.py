"""Numbers in programs with which a kernel of Paddle would end the process, or write to foreign memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from programs import connect, legacy_program

from ppcls.deploy.models.programs.legacy import read_legacy
from ppcls.deploy.models.programs.parts import ProgramError
from ppcls.deploy.models.programs.pir import read_pir

pytestmark = pytest.mark.hostile

SHORT = {"float32": "f32", "int64": "i64", "int32": "i32", "int8": "i8"}
DTYPES = ("int32", "int64", "int8")
Attributes = dict[str, Any]


def tensor(dtype: str, shape: list[int]) -> dict[str, Any]:
    return {"#": "0.t_dtensor", "D": [{"#": f"0.t_{SHORT[dtype]}"}, shape, "NCHW", [], 0]}


def attribute(name: str, value: Any) -> dict[str, Any]:
    """Returns an attribute: a tuple is a kind and its value, a list contains 64-bit integers."""
    if isinstance(value, list):
        kind, content = "0.a_array", [{"#": "0.a_i64", "D": item} for item in value]
        return {"AT": {"#": kind, "D": content}, "N": name}
    kind, content = value
    if kind.endswith("s"):
        content = [{"#": f"0.a_{kind[:-1]}", "D": item} for item in content]
        return {"AT": {"#": "0.a_array", "D": content}, "N": name}
    prefix = "1.a_" if kind in ("dtype", "place", "intarray") else "0.a_"
    return {"AT": {"#": prefix + kind, "D": content}, "N": name}


class Program:
    """A program of Paddle 3 that grows by one operator after the other."""

    def __init__(self) -> None:
        self.operators: list[dict[str, Any]] = []
        self.count = 0
        shape = [-1, 4, 4, 4]
        attributes = {
            "name": ("str", "x"),
            "shape": ("intarray", shape),
            "dtype": ("dtype", "float32"),
            "place": ("place", [0, 0, ""]),
        }
        (self.image,) = self.add("1.data", attributes, [], [tensor("float32", shape)])

    def add(
        self, name: str, attributes: Attributes, operands: list[int], types: list[dict[str, Any]]
    ) -> list[int]:
        """Adds an operator, and returns the numbers of its results."""
        results = []
        for kind in types:
            self.count += 1
            results.append({"%": self.count, "TT": kind})
        self.operators.append(
            {
                "#": name,
                "A": [attribute(key, value) for key, value in attributes.items()],
                "I": [{"%": operand} for operand in operands],
                "O": results,
                "OA": [],
            }
        )
        return [result["%"] for result in results]

    def full(self, value: float, dtype: str = "int64", shape: tuple[int, ...] = (1,)) -> int:
        """Adds a tensor of one value."""
        attributes = {
            "shape": ("intarray", list(shape)),
            "value": ("f64", float(value)),
            "dtype": ("dtype", dtype),
            "place": ("place", [1, 0, ""]),
        }
        return self.add("1.full", attributes, [], [tensor(dtype, list(shape))])[0]

    def integers(self, *values: int) -> int:
        """Adds a list of integers."""
        attributes = {"value": [*values], "dtype": ("dtype", "int64"), "place": ("place", [1, 0, ""])}
        return self.add("1.full_int_array", attributes, [], [tensor("int64", [len(values)])])[0]

    def assigned(self, values: list[float], dtype: str) -> int:
        """Adds a tensor of several values, as ``paddle.to_tensor`` does."""
        attributes = {
            "shape": ("i32s", [len(values)]),
            "dtype": ("dtype", dtype),
            "values": ("f64s", values),
            "place": ("place", [1, 0, ""]),
        }
        empty = self.full(0, dtype, (len(values),))
        return self.add("1.assign_value_", attributes, [empty], [tensor(dtype, [len(values)])])[0]

    def check(self) -> None:
        """Reads the program."""
        block = {"#": "block_0", "args": [], "ops": self.operators}
        regions = [{"#": "region_0", "blocks": [block]}]
        base = {"magic": "pir", "trainable": False, "version": 1}
        read_pir(json.dumps({"base_code": base, "program": {"regions": regions}}).encode())


DIVISIONS = ("1.divide", "1.floor_divide", "1.remainder", "1.floor_divide_", "1.remainder_")
LOWEST = -(2.0**63)


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("divisor", [-1, 0, -7, 1e300, 2**31, 0.5])
def test_integer_divisor_that_ends_the_process_is_rejected(name: str, dtype: str, divisor: float) -> None:
    program = Program()
    dividend, constant = program.full(LOWEST, dtype), program.full(divisor, dtype)
    program.add(name, {}, [dividend, constant], [tensor(dtype, [1])])
    with pytest.raises(ProgramError, match="expected constant divisors from 1 to"):
        program.check()


@pytest.mark.parametrize("name", DIVISIONS)
def test_integer_divisor_that_is_computed_is_rejected(name: str) -> None:
    program = Program()
    (computed,) = program.add(
        "1.cast", {"dtype": ("dtype", "int64")}, [program.image], [tensor("int64", [-1, 4, 4, 4])]
    )
    program.add(name, {}, [program.full(1), computed], [tensor("int64", [-1, 4, 4, 4])])
    with pytest.raises(ProgramError, match=r"expected constant divisors from 1 to .*, found a tensor"):
        program.check()


@pytest.mark.parametrize("other", ["1.scale_", "1.subtract_", "1.reshape", "1.assign"])
@pytest.mark.parametrize("after", [False, True])
def test_divisor_that_another_operator_could_change_is_rejected(other: str, after: bool) -> None:
    """`reshape` gives the memory of the constant a second name."""
    program = Program()
    divisor = program.full(2)
    operands = {"1.assign": [divisor], "1.reshape": [divisor, program.integers(1)]}

    def divide() -> None:
        program.add("1.floor_divide", {}, [program.full(7), divisor], [tensor("int64", [1])])

    if not after:
        divide()
    attributes = {"bias": ("f32", -3.0), "bias_after_scale": ("bool", True)} if other == "1.scale_" else {}
    program.add(other, attributes, operands.get(other, [divisor, program.full(1)]), [tensor("int64", [1])])
    if after:
        divide()
    with pytest.raises(ProgramError, match="another operator uses its constant, and could change it"):
        program.check()


@pytest.mark.parametrize("name", DIVISIONS)
def test_usual_division_is_accepted(name: str) -> None:
    program = Program()
    program.add(name, {}, [program.full(7), program.full(2)], [tensor("int64", [1])])
    program.add(name, {}, [program.full(7), program.assigned([2, 3], "int64")], [tensor("int64", [2])])
    for divisor in (program.image, program.full(-1, "float32")):
        program.add(name, {}, [program.image, divisor], [tensor("float32", [-1, 4, 4, 4])])
    program.check()


POOL = {
    "adaptive": ("bool", True),
    "ceil_mode": ("bool", False),
    "data_format": ("str", "NCHW"),
    "exclusive": ("bool", False),
    "global_pooling": ("bool", False),
    "padding_algorithm": ("str", "EXPLICIT"),
    "paddings": ("i32s", [0, 0]),
    "pooling_type": ("str", "avg"),
    "strides": ("i32s", [1, 1]),
}
CONVOLUTION = {
    "data_format": ("str", "NCHW"),
    "dilations": ("i32s", [1, 1]),
    "groups": ("i32", 1),
    "padding_algorithm": ("str", "EXPLICIT"),
    "paddings": ("i32s", [0, 0]),
    "strides": ("i32s", [1, 1]),
}
SLICED = {"none_axes": [], "decrease_axes": [], "shape": [1], "values": ("f64s", [0.0])}
TOP = {"axis": ("i32", 1), "largest": ("bool", True), "sorted": ("bool", True)}
OUT = tensor("float32", [-1, 4])
LIST = {"#": "0.t_vec", "D": [OUT, OUT]}
# Operator, attributes, operands after the image, types of the results, and the message
NUMBERS: dict[str, tuple[str, Attributes, list[Any], list[dict[str, Any]], str]] = {
    "kernel": ("1.pool2d", POOL, [[2, 0]], [OUT], "'kernel_size': expected numbers from 1"),
    "stride of a pool": ("1.pool2d", {**POOL, "strides": ("i32s", [0, 1])}, [[2, 2]], [OUT], "'strides'"),
    "stride": ("1.conv2d", {**CONVOLUTION, "strides": ("i32s", [0, 1])}, [1.0], [OUT], "'strides'"),
    "dilation": ("1.conv2d", {**CONVOLUTION, "dilations": ("i32s", [1, -1])}, [1.0], [OUT], "'dilations'"),
    "groups": ("1.conv2d", {**CONVOLUTION, "groups": ("i32", 0)}, [1.0], [OUT], "'groups'"),
    "shuffle": (
        "1.pixel_shuffle",
        {"data_format": ("str", "NCHW"), "upscale_factor": ("i32", -1)},
        [],
        [OUT],
        "'upscale_factor'",
    ),
    "size of a copy": (
        "1.repeat_interleave",
        {"axis": ("i32", 0), "output_size": ("i64", 4), "repeats": ("i32", 400)},
        [],
        [OUT],
        "'output_size': expected numbers from -1 to -1",
    ),
    "top 0": ("1.topk", TOP, [0.0], [OUT, OUT], "'k': expected numbers from 1"),
    "axis": ("1.topk", {**TOP, "axis": ("i32", 1 << 20)}, [1.0], [OUT, OUT], "'axis'"),
    "slice lengths": (
        "1.strided_slice",
        {"axes": ("i32s", [0])},
        [[0, 0], [1], [1]],
        [OUT],
        "1 axes, 2 start",
    ),
    "slice stride": ("1.strided_slice", {"axes": ("i32s", [0])}, [[0], [1], [0]], [OUT], "a stride is 0"),
    "slice axis": ("1.strided_slice", {"axes": ("i32s", [7])}, [[0], [1], [1]], [OUT], "'axes': expected n"),
    "axis twice": (
        "1.strided_slice",
        {"axes": ("i32s", [1, 1])},
        [[0, 0], [1, 1], [1, 1]],
        [OUT],
        "an axis tw",
    ),
    "set axis": ("1.set_value", {**SLICED, "axes": [-(2**63)]}, [[0], [1], [1]], [OUT], "'axes': expected n"),
    "set values": (
        "1.set_value",
        {**SLICED, "axes": [0], "shape": [9]},
        [[0], [1], [1]],
        [OUT],
        "(1,) values",
    ),
    "sections": ("1.split", {}, [[1, 1, 2], 1.0], [LIST], "expected 3 results, found 2"),
    "parts": ("1.split_with_num", {"num": ("i32", 0)}, [1.0], [LIST], "'num': expected numbers from 1"),
    "unbound": ("1.unbind", {"axis": ("i32", 1)}, [], [LIST], "expected 4 results, found 2"),
    "expanded": ("1.expand_as", {"target_shape": [4, 4]}, [1.0], [OUT], "expected at least 4 axes, found 2"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_number_that_no_network_uses_is_rejected(name: str) -> None:
    operator, attributes, operands, types, message = NUMBERS[name]
    program = Program()
    constants = [
        program.integers(*item) if isinstance(item, list) else program.full(item) for item in operands
    ]
    program.add(operator, attributes, [program.image, *constants], types)
    with pytest.raises(ProgramError) as caught:
        program.check()
    assert message in str(caught.value)


def test_list_of_another_length_is_rejected() -> None:
    program = Program()
    (parts,) = program.add("1.split_with_num", {"num": ("i32", 2)}, [program.image, program.full(1)], [LIST])
    program.add("0.split", {}, [parts], [OUT, OUT, OUT])
    with pytest.raises(ProgramError, match="expected 2 results, found 3"):
        program.check()


def test_negative_exponent_of_integers_is_rejected() -> None:
    """Paddle's loop for such powers does not end."""
    program = Program()
    program.add("1.pow", {"y": ("f32", -1.0)}, [program.full(3)], [tensor("int64", [1])])
    with pytest.raises(ProgramError, match="expected no negative exponent"):
        program.check()


def legacy_division(name: str, divisor: float, text: str = "") -> Any:
    """Returns a program of Paddle 2.6 with a division by a constant."""
    program = legacy_program()
    block = program.blocks[0]
    for variable in ("divisor", "quotient"):
        block.vars.add(name=variable).CopyFrom(block.vars[3])
        block.vars[-1].name = variable
    constant = connect(block.ops.add(type="fill_constant"), {}, {"Out": "divisor"})
    constant.attrs.add(name="value", type=1, f=divisor)
    constant.attrs.add(name="str_value", type=2, s=text)
    constant.attrs.add(name="dtype", type=0, i=3)
    constant.attrs.add(name="shape", type=11, longs=[1])
    connect(block.ops.add(type=name), {"X": "mean", "Y": "divisor"}, {"Out": "quotient"})
    return program


@pytest.mark.parametrize("name", ["elementwise_floordiv", "elementwise_mod"])
@pytest.mark.parametrize(("divisor", "text"), [(-1, ""), (0, ""), (2, "-1"), (2, "0"), (2, "nan"), (2, "x")])
def test_integer_divisor_of_paddle_2_is_rejected(name: str, divisor: float, text: str) -> None:
    with pytest.raises(ProgramError, match="expected constant divisors from 1 to"):
        read_legacy(legacy_division(name, divisor, text).SerializeToString())


def test_divisor_of_paddle_2_that_is_written_again_is_rejected() -> None:
    program = legacy_division("elementwise_mod", 2)
    connect(program.blocks[0].ops.add(type="assign"), {"X": "mean"}, {"Out": "divisor"})
    with pytest.raises(ProgramError, match="found a tensor"):
        read_legacy(program.SerializeToString())


def test_usual_division_of_paddle_2_is_accepted() -> None:
    read_legacy(legacy_division("elementwise_mod", 2).SerializeToString())
    read_legacy(legacy_division("elementwise_floordiv", 0, "49").SerializeToString())


@pytest.mark.parametrize(
    ("name", "attributes", "outputs", "message"),
    [
        ("pool2d", {"ksize": [2, 0]}, 1, "'ksize': expected numbers from 1"),
        ("top_k_v2", {"k": [0]}, 1, "'k': expected numbers from 1"),
        ("split", {"num": [3]}, 2, "expected 3 outputs, found 2"),
        ("split", {"num": [0], "sections": [1, 1, 1]}, 2, "expected 3 outputs, found 2"),
        ("relu", {}, 2, "expected 1 outputs, found 2"),
        ("strided_slice", {"axes": [0], "starts": [0, 0], "strides": [1]}, 1, "1 axes, 2 starts, 1 strides"),
        ("slice", {"axes": [1 << 20], "starts": [0], "ends": [1]}, 1, "'axes': expected numbers"),
    ],
)
def test_number_of_paddle_2_is_rejected(
    name: str, attributes: dict[str, list[int]], outputs: int, message: str
) -> None:
    program = legacy_program()
    block = program.blocks[0]
    operator = block.ops.add(type=name)
    known = {"strided_slice": "Input", "slice": "Input"}
    operator.inputs.add(parameter=known.get(name, "X"), arguments=["x"])
    operator.outputs.add(parameter="Out", arguments=["mean", "logits"][:outputs])
    if name == "top_k_v2":
        operator.outputs.add(parameter="Indices", arguments=["logits"])
    for key, values in attributes.items():
        if key in ("k", "num"):
            operator.attrs.add(name=key, type=0, i=values[0])
        else:
            operator.attrs.add(name=key, type=3, ints=values)
    with pytest.raises(ProgramError) as caught:
        read_legacy(program.SerializeToString())
    assert message in str(caught.value)


def size_division(program: Program, operator: str = "1.add") -> int:
    """Adds a division by a number that is computed from the size of the image, and returns the divisor."""
    (sides,) = program.add("1.shape64", {}, [program.image], [tensor("int64", [4])])
    (divisor,) = program.add(operator, {}, [sides, sides], [tensor("int64", [4])])
    program.add("1.floor_divide", {}, [sides, divisor], [tensor("int64", [4])])
    return divisor


def test_division_by_a_size_is_accepted_unless_it_can_be_negative_or_changed() -> None:
    program = Program()
    size_division(program)
    program.check()
    program = Program()
    size_division(program, "1.subtract")
    with pytest.raises(ProgramError, match="expected constant divisors from 1 to"):
        program.check()
    program = Program()
    divisor = size_division(program)
    program.add("1.add_", {}, [divisor, divisor], [tensor("int64", [4])])
    with pytest.raises(ProgramError, match="works in place, could change its divisor"):
        program.check()
