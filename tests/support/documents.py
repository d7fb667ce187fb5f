"""Finds the commands in README, CONTRIBUTING and docs, and what they need according to the text."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
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
    "mlflow|source|cd|cp|mkdir|export|awk"
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
    r"|object storage|uv|a release|PyTorch)\b",
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
            brackets = re.match(r"\s*\([^)]*\)", prose[match.end(1) + 1 :])
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


# Files whose comments show commands.
COMMENTED = sorted(
    path
    for pattern in ("configs/*.yaml", "examples/*.yaml", "examples/*.py", "tools/*.py", "Dockerfile")
    for path in ROOT.glob(pattern)
)
# Why a command in `--help` or in a comment is not run. `tests/test_docs.py` parses those of `--help`.
NEEDS = {
    r"-c configs/ResNet50\.yaml": "ImageNet",
    r"--gpus[= ]|--cudnn-search|TF32": "a GPU",
    r"/hdd/": "these folders",
    r"^docker ": "Docker",
    r"PP-LCNet_x1_0_infer": "a folder that PaddleClas exported",
    r"dataset fashion-mnist": "the files of Fashion-MNIST",
    r"outputs_of_my_program": "the outputs of another program",
    r"openvino": "OpenVINO, which tests do not install",
    r"benchmark train -c configs/ResNet50_photos": "a GPU",
    r"(?:audit|head)_study\.py": "many trainings; the report in docs/own-data.md has the results",
}
_OUTSIDE = re.compile(r"models fetch")  # needs a network


def help_examples() -> list[Example]:
    """Returns the examples of ``--help``, those of one command together."""
    from parsed_commands import NAMES, resolve

    from ppcls.cli.command import Command, CommandGroup

    found = []
    for name in NAMES:
        command = resolve(name)
        if isinstance(command, CommandGroup):
            parts = [command.examples, *(each.options.examples for each in command.commands.values())]
        elif isinstance(command, Command):
            parts = [command.options.examples]
        else:  # launch has one text
            parts = [re.findall(r"^  (ppcls launch .*)", sys.modules[command.__module__]._HELP, re.MULTILINE)]
        if name == "index":  # each command needs the index of the first
            parts = [[*dict.fromkeys(each for part in parts[1:] for each in part)]]
        for number, lines in enumerate(parts):
            found.append(_sorted_out(Example(Path(f"help of {name}"), number), lines))
    return found


def comment_examples() -> list[Example]:
    """Returns the commands in comments of `COMMENTED` files, those of one file together."""
    found = [_sorted_out(Example(path, 1), _commands_in(_comments(path))) for path in COMMENTED]
    return [example for example in found if example.commands or example.marked]


def _comments(path: Path) -> str:
    text = read(path)
    return (ast.get_docstring(ast.parse(text), clean=False) or "") if path.suffix == ".py" else text


def _commands_in(text: str) -> Iterator[str]:
    """Yields the commands in comments and docstrings: indented lines, and quoted commands with arguments."""
    for line in text.splitlines():
        comment = re.match(r"#(?: [^:]*:)? +(.*)|    (.*)", line)
        command = re.split(r"  +", (comment[1] or comment[2]).strip())[0] if comment else ""
        if re.match(COMMAND, command):
            yield command
        for quoted in re.findall(r"``([^`]+)``", line):
            if re.match(SPAN, quoted):
                yield quoted


def _sorted_out(example: Example, commands: Iterable[str]) -> Example:
    for command in commands:
        needed = any(re.search(pattern, command) for pattern in NEEDS)
        (example.marked if needed else example.commands).append(command)
        example.network |= not needed and bool(_OUTSIDE.search(command))
    return example
