"""Programs of Paddle 2.6 and 3 that do more than compute, or are damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from small_classifier import forget_files

from ppcls.deploy.models.programs.legacy import ProgramDesc, TensorDesc

FLOAT = 5
_CLASSES = 3


def operators(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the operators of ``inference.json``."""
    found: list[dict[str, Any]] = tree["program"]["regions"][0]["blocks"][0]["ops"]
    return found


def change_pir(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes ``inference.json`` in place."""
    tree = json.loads(file.read_bytes())
    change(tree)
    file.write_text(json.dumps(tree))
    forget_files(file.parent)


def pir_operator(name: str, **texts: str) -> dict[str, Any]:
    """Returns an operator without operands and results, with attributes of text."""
    attributes = [{"AT": {"#": "0.a_str", "D": text}, "N": key} for key, text in texts.items()]
    return {"#": name, "A": attributes, "I": [], "O": [], "OA": []}


def add_operator(operator: Any, where: Any, position: int | None = None) -> Any:
    """Adds an operator to a block of ``ProgramDesc``, and returns it."""
    added = where.ops.add(type=operator)
    if position is not None:
        moved = [type(added).FromString(item.SerializeToString()) for item in where.ops]
        moved.insert(position, moved.pop())
        del where.ops[:]
        where.ops.extend(moved)
    return where.ops[-1 if position is None else position]


def connect(operator: Any, inputs: dict[str, str], outputs: dict[str, str]) -> Any:
    """Sets the variables of an operator, and returns it."""
    for slots, names in ((operator.inputs, inputs), (operator.outputs, outputs)):
        for parameter, argument in names.items():
            slots.add(parameter=parameter, arguments=[argument])
    return operator


def legacy_program() -> Any:
    """Returns a program that maps images [B, 3, 32, 32] to the scores of three classes."""
    program = ProgramDesc()
    program.version.version = 0
    block = program.blocks.add(idx=0, parent_idx=-1)
    for name, kind in (("feed", 9), ("fetch", 10)):
        block.vars.add(name=name, persistable=True).type.type = kind
    shapes = {
        "x": [-1, 3, 32, 32],
        "w": [_CLASSES, _CLASSES],
        "mean": [-1, 3],
        "logits": [-1, _CLASSES],
        "scores": [-1, _CLASSES],
    }
    for name, shape in shapes.items():
        variable = block.vars.add(name=name, persistable=name == "w")
        variable.type.type = 7
        variable.type.lod_tensor.tensor.data_type = FLOAT
        variable.type.lod_tensor.tensor.dims.extend(shape)
    feed = connect(block.ops.add(type="feed"), {"X": "feed"}, {"Out": "x"})
    feed.attrs.add(name="col", type=0, i=0)
    mean = connect(block.ops.add(type="reduce_mean"), {"X": "x"}, {"Out": "mean"})
    mean.attrs.add(name="dim", type=3, ints=[2, 3])
    mean.attrs.add(name="keep_dim", type=6, b=False)
    mean.attrs.add(name="reduce_all", type=6, b=False)
    product = connect(block.ops.add(type="matmul_v2"), {"X": "mean", "Y": "w"}, {"Out": "logits"})
    product.attrs.add(name="trans_x", type=6, b=False)
    product.attrs.add(name="trans_y", type=6, b=False)
    softmax = connect(block.ops.add(type="softmax"), {"X": "logits"}, {"Out": "scores"})
    softmax.attrs.add(name="axis", type=0, i=-1)
    fetch = connect(block.ops.add(type="fetch"), {"X": "scores"}, {"Out": "fetch"})
    fetch.attrs.add(name="col", type=0, i=0)
    return program


def save_operator(program: Any, target: Path) -> None:
    """Adds an operator that writes a file when the program runs."""
    saved = connect(add_operator("save", program.blocks[0], 4), {"X": "scores"}, {})
    saved.attrs.add(name="file_path", type=2, s=str(target))
    saved.attrs.add(name="overwrite", type=6, b=True)


def parameters(*arrays: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Returns the content of a file of parameters."""
    content = b""
    for array in arrays:
        description = TensorDesc(data_type=FLOAT, dims=array.shape).SerializeToString()
        content += struct.pack("<IQIi", 0, 0, 0, len(description)) + description + array.tobytes()
    return content


def write_legacy_export(folder: Path, exported: Path, program: Any) -> Path:
    """Writes an exported model in the format of Paddle 2.6.

    Args:
        folder: New folder.
        exported: Exported classifier of images [3, 32, 32] and three classes, for ``inference.yml``.
        program: The program.
    """
    folder.mkdir()
    tree = yaml.safe_load((exported / "inference.yml").read_text(encoding="utf-8"))
    tree["Export"].pop("files", None)
    (folder / "inference.yml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    (folder / "inference.pdmodel").write_bytes(program.SerializePartialToString())
    (folder / "inference.pdiparams").write_bytes(parameters(np.eye(_CLASSES, dtype=np.float32)))
    return folder
