"""Reads ``inference.pdmodel``, the programs of Paddle 2.6. Does not import Paddle.

The file contains the Protobuf message ``ProgramDesc`` of Paddle's framework.proto. Fields that networks do
not need are not defined here, so the copy for Paddle does not contain them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ppcls.data.records.messages import ProtobufError, create_messages
from ppcls.deploy.models.programs.numbers import check_divisor, check_numbers
from ppcls.deploy.models.programs.parts import (
    MAX_RANK,
    ProgramError,
    StoredTensor,
    check_constant,
    check_geometry,
    check_kind,
    check_name,
    check_text,
    check_values,
    find_operator,
)
from ppcls.deploy.models.programs.sizes import INT32, INT64, Sizes

# Enumerations are read as numbers, because Protobuf would drop numbers that it does not know.
_MESSAGES = {
    "Version": [("version", 1, "int64")],
    "OpVersion": [("version", 1, "int32")],
    "OpVersionPair": [("op_name", 1, "string"), ("op_version", 2, "OpVersion")],
    "OpVersionMap": [("pair", 1, "OpVersionPair*")],
    "Scalar": [("type", 1, "int32"), ("b", 2, "bool"), ("i", 3, "int64"), ("r", 4, "double")],
    "Attr": [
        ("name", 1, "string"),
        ("type", 2, "int32"),
        ("i", 3, "int32"),
        ("f", 4, "float"),
        ("s", 5, "string"),
        ("ints", 6, "int32*"),
        ("floats", 7, "float*"),
        ("strings", 8, "string*"),
        ("b", 10, "bool"),
        ("bools", 11, "bool*"),
        ("l", 13, "int64"),
        ("longs", 15, "int64*"),
        ("float64s", 16, "double*"),
        ("float64", 19, "double"),
        ("scalar", 20, "Scalar"),
        ("scalars", 21, "Scalar*"),
    ],
    "Slot": [("parameter", 1, "string"), ("arguments", 2, "string*")],
    "OpDesc": [
        ("inputs", 1, "Slot*"),
        ("outputs", 2, "Slot*"),
        ("type", 3, "string"),
        ("attrs", 4, "Attr*"),
        ("is_target", 5, "bool"),
    ],
    "TensorDesc": [("data_type", 1, "int32"), ("dims", 2, "int64*")],
    "LoDTensorDesc": [("tensor", 1, "TensorDesc"), ("lod_level", 2, "int32")],
    "VarType": [("type", 1, "int32"), ("lod_tensor", 3, "LoDTensorDesc")],
    "VarDesc": [
        ("name", 1, "string"),
        ("type", 2, "VarType"),
        ("persistable", 3, "bool"),
        ("need_check_feed", 4, "bool"),
        ("is_parameter", 5, "bool"),
        ("stop_gradient", 6, "bool"),
    ],
    "BlockDesc": [
        ("idx", 1, "int32"),
        ("parent_idx", 2, "int32"),
        ("vars", 3, "VarDesc*"),
        ("ops", 4, "OpDesc*"),
        ("forward_block_idx", 5, "int32"),
    ],
    "ProgramDesc": [
        ("blocks", 1, "BlockDesc*"),
        ("version", 4, "Version"),
        ("op_version_map", 5, "OpVersionMap"),
    ],
}
_CLASSES = create_messages("ppcls.program", _MESSAGES, "proto2")
TensorDesc = _CLASSES["TensorDesc"]
ProgramDesc = _CLASSES["ProgramDesc"]
_TENSOR = 7  # `VarType.Type`: LOD_TENSOR
# `VarType.Type` of variables that pass the input and the output of the program, and of unused results
_OTHERS = {9: "FEED_MINIBATCH", 10: "FETCH_LIST", 17: "RAW"}
# Data types by their numbers in `VarType.Type`
DTYPES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
    22: "bfloat16",
}
# Kinds of attributes by their numbers in `AttrType`. The others refer to blocks and variables, which only
# control flow needs.
ATTRIBUTES = {
    0: "i32",
    1: "f32",
    2: "text",
    3: "i32s",
    4: "f32s",
    5: "texts",
    6: "bool",
    7: "bools",
    9: "i64",
    11: "i64s",
    12: "f64s",
    15: "f64",
    16: "scalar",
    17: "scalars",
}
# Attributes for messages of Paddle, such as the lines of Python that created the operator, and for training.
REMOVED = frozenset(
    {"op_callstack", "op_namescope", "op_device", "op_role", "op_role_var", "with_quant_attr", "struct_name"}
)


_DIVISIONS = frozenset({"elementwise_floordiv", "elementwise_mod"})
# Operators of `Sizes`, by their names in ``inference.pdmodel``
_OF_SIZES = {
    "cast": "cast",
    "concat": "concat",
    "elementwise_add": "add",
    "elementwise_floordiv": "floor_divide",
    "elementwise_max": "maximum",
    "elementwise_min": "minimum",
    "elementwise_mul": "multiply",
    "gather": "gather",
    "reshape2": "reshape",
    "shape": "shape",
    "slice": "slice",
    "squeeze2": "squeeze",
    "stack": "stack",
    "unsqueeze2": "unsqueeze",
}
_INT32, _INT64 = 2, 3  # numbers of data types in the program


def read_legacy(data: bytes) -> tuple[bytes, list[StoredTensor]]:
    """Returns a copy of a program that contains only what was checked, and its parameters.

    Args:
        data: Content of ``inference.pdmodel``.

    Raises:
        ProgramError: The program is damaged, or contains an operator that is not supported.
    """
    program = ProgramDesc()
    try:
        program.ParseFromString(data)
    except ProtobufError as error:
        raise ProgramError(f"damaged: {error}") from None
    program.DiscardUnknownFields()
    _check_texts(program)
    if len(program.blocks) != 1:
        raise ProgramError(f"expected one block, found {len(program.blocks)}; control flow is not supported")
    (block,) = program.blocks
    names = [variable.name for variable in block.vars]
    _check_unique(names, "variables")
    parameters = [parameter for variable in block.vars if (parameter := _read_variable(variable)) is not None]
    # A declared variable without a value would end the process.
    defined = {variable.name for variable in block.vars if variable.persistable}
    for operator in block.ops:
        _check(operator, set(names), defined)
        defined.update(argument for slot in operator.outputs for argument in slot.arguments)
    _check_divisors(block.ops)
    return program.SerializeToString(deterministic=True), parameters


def _check_texts(message: Any) -> None:
    """Raises `ProgramError` if a text is not UTF-8. Such texts are bytes, which no function here expects."""
    for descriptor, value in message.ListFields():
        single = isinstance(value, (str, bytes)) or not hasattr(value, "__len__")
        for item in (value,) if single else value:
            if descriptor.message_type is not None:
                _check_texts(item)
            elif isinstance(item, bytes) and descriptor.type == descriptor.TYPE_STRING:
                raise ProgramError(f"damaged: {item[:40]!r} is not UTF-8")


def _read_variable(variable: Any) -> StoredTensor | None:
    """Checks a variable, and returns its tensor if its values are in the file of parameters."""
    check_name(variable.name)
    kind = variable.type.type
    if kind in _OTHERS:
        return None
    tensor = variable.type.lod_tensor.tensor
    if kind != _TENSOR or tensor.data_type not in DTYPES or len(tensor.dims) > MAX_RANK:
        raise ProgramError(
            f"variable {variable.name[:64]!r}: expected a tensor, found the type {kind}, the data type "
            f"{tensor.data_type} and {len(tensor.dims)} axes"
        )
    if not variable.persistable:
        return None
    return StoredTensor(variable.name, DTYPES[tensor.data_type], tuple(tensor.dims))


def _check(operator: Any, variables: Collection[str], defined: Collection[str]) -> None:
    """Checks an operator, and removes attributes that only messages need.

    Args:
        operator: Message ``OpDesc``.
        variables: Names of all variables.
        defined: Names of the variables that have a value before the operator.
    """
    name = operator.type
    known = find_operator("legacy", name)
    slots = [*operator.inputs, *operator.outputs]
    if slot_names(operator) not in known.forms:
        raise ProgramError(
            f"operator {name!r}: damaged: its inputs and outputs are {slot_names(operator)[:99]}"
        )
    for argument in (argument for slot in slots for argument in slot.arguments):
        if argument not in variables:
            raise ProgramError(f"operator {name!r}: the variable {argument[:64]!r} is not defined")
    for argument in (argument for slot in operator.inputs for argument in slot.arguments):
        if argument not in defined:
            raise ProgramError(f"operator {name!r}: the variable {argument[:64]!r} has no value before it")
    kept = [attribute for attribute in operator.attrs if attribute.name not in REMOVED]
    _check_unique([attribute.name for attribute in kept], f"attributes of the operator {name!r}")
    for attribute in kept:
        _check_attribute(name, attribute, known.attributes)
    numbers = {attribute.name: _numbers(attribute) for attribute in kept}
    check_numbers(name, numbers)
    _check_outputs(operator, numbers)
    if name == "assign_value":
        _check_values(kept)
    del operator.attrs[:]
    operator.attrs.extend(kept)


def slot_names(operator: Any) -> str:
    """Returns the names of the inputs and outputs of an operator that have variables, as in the table."""
    names = [
        sorted(slot.parameter for slot in slots if slot.arguments)
        for slots in (operator.inputs, operator.outputs)
    ]
    return " -> ".join(" ".join(part) for part in names)


def _check_attribute(operator: str, attribute: Any, known: Mapping[str, str]) -> None:
    """Checks an attribute. Older versions of Paddle write more attributes, which have defaults, and fewer."""
    where = f"operator {operator!r}: the attribute {attribute.name[:64]!r}"
    kind = ATTRIBUTES.get(attribute.type)
    if kind is None:
        raise ProgramError(f"{where} refers to a block or to a variable; control flow is not supported")
    texts = [text for text in (attribute.s, *attribute.strings) if text]
    if attribute.name in known:
        check_kind(operator, attribute.name, kind, known[attribute.name])
    elif texts:
        raise ProgramError(f"{where} is not supported: {texts[0][:64]!r}")
    for text in texts:
        check_text(operator, attribute.name, text)
    check_geometry(operator, attribute.name, [*attribute.ints, *attribute.longs])
    if attribute.name == "shape":
        check_constant(operator, [*attribute.ints, *attribute.longs])


def _numbers(attribute: Any) -> list[float]:
    """Returns the numbers of an attribute."""
    single = {"i32": attribute.i, "i64": attribute.l, "f32": attribute.f, "f64": attribute.float64}
    kind = ATTRIBUTES[attribute.type]
    if kind in single:
        return [single[kind]]
    return [*attribute.ints, *attribute.longs, *attribute.floats, *attribute.float64s]


def _check_outputs(operator: Any, numbers: Mapping[str, Sequence[float]]) -> None:
    """Checks that an operator with a list of outputs has as many as it will write."""
    count = max((len(slot.arguments) for slot in operator.outputs), default=0)
    if operator.type == "unbind":  # as many as its axis is long, which is known only when the program runs
        return
    expected: float = min(count, 1)
    if operator.type in ("split", "unstack"):
        (expected,) = numbers.get("num", (0,))
        expected = expected or len(numbers.get("sections", ()))
    elif operator.type == "meshgrid":
        expected = max(len(slot.arguments) for slot in operator.inputs)
    if expected != count:
        raise ProgramError(f"operator {operator.type!r}: damaged: expected {expected} outputs, found {count}")


def _check_divisors(operators: Sequence[Any]) -> None:
    """Checks that the divisors of divisions that can end the process are constants or sizes.

    The data type of a variable is known only when the program runs, so this holds for floats, too.
    """
    divisors: set[str] = set()
    changeable: set[str] = set()
    constants: dict[str, list[float]] = {}
    for operator in operators:
        for slot in operator.inputs:
            is_divisor = operator.type in _DIVISIONS and slot.parameter == "Y"
            (divisors if is_divisor else changeable).update(slot.arguments)
        for output in (argument for slot in operator.outputs for argument in slot.arguments):
            if output in constants:
                changeable.add(output)
            constants[output] = _constant(operator)
    sizes = _find_sizes(operators)
    for divisor in sorted(divisors):
        if divisor in sizes and not constants[divisor]:
            continue
        is_constant = divisor in constants and divisor not in changeable
        check_divisor("elementwise_floordiv", "int32", constants[divisor] if is_constant else None)


def _find_sizes(operators: Sequence[Any]) -> Sizes:
    """Returns the integers that follow from sizes of images, in variables that only one operator sets."""
    outputs = [_arguments(operator.outputs) for operator in operators]
    times = Counter(name for names in outputs for name in names)
    sizes = Sizes()
    for operator, names in zip(operators, outputs, strict=True):
        if not names or times[names[0]] > 1:
            continue
        limit = _integer_limit(operator)
        if operator.type == "feed":
            sizes.add_image(names[0])
        elif operator.type in ("assign_value", "fill_constant"):
            sizes.add_constants(names[0], _constant(operator), limit or 0)
        elif operator.type in _OF_SIZES:
            sizes.add_result(_OF_SIZES[operator.type], _data(operator), names[0], limit)
    return sizes


def _arguments(slots: Sequence[Any]) -> list[str]:
    return [argument for slot in slots for argument in slot.arguments]


def _data(operator: Any) -> list[str]:
    """Returns the variables that an operator computes with, without axes and positions."""
    slots = {slot.parameter: list(slot.arguments) for slot in operator.inputs}
    return [name for parameter in ("Input", "X", "Y") for name in slots.get(parameter, ())]


def _integer_limit(operator: Any) -> int | None:
    """Returns the largest value of the data type that an operator names; None if it names none."""
    named = {attribute.name: attribute.i for attribute in operator.attrs}
    dtype = named.get("out_dtype" if operator.type == "cast" else "dtype")
    return None if dtype is None else {_INT32: INT32, _INT64: INT64}.get(dtype, 0)


def _constant(operator: Any) -> list[float]:
    """Returns the values of an operator that creates a constant; none if it is another operator."""
    attributes = {attribute.name: attribute for attribute in operator.attrs}
    if operator.type == "assign_value":
        return [
            value
            for name, attribute in attributes.items()
            if name.endswith("_values")
            for value in _numbers(attribute)
        ]
    if operator.type != "fill_constant":
        return []
    text = attributes["str_value"].s if "str_value" in attributes else ""
    try:
        return [float(text)] if text else _numbers(attributes["value"])
    except (KeyError, ValueError):
        return []


def _check_values(attributes: list[Any]) -> None:
    """Checks that ``assign_value`` has as many values as its tensor has elements."""
    sides = [side for attribute in attributes if attribute.name == "shape" for side in attribute.ints]
    lists = [
        len(getattr(attribute, kind))
        for attribute in attributes
        if attribute.name != "shape"
        for kind in ("ints", "longs", "floats", "float64s", "bools", "scalars")
    ]
    check_values("assign_value", sides, *(length for length in lists if length))


def _check_unique(names: list[str], what: str) -> None:
    if len(set(names)) != len(names):
        raise ProgramError(f"damaged: two {what} have the same name")
