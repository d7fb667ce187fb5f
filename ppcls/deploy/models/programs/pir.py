"""Reads ``inference.json``, the programs of Paddle 3. Does not import Paddle.

The file contains Paddle's intermediate representation (PIR). Names are abbreviated: ``1.conv2d`` is
``conv2d`` of the dialect ``pd_op``, ``0.combine`` is ``combine`` of the dialect ``builtin``, and ``p`` is a
parameter. In an operator, ``#`` is its name, ``A`` its attributes, ``I`` its operands, ``O`` its results, and
``OA`` the attributes of its results. A value has a number, ``%``, and a type, ``TT``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from ppcls.deploy.models.programs.operands import Operands
from ppcls.deploy.models.programs.parts import (
    MAX_RANK,
    ProgramError,
    StoredTensor,
    check_constant,
    check_geometry,
    check_kinds,
    check_name,
    check_text,
    check_values,
    find_operator,
)
from ppcls.errors import counted

PARAMETER = "p"
_PARAMETER_KEYS = ("#", "A", "DA", "O", "OA", "QA")
_SETTINGS = 4  # attributes of a parameter: whether it is distributed, a parameter and clipped, and its name
_INT64 = range(-(1 << 63), 1 << 63)
_NUMBERS = {"0.a_bool": "bool", "0.a_i32": "i32", "0.a_i64": "i64", "0.a_f32": "f32", "0.a_f64": "f64"}
_KINDS = _NUMBERS | {"0.a_str": "text", "1.a_dtype": "dtype", "1.a_place": "place", "1.a_intarray": "shape"}
_LAYER = "struct_name"  # names of the Python layers, which Paddle needs only for messages
_OF_RESULTS = {"stop_gradient": "bools?", "persistable": "bools?"}
_TENSOR = "0.t_dtensor"
_LIST = "0.t_vec"
_ABSENT = {"#": "NULL"}  # type of an optional result
_LAYOUTS = ("NCHW", "NHWC", "NCDHW", "NDHWC", "Undefined(AnyLayout)")
_DTYPES = {
    "0.t_bool": "bool",
    "0.t_ui8": "uint8",
    "0.t_i8": "int8",
    "0.t_i16": "int16",
    "0.t_i32": "int32",
    "0.t_i64": "int64",
    "0.t_f16": "float16",
    "0.t_bf16": "bfloat16",
    "0.t_f32": "float32",
    "0.t_f64": "float64",
}


def read_pir(data: bytes) -> tuple[bytes, list[StoredTensor]]:
    """Returns a copy of a program that contains only what was checked, and its parameters.

    Args:
        data: Content of ``inference.json``.

    Raises:
        ProgramError: The program is damaged, or contains an operator that is not supported.
    """
    try:
        tree = json.loads(data, object_pairs_hook=_unique, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"damaged: {error}") from None
    values: set[int] = set()
    constants = Operands()
    parameters = []
    for operator in _items(_find_block(tree)["ops"], "operators"):
        kind = operator.get("#") if isinstance(operator, dict) else None
        if kind == PARAMETER:
            parameters.append(_read_parameter(operator, values))
            constants.define(operator["O"]["%"], parameters[-1])
        else:
            _check(operator, operator_name(kind), values)
            _check_numbers(operator, operator_name(kind), constants)
    constants.finish()
    try:
        copy = json.dumps(tree, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except ValueError:  # for example 1e999
        raise ProgramError("damaged: a number is not finite") from None
    return copy.encode("ascii"), parameters


def operator_name(kind: Any) -> str:
    """Returns the name of an operator in the table, such as ``1.relu`` for ``1.relu_``, which works in place.

    Raises:
        ProgramError: It is not text.
    """
    if not isinstance(kind, str):
        raise ProgramError(f"damaged: expected the name of an operator, found {str(kind)[:80]}")
    return kind.removesuffix("_")


def attribute_kind(value: Any) -> str:
    """Returns the kind of an attribute, such as ``i32``, ``i32s`` for a list, or ``list`` for an empty one.

    Raises:
        ProgramError: Attributes of this kind are not supported.
    """
    _need_keys(value, ("#", "D"), "an attribute")
    kind = value["#"]
    if kind != "0.a_array":
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ProgramError(f"attributes of the kind {str(kind)[:64]!r} are not supported")
        return _KINDS[kind]
    kinds = set()
    for item in _items(value["D"], "an attribute"):
        _need_keys(item, ("#", "D"), "an attribute")
        if not isinstance(item["#"], str) or item["#"] not in _NUMBERS:
            raise ProgramError(f"lists of the kind {str(item['#'])[:64]!r} are not supported")
        kinds.add(_NUMBERS[item["#"]])
    if len(kinds) > 1:
        raise ProgramError(f"damaged: a list of {' and '.join(sorted(kinds))}")
    return f"{kinds.pop()}s" if kinds else "list"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ProgramError("damaged: an object has the same key twice")
    return keys


def _reject_constant(text: str) -> NoReturn:
    raise ProgramError(f"damaged: {text} is not JSON")


def _find_block(tree: Any) -> dict[str, Any]:
    """Returns the only block of a program. More regions and blocks would be bodies of control flow."""
    _need_keys(tree, ("base_code", "program"), "the program")
    base = tree["base_code"]
    _need_keys(base, ("magic", "trainable", "version"), "base_code")
    if base["magic"] != "pir" or type(base["version"]) is not int or type(base["trainable"]) is not bool:
        raise ProgramError(f"damaged: expected magic pir, a version and trainable, found {str(base)[:80]}")
    _check_number(base["version"], "base_code")
    _need_keys(tree["program"], ("regions",), "program")
    region = _only(tree["program"]["regions"], "region")
    _need_keys(region, ("#", "blocks"), "the region")
    block: dict[str, Any] = _only(region["blocks"], "block")
    _need_keys(block, ("#", "args", "ops"), "the block")
    if block["args"] != [] or block["#"] != "block_0" or region["#"] != "region_0":
        raise ProgramError("damaged: expected region_0 and block_0 without arguments")
    return block


def _check(operator: dict[str, Any], name: str, values: set[int]) -> None:
    """Checks an operator, and removes the name of its layer."""
    known = find_operator("pir", name)
    where = f"operator {name!r}"
    _need_keys(operator, ("#", "A", "I", "O", "OA"), where)
    operands = _items(operator["I"], where)
    results = _items(operator["O"], where)
    if not {f"{len(operands)} -> {len(results)}", "any"}.intersection(known.forms):
        raise ProgramError(
            f"{where}: damaged: {len(operands)} operands and {counted(len(results), 'result')}"
        )
    for operand in operands:
        _need_keys(operand, ("%",), where)
        number = operand["%"]
        if type(number) is not int or (number and number not in values):  # 0: an optional operand is absent
            raise ProgramError(f"{where}: the operand {str(number)[:20]} is not defined before it")
    for key in ("A", "OA"):
        for item in _items(operator[key], where):
            _need_keys(item, ("AT", "N"), f"an attribute of the {where}")
            if not isinstance(item["N"], str):
                raise ProgramError(f"{where}: damaged: the name of an attribute is {str(item['N'])[:64]}")
    operator["A"] = [item for item in operator["A"] if item["N"] != _LAYER]
    check_kinds(name, {item["N"]: attribute_kind(item["AT"]) for item in operator["A"]}, known.attributes)
    check_kinds(name, {item["N"]: attribute_kind(item["AT"]) for item in operator["OA"]}, _OF_RESULTS)
    for item in (*operator["A"], *operator["OA"]):
        _check_content(name, item["N"], item["AT"])
    if name == "1.assign_value":
        values_of = {item["N"]: item["AT"]["D"] for item in operator["A"]}
        check_values(name, [side["D"] for side in values_of["shape"]], len(values_of["values"]))
    for result in results:
        _define(result, values, where)


def _check_numbers(operator: dict[str, Any], name: str, constants: Operands) -> None:
    """Checks the numbers of an operator whose form and kinds of attributes are known."""
    numbers: dict[str, list[float]] = {}
    for item in operator["A"]:
        kind = item["AT"]["#"]
        content = item["AT"]["D"]
        if kind == "0.a_array":
            numbers[item["N"]] = [entry["D"] for entry in content]
        elif kind == "1.a_intarray":
            numbers[item["N"]] = content
        elif kind in _NUMBERS:
            numbers[item["N"]] = [content]
    if name == "1.set_value":
        check_values(name, [int(side) for side in numbers["shape"]], len(numbers["values"]))
    results = [result["%"] for result in operator["O"]]
    for result in operator["O"]:
        kind = result["TT"]["#"]
        content = result["TT"].get("D", ())
        if kind == _TENSOR:
            constants.define(result["%"], StoredTensor("", _DTYPES[content[0]["#"]], tuple(content[1])))
        elif kind == _LIST:
            constants.add_list(result["%"], len(content))
    operands = [operand["%"] for operand in operator["I"]]
    constants.check(name, operands, results, numbers, in_place=operator["#"].endswith("_"))


def _check_content(operator: str, name: str, value: dict[str, Any]) -> None:
    """Checks the value of an attribute of a known kind."""
    where = f"operator {operator!r}: attribute {name!r}"
    kind = value["#"]
    content = value["D"]
    if kind == "0.a_array":
        for item in content:
            _check_number(item["D"], where)
        check_geometry(operator, name, [item["D"] for item in content])
    elif kind == "1.a_intarray":
        for side in _items(content, where):
            _check_integer(side, where)
        check_constant(operator, content)
    elif kind in ("0.a_str", "1.a_dtype"):
        check_text(operator, name, content)
    elif kind == "1.a_place":
        # the number of a kind of device, the number of a device, and the name of a device of a plugin
        if not isinstance(content, list) or len(content) != 3 or content[2] != "":
            raise ProgramError(f"{where}: expected a device, found {str(content)[:80]}")
        for item in content[:2]:
            _check_integer(item, where)
    else:
        _check_number(content, where)


def _read_parameter(operator: dict[str, Any], values: set[int]) -> StoredTensor:
    _need_keys(operator, _PARAMETER_KEYS, "a parameter")
    settings = operator["A"]
    if not isinstance(settings, list) or len(settings) != _SETTINGS or not isinstance(settings[-1], str):
        raise ProgramError(f"damaged: expected a parameter, found {str(settings)[:80]}")
    name = settings[-1]
    check_name(name)
    where = f"parameter {name[:64]!r}"
    for number in (*settings[:-1], *_items(operator["OA"], where)):
        _check_integer(number, where)
    if operator["DA"] != [] or operator["QA"] != [] or len(operator["OA"]) != 3:
        raise ProgramError(f"{where}: damaged, or distributed over several devices")
    _define(operator["O"], values, where)
    tensor = operator["O"]["TT"]
    if tensor["#"] != _TENSOR:
        raise ProgramError(f"{where}: expected a tensor, found {tensor['#']!r}")
    return StoredTensor(name, _DTYPES[tensor["D"][0]["#"]], tuple(tensor["D"][1]))


def _define(result: Any, values: set[int], where: str) -> None:
    """Checks the type of a result, and adds its number to those that can be operands."""
    _need_keys(result, ("%", "TT"), where)
    number = result["%"]
    _check_integer(number, where)
    if number <= 0 or number in values:
        raise ProgramError(f"{where}: damaged: the number of its result, {number}, is used twice or negative")
    values.add(number)
    kind = result["TT"]
    if kind == _ABSENT:
        return
    if isinstance(kind, dict) and kind.get("#") == _LIST:
        _need_keys(kind, ("#", "D"), where)
        for item in _items(kind["D"], where):
            _check_tensor(item, where)
    else:
        _check_tensor(kind, where)


def _check_tensor(kind: Any, where: str) -> None:
    """Checks the type of a tensor: data type, shape, layout, lengths of sequences, and offset."""
    _need_keys(kind, ("#", "D"), where)
    content = kind["D"]
    if kind["#"] != _TENSOR or not isinstance(content, list) or len(content) != 5:
        raise ProgramError(f"{where}: expected a tensor, found the type {str(kind['#'])[:64]}")
    dtype, shape, layout, lengths, offset = content
    _need_keys(dtype, ("#",), where)
    if not isinstance(dtype["#"], str) or dtype["#"] not in _DTYPES:
        raise ProgramError(f"{where}: the data type {str(dtype['#'])[:64]} is not supported")
    if len(_items(shape, where)) > MAX_RANK:
        raise ProgramError(f"{where}: expected at most {MAX_RANK} axes, found {len(shape)}")
    for side in (*shape, offset):
        _check_integer(side, where)
    if layout not in _LAYOUTS or lengths != [] or offset != 0:
        raise ProgramError(f"{where}: damaged type of a tensor: {str(content)[:80]}")


def _check_number(value: Any, where: str) -> None:
    if type(value) is not float and type(value) is not bool:
        _check_integer(value, where)


def _check_integer(value: Any, where: str) -> None:
    if type(value) is not int or value not in _INT64:
        raise ProgramError(f"{where}: expected a number, found {str(value)[:40]}")


def _need_keys(value: Any, keys: Iterable[str], where: str) -> None:
    if not isinstance(value, dict) or value.keys() != set(keys):
        present = ", ".join(value) if isinstance(value, dict) else str(value)
        raise ProgramError(f"{where}: damaged: expected {', '.join(keys)}, found {present[:80]}")


def _items(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProgramError(f"{where}: damaged: expected a list, found {str(value)[:80]}")
    return value


def _only(value: Any, what: str) -> Any:
    items = _items(value, f"{what}s")
    if len(items) != 1:
        raise ProgramError(f"expected one {what}, found {len(items)}; control flow is not supported")
    return items[0]
