"""Writes the table of the operators that exported programs of Paddle may contain.

    python .ci/program_operators.py FOLDER

The folder contains programs that versions of Paddle exported, ``*.json`` and ``*.pdmodel``: the networks of
all families, of ppcls and of PaddleClas, and functions that users' networks may call.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ppcls.deploy.models.programs.legacy import ATTRIBUTES, REMOVED, ProgramDesc, slot_names
from ppcls.deploy.models.programs.pir import PARAMETER, attribute_kind, operator_name

TABLE = Path(__file__).parents[1] / "ppcls/deploy/models/programs/operators.yaml"
HEADER = """\
# Operators that exported programs of Paddle may contain, written by .ci/program_operators.py: those of the
# networks of all families, exported by ppcls and by PaddleClas, and further ones that only compute or move
# numbers. None contains other blocks, accesses files or the network, or runs Python.
#
# pir: operators of inference.json (Paddle 3), with their numbers of operands and results, and attributes
# legacy: operators of inference.pdmodel (Paddle 2.6), with their inputs and outputs, and attributes
#
# Attributes whose kind ends in a question mark are optional.
"""
# Their indexes are data, which Paddle does not check on all devices, or their text is a small program.
REJECTED = {
    *("1.take_along_axis", "take_along_axis", "1.embedding", "lookup_table_v2"),
    *("1.einsum", "einsum"),
}
# Operators that a build of Paddle 2.6 without CUDA cannot export.
GPU_ONLY = [
    (
        "fused_gemm_epilogue",
        "Bias X Y -> Out",
        {"activation": "text", "trans_x": "bool", "trans_y": "bool"},
    )
]
ANY = ("0.combine", "0.split")  # operators of any numbers of operands and results
Example = tuple[str, str, dict[str, str]]  # name, form, and kinds of attributes
"""Use of an operator in a program."""


def pir_examples(data: bytes) -> Iterator[Example]:
    """Yields the uses of operators in ``inference.json``."""
    (region,) = json.loads(data)["program"]["regions"]
    (block,) = region["blocks"]
    for operator in block["ops"]:
        if operator["#"] != PARAMETER:
            name = operator_name(operator["#"])
            form = "any" if name in ANY else f"{len(operator['I'])} -> {len(operator['O'])}"
            yield (
                name,
                form,
                {
                    item["N"]: attribute_kind(item["AT"])
                    for item in operator["A"]
                    if item["N"] != "struct_name"
                },
            )


def legacy_examples(data: bytes) -> Iterator[Example]:
    """Yields the uses of operators in ``inference.pdmodel``."""
    (block,) = ProgramDesc.FromString(data).blocks
    for operator in block.ops:
        attributes = {item.name: ATTRIBUTES[item.type] for item in operator.attrs if item.name not in REMOVED}
        yield operator.type, slot_names(operator), attributes


def summarize(examples: Iterable[Example]) -> dict[str, dict[str, Any]]:
    """Returns for each operator its forms, and the kinds of its attributes."""
    forms = defaultdict(set)
    kinds = defaultdict(lambda: defaultdict(set))
    counts = defaultdict(lambda: defaultdict(int))
    for name, form, attributes in examples:
        forms[name].add(form)
        counts[name][None] += 1
        for attribute, kind in attributes.items():
            kinds[name][attribute].add(kind)
            counts[name][attribute] += 1
    table = {}
    for name in sorted(forms.keys() - REJECTED):
        table[name] = {"forms": sorted(forms[name])}
        for attribute, found in sorted(kinds[name].items()):
            optional = "?" if counts[name][attribute] < counts[name][None] else ""
            table[name].setdefault("attributes", {})[attribute] = "|".join(sorted(found)) + optional
    return table


def main() -> None:
    """Writes the table."""
    files = sorted(Path(sys.argv[1]).rglob("*"))
    pir = (example for file in files if file.suffix == ".json" for example in pir_examples(file.read_bytes()))
    legacy = (
        example
        for file in files
        if file.suffix == ".pdmodel"
        for example in legacy_examples(file.read_bytes())
    )
    lines = [HEADER]
    for part, examples in (("pir", pir), ("legacy", [*legacy, *GPU_ONLY])):
        lines.append(f"{part}:\n")
        for name, entry in summarize(examples).items():
            lines.append(f"  {name}:\n    forms: {json.dumps(entry['forms'])}\n")
            if "attributes" in entry:
                pairs = ", ".join(f"{key}: {kind}" for key, kind in entry["attributes"].items())
                lines.append(f"    attributes: {{{pairs}}}\n")
    TABLE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
