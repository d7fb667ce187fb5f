"""Writes docs/paddleclas-files.md: which of PaddleClas's YAML files load, and what the others need.

    python .ci/paddleclas_files.py PADDLECLAS/ppcls/configs docs/paddleclas-files.md

PADDLECLAS is a checkout of PaddleClas. Files are only read and checked.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ppcls.config.base.errors import ConfigError
from ppcls.recipe.load import load_config

_INTRO = """# PaddleClas's files

`.ci/paddleclas_files.py` writes this table from the {total} YAML files below `ppcls/configs/` of PaddleClas
(commit {commit}).
ppcls loads {loading} of these files unchanged. Each of their keys has the same meaning as in PaddleClas, or a
warning or [from-paddleclas.md](from-paddleclas.md#what-is-different) names the difference. For the other
files, the error names what is missing. The table shows
the first problem of each of these files.

| folder | files that load | all files | files that do not load, and what is missing |
| --- | --- | --- | --- |
"""
_MISSING = (
    (r".*unknown architecture '(\w+)'.*", r"architecture `\1`"),
    (r"(?:\w+\.)*(\w+): unknown (transform|loss|metric|batch transform).*", r"\2 `\1`"),
    (r".*unknown (\S+(?: \S+)?) '(\w+)'.*", r"\1 `\2`"),
    (r"(\S+): unknown key.*", r"key `\1`"),
    (
        r".* has no trained weights; .*(-o \S+)",
        r"loads with `\1`, where FILE contains the trained weights of the teacher",
    ),
    (r"(\S+): (.*)", r"`\1`: \2"),
)


def describe(problem: str) -> str:
    """Returns what is missing, in a few words."""
    text = re.sub(r"\[\d+\]", "", problem)
    for pattern, short in _MISSING:
        if re.fullmatch(pattern, text):
            return re.sub(pattern, short, text).replace("|", "\\|")
    return text


def rank(problem: str) -> bool:
    """Sorts an unknown architecture first: other keys of the file may belong to it."""
    return "unknown architecture" not in problem


def main(source: Path, target: Path, commit: str) -> None:
    """Writes the table."""
    folders: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(source.rglob("*.yaml")):
        folder = str(path.parent.relative_to(source))
        counts[folder][1] += 1
        try:
            load_config(path)
        except ConfigError as error:
            missing = describe(sorted(error.problems, key=rank)[0])
            folders[folder][missing].append(path.stem)
        else:
            counts[folder][0] += 1
    rows = []
    for folder, (loading, total) in counts.items():
        missing = [f"{', '.join(names)}: {text}" for text, names in folders[folder].items()]
        rows.append(f"| {folder} | {loading} | {total} | {'; '.join(missing)} |")
    total, loading = (sum(count[part] for count in counts.values()) for part in (1, 0))
    intro = _INTRO.format(total=total, loading=loading, commit=commit)
    target.write_text(intro + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "unknown")
