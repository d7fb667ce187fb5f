"""Finds the commands in README, CONTRIBUTING and docs, and what they need according to the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paths import ROOT

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
WRITTEN = [path for path in DOCUMENTS if path.name != "config.md"]  # that one is generated
# The commands of these documents use results of earlier blocks.
IN_ORDER = {"deploy.md", "fixres.md", "from-paddleclas.md", "own-data.md", "serve.md", "tutorial.md"}

FENCED = r"^```[\s\S]*?^```$"
BLOCK = rf"(?:^ {{4}}.*\n)+|{FENCED}"
PROGRAMS = (
    "ppcls|python3?|make|pip|curl|wget|openssl|docker|find|git|ssh|s?run|sbatch|scontrol|tensorboard|visualdl|wandb|"
    "mlflow|source|cd|cp|mkdir|export"
)
COMMAND = rf"(?:[A-Z_]+=\S+ )?(?:{PROGRAMS}) \S"
# `ppcls train` and `python tools/train.py` in a sentence are names; with an argument they are commands.
_TOOL = (
    r"ppcls (?:(?:dataset|benchmark) [a-z]+|(?!dataset |benchmark )[a-z]+)|python tools/\w+\.py|tools/\w+\.py"
    r"|python benchmarks/run\.py [a-z]+"
)
SPAN = (
    rf"(?:[A-Z_]+=\S+ )?(?:taskset -c \S+ )?"
    rf"(?:{_TOOL}|python -[mc] \S+|pip \S+|docker|curl|source|tensorboard) (?!…)\S"
)
# What the text says of a command that no test runs. There is no other reason.
MARK = re.compile(
    r"\bneeds (?:a GPU|ImageNet|(?:two |four )?GPUs|these folders|(?:two|several) machines|Docker|Slurm"
    r"|object storage|uv|a release)\b",
    re.IGNORECASE,
)
NETWORK = re.compile(r"\bneeds a network\b", re.IGNORECASE)  # slow tests run these where there is one


@dataclass
class Example:
    """Commands of a document that run in one folder, one after the other."""

    document: Path
    line: int
    commands: list[str] = field(default_factory=list)  # to run
    marked: list[str] = field(default_factory=list)  # which need something that is missing here
    network: bool = False  # whether one of the commands to run needs a network

    @property
    def name(self) -> str:
        return f"{self.document.name}:{self.line}"


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def examples(document: Path) -> list[Example]:
    """Returns the document's commands, block by block; each command within a sentence is a block."""
    text = read(document)
    found = [_block(document, text, match) for match in re.finditer(BLOCK, text, re.MULTILINE)]
    prose = re.sub(BLOCK, lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE)
    for match in re.finditer(r"`([^`]+)`([^`]*)", prose):
        command = " ".join(match[1].split())
        if re.match(SPAN, command):
            example = Example(document, prose.count("\n", 0, match.start()) + 1)
            brackets = re.match(r"\s*\([^)]*\)", match[2])
            mark = brackets[0] if brackets else ""
            example.network = bool(NETWORK.search(mark))
            (example.marked if MARK.search(mark) else example.commands).append(command)
            found.append(example)
    found = [example for example in found if example.commands or example.marked]
    if document.name in IN_ORDER:
        whole = Example(document, 1)
        for example in sorted(found, key=lambda example: example.line):
            whole.commands += example.commands
            whole.marked += example.marked
            whole.network |= example.network
        return [whole]
    return found


def _block(document: Path, text: str, match: re.Match[str]) -> Example:
    example = Example(document, text.count("\n", 0, match.start()) + 1)
    language = match[0][3:].partition("\n")[0] if match[0].startswith("```") else ""
    if language == "python" and document.name == "python.md":
        example.commands.append(match[0].replace("```python", "python - <<'END'").replace("```", "END"))
    if language not in ("", "bash"):
        return example
    mark = ""  # comments on lines of their own
    for line in logical_lines(match[0]):
        command, _, comment = line.partition("  #")
        if line.startswith("#"):
            mark += line
        elif re.match(COMMAND, command):
            is_marked = MARK.search(mark + comment)
            (example.marked if is_marked else example.commands).append(command.strip())
            example.network |= bool(NETWORK.search(mark + comment)) and not is_marked
    return example


def logical_lines(block: str) -> Iterator[str]:
    """Yields the lines of a block; one that ends with a backslash continues in the next."""
    yield from (line.strip() for line in re.sub(r" *\\\n *", " ", block).splitlines())
