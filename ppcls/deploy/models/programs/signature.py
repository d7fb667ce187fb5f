"""Reads the input and the output of an exported program of Paddle. Does not import Paddle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ppcls.deploy.models.programs.legacy import ProgramDesc, read_legacy
from ppcls.deploy.models.programs.parts import ProgramError
from ppcls.deploy.models.programs.pir import operator_name, read_pir
from ppcls.errors import UserError
from ppcls.files import read_regular

_RGB = 3  # channels


@dataclass(frozen=True)
class Signature:
    """Input and output of a program.

    Attributes:
        name: Name of the input.
        shape: Shape of the input; -1 for any length.
        width: Number of values per image in the output; -1 if it is unknown.
        activation: Last operator of the program, such as ``softmax``.
    """

    name: str
    shape: tuple[int, ...]
    width: int
    activation: str

    @property
    def layout(self) -> Literal["NCHW", "NHWC"]:
        """Layout of the input of a network for RGB images."""
        return "NHWC" if self.shape[1] != _RGB and self.shape[3] == _RGB else "NCHW"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input; -1 for any length."""
        height, width = self.shape[1:3] if self.layout == "NHWC" else self.shape[2:]
        return height, width


def read_signature(program: Path, *, trust: bool = False) -> Signature:
    """Returns the input and the output of a program.

    Args:
        program: File of the program, ``inference.json`` or ``inference.pdmodel``, or an ``.onnx`` file.
        trust: Whether an ``.onnx`` file may refer to other files and contain control flow.

    Raises:
        UserError: The file cannot be read, or is not a network with one input and one output.
    """
    if program.suffix == ".onnx":
        from ppcls.deploy.models.programs.onnx_signature import read_onnx_signature

        return read_onnx_signature(program, trust=trust)
    try:
        content = read_regular(program)
        if program.suffix == ".json":
            return _read_pir(content)
        return _read_legacy(content)
    except OSError as error:
        raise UserError(f"{program}: cannot be read: {error.strerror}") from None
    except ProgramError as error:
        raise UserError(f"{program}: not an exported network: {error}; export the model again") from None


def _read_legacy(content: bytes) -> Signature:
    copy, _ = read_legacy(content)
    program = ProgramDesc()
    program.ParseFromString(copy)
    (block,) = program.blocks
    shapes = {item.name: tuple(item.type.lod_tensor.tensor.dims) for item in block.vars}
    feed = _only([item for item in block.ops if item.type == "feed"], "input")
    fetch = _only([item for item in block.ops if item.type == "fetch"], "output")
    (name,) = [name for slot in feed.outputs for name in slot.arguments] or [""]
    (output,) = [name for slot in fetch.inputs for name in slot.arguments] or [""]
    writers = [item.type for item in block.ops if any(output in slot.arguments for slot in item.outputs)]
    # jit.save of some versions ends in an operator that copies the output.
    while writers and writers[-1] in ("scale", "assign"):
        source = next(item for item in block.ops if any(output in slot.arguments for slot in item.outputs))
        output_before = [name for slot in source.inputs if slot.parameter == "X" for name in slot.arguments]
        if len(output_before) != 1 or output_before[0] == output:
            break
        (output,) = output_before
        writers = [item.type for item in block.ops if any(output in slot.arguments for slot in item.outputs)]
    return _signature(name, shapes.get(name, ()), shapes.get(output, ()), writers[-1] if writers else "")


def _read_pir(content: bytes) -> Signature:
    copy, _ = read_pir(content)
    (region,) = json.loads(copy)["program"]["regions"]
    (block,) = region["blocks"]
    operators = [(operator_name(item["#"]), item) for item in block["ops"] if isinstance(item["O"], list)]
    data = _only([item for name, item in operators if name == "1.data"], "input")
    fetch = _only([item for name, item in operators if name == "1.fetch"], "output")
    (name,) = [item["AT"]["D"] for item in data["A"] if item["N"] == "name"] or [""]
    results = {result["%"]: (kind, item, result["TT"]) for kind, item in operators for result in item["O"]}
    kind, item, type_of = results[fetch["I"][0]["%"]]
    while kind in ("1.scale", "1.assign") and item["I"] and item["I"][0]["%"] in results:
        kind, item, type_of = results[item["I"][0]["%"]]
    return _signature(name, data["O"][0]["TT"]["D"][1], type_of["D"][1], kind.partition(".")[2])


def _signature(name: str, shape: Sequence[int], output: Sequence[int], activation: str) -> Signature:
    if len(shape) != 4 or len(output) != 2:
        raise ProgramError(
            f"expected an input [N, C, H, W] and an output [N, K], found {list(shape)} and {list(output)}"
        )
    return Signature(name, tuple(shape), output[1], activation)


def _only(items: list[Any], what: str) -> Any:
    if len(items) != 1:
        raise ProgramError(f"expected one {what}, found {len(items)}")
    return items[0]
