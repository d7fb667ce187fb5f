"""Finds the commands in README, CONTRIBUTING and docs, and what they need according to the text."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from paths import ROOT

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
WRITTEN = [path for path in DOCUMENTS if path.name != "config.md"]  # that one is generated
# The commands of these documents use results of earlier blocks.
IN_ORDER = {"deploy.md", "fixres.md", "from-paddleclas.md", "own-data.md", "serve.md", "tutorial.md"}

FENCED = r"^ *```[\s\S]*?^ *```$"
BLOCK = rf"{FENCED}|(?:^ {{4}}.*\n)+"
SHELL = ("", "bash")  # languages of blocks whose lines are commands; indented blocks have no language
OTHER_LANGUAGES = ("json", "python", "text", "toml", "yaml")
# Programs of commands. A line of a shell block that starts with another word is an error. Those of the last
# row occur only in sentences and comments.
PROGRAMS = (
    "apt-get|awk|cd|cp|curl|docker|export|find|git|gpg|head|kubectl|make|mkdir|openssl|pip|ppcls|python3?|sbatch"
    "|scontrol|sha256sum|source|srun|ssh|tensorboard|wget"
    "|benchmark_app|cmake|etcd|hostname|java|javac|mlflow|nginx|node|npm|uv|visualdl|wandb|wrk"
)
# What may precede a program: a bracket, variables, and programs that start another one.
PREFIX = r"[({]? ?(?:\w+=\S+ )*(?:(?:taskset -c \S+|nohup|nice|sudo|time|timeout \S+|env(?: \w+=\S+)+) )*"
SCRIPT = r"(?:\.venv/bin|build)/\w+|(?:[\w.-]+/)*[\w-]+\.(?:py|sh)(?= )|\./\S+"
COMMAND = rf"{PREFIX}(?:(?:{PROGRAMS})(?= )|{SCRIPT}) \S"
# In a sentence, a program, a command of a group, a script or a target of make is a name. With an argument, it
# is a command. The last line has commands and options of other programs.
NAME = re.compile(
    r"ppcls (?:(?:benchmark|dataset|index) )?(?:[a-z-]+|COMMAND)|(?:python )?\S+\.py|python -m [\w.]+"
    r"|(?:python )?benchmarks/run\.py [a-z]+|make [\w-]+(?: [A-Z]+=\S+)*"
    r"|cp -\w+|gpg --verify|git verify-tag|hostname -I|wandb (?:login|sync)|tensorboard --logdir"
)
# What the text says of a command that no test runs. There is no other reason.
MARK = re.compile(
    r"\bneeds (a GPU|(?:two |four )?GPUs|(?:two|several) machines|Docker|Slurm|nginx"
    r"|root|a Kubernetes cluster|object storage|uv|a release|PyTorch|PaddleClas|a clone of trainer"
    r"|the programs of a bundle)\b",
    re.IGNORECASE,
)
NETWORK = re.compile(r"\bneeds a network\b", re.IGNORECASE)  # slow tests run these where there is one


@dataclass
class Example:
    """Commands of a document that run in one folder, one after the other."""

    document: Path
    line: int
    commands: list[str] = field(default_factory=list)  # to run
    marked: dict[str, str] = field(default_factory=dict)  # not to run, because they need this
    network: bool = False  # whether one of the commands to run needs a network

    @property
    def name(self) -> str:
        return f"{self.document.name}:{self.line}"


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """An indented or fenced block.

    Attributes:
        place: File and line.
        language: Language of the fence; empty for indented blocks.
        text: Lines without the fence and the common indentation.
    """

    document: Path
    line: int
    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    """Returns all indented and fenced blocks."""
    text = read(document)
    found = []
    for match in re.finditer(BLOCK, text, re.MULTILINE):
        inner = dedent(match[0])
        language = ""
        if inner.startswith("```"):
            language, _, inner = inner[3:].removesuffix("```").partition("\n")
        found.append(Block(document, text.count("\n", 0, match.start()) + 1, language.strip(), inner))
    return found


def examples(document: Path) -> list[Example]:
    """Returns the document's commands, block by block; each command within a sentence is a block."""
    found = [_block(block) for block in blocks(document)]
    for line, command, after in spans(document):
        if is_command(command):
            example = Example(document, line)
            brackets = re.match(r"\s*\([^)]*\)", after)
            _add(example, command, brackets[0] if brackets else "")
            found.append(example)
    found = [example for example in found if example.commands or example.marked]
    if document.name in IN_ORDER:
        whole = Example(document, 1)
        for example in sorted(found, key=lambda example: example.line):
            whole.commands += example.commands
            whole.marked |= example.marked
            whole.network |= example.network
        return [whole]
    return found


def spans(document: Path) -> Iterator[tuple[int, str, str]]:
    """Yields line and text of the code within sentences and tables, and the text after it."""
    text = prose(document)
    for match in re.finditer(r"`([^`]+)`", text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[1].split()), text[match.end() :]


def prose(document: Path) -> str:
    """Returns the document with empty lines instead of its blocks."""
    return re.sub(BLOCK, lambda match: "\n" * match[0].count("\n"), read(document), flags=re.MULTILINE)


def is_command(span: str) -> bool:
    """Returns whether code within a sentence is a command, not a part of one or a name."""
    return bool(re.match(COMMAND, span)) and not NAME.fullmatch(span)


def _block(block: Block) -> Example:
    example = Example(block.document, block.line)
    # `test_documented_example` runs the code of data.md.
    if block.language == "python" and block.document.name != "data.md":
        example.commands.append(f"python - <<'END'\n{block.text}END")
    if block.language in SHELL:
        mark = ""  # comments on lines of their own
        for line in _commands_of(block):
            if line.startswith("#") and not line.startswith("#!"):
                mark += line
            else:
                command, _, comment = line.partition("  #") if not line.startswith("#!") else (line, "", line)
                _add(example, command.strip(), mark + comment)
    return example


def _commands_of(block: Block) -> list[str]:
    """Returns the commands and comments of a shell block. A script is one command."""
    if block.text.startswith("#!"):
        return [block.text]
    return [line for line in logical_lines(block.text) if line]


def _add(example: Example, command: str, text: str) -> None:
    """Adds a command to those to run or, if the text beside it gives a reason, to those that no test runs."""
    text = " ".join(text.split())  # also a reason that continues in the next line
    if mark := MARK.search(text):
        example.marked[command] = mark[1]
    else:
        example.commands.append(command)
        example.network |= bool(NETWORK.search(text))


def logical_lines(block: str) -> Iterator[str]:
    """Yields the lines of a block; one that ends with a backslash or an operator continues in the next."""
    joined = re.sub(r" *\\\n *", " ", block)
    joined = re.sub(r"(\|\||&&) *\n *", r"\1 ", joined)
    yield from (line.strip() for line in joined.splitlines())


# Files whose comments show commands. Of `MODULES`, only indented lines are commands, because their sentences
# name options.
_COMMENTED = (
    "configs/*.yaml examples/*.yaml examples/*.py examples/*.conf deploy/**/*.yaml tools/*.py ppcls/*.yaml"
    " ppcls/train.py ppcls/static/*.py Dockerfile"
)
COMMENTED = sorted(path for pattern in _COMMENTED.split() for path in ROOT.glob(pattern))
MODULES = sorted(
    path
    for pattern in ("ppcls/**/*.py", "benchmarks/**/*.py", ".ci/*.py")
    for path in ROOT.glob(pattern)
    if path not in COMMENTED and "programs" not in path.parts
)
# The commands for the programs of bundles, which run in the folder of a bundle.
RUNNERS = sorted((ROOT / "ppcls" / "deploy" / "bundle" / "programs").glob("*/README.md"))
# Why a command in `--help` or in a comment is not run. `tests/test_docs.py` parses those of `--help`.
NEEDS = {
    r"--gpus[= ]|--cudnn-search|TF32": "a GPU",
    r"^docker ": "Docker",
    r"^kubectl ": "a Kubernetes cluster",
    r"^nginx ": "nginx",
    r"PP-LCNet_x1_0_infer": "a folder that PaddleClas exported",
    r"PADDLECLAS": "PaddleClas",
    r"dataset fashion-mnist": "the files of Fashion-MNIST",
    r"outputs_of_my_program": "the outputs of another program",
    r"openvino": "OpenVINO, which tests do not install",
    r"benchmark train -c configs/ResNet50_photos": "a GPU",
    r"(?:audit|head)_study\.py": "many trainings; the report in docs/own-data.md has the results",
    r"bundle_runners\.py": "the programs of a bundle",
    r"program_operators\.py": "programs that two versions of Paddle exported",
}
_OUTSIDE = re.compile(r"models fetch")  # needs a network


def all_examples() -> list[Example]:
    """Returns the commands of the documents, of ``--help`` and of comments."""
    return [
        *(example for document in DOCUMENTS for example in examples(document)),
        *help_examples(),
        *comment_examples(),
    ]


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
    """Returns the commands in comments of `COMMENTED` and `MODULES`, those of one file together."""
    found = [_sorted_out(Example(path, 1), commands_in(comments(path))) for path in COMMENTED]
    found += [_sorted_out(Example(path, 1), _indented_commands(comments(path))) for path in MODULES]
    return [example for example in found if example.commands or example.marked]


def comments(path: Path) -> list[str]:
    """Returns the lines of a module's docstring, or the comments of another file without ``#``."""
    text = read(path)
    if path.suffix == ".py":
        # To parse whole modules would take two seconds of each process of the tests.
        docstring = re.match(r'(?:#.*\n)*(r?""".*?""")', text, re.DOTALL)
        return ast.literal_eval(docstring[1]).splitlines() if docstring else []
    return re.findall(r"^ *#(.*)", text, re.MULTILINE)


def commands_in(lines: list[str]) -> Iterator[str]:
    """Yields the commands in comments: indented lines, texts after a colon, and quoted commands."""
    yield from _indented_commands(lines)
    for line in lines:
        after_colon = re.match(r" *\S[^:`]*: (.*)", line)
        if after_colon and re.match(COMMAND, after_colon[1]):
            yield _without_comment(after_colon[1])
        for quoted in re.findall(r"(?<!`)`{1,2}([^`]+)`|\(((?:ppcls|python) [^()]+)\)", line):
            if is_command("".join(quoted)):
                yield "".join(quoted)


def _indented_commands(lines: list[str]) -> Iterator[str]:
    """Yields the lines with an indentation of at least two spaces that are commands."""
    for line in logical_lines("\n".join(line for line in lines if line.startswith("  "))):
        if re.match(COMMAND, line):
            yield _without_comment(line)


def _without_comment(line: str) -> str:
    return re.split(r"  +", line)[0]


def _sorted_out(example: Example, commands: Iterable[str]) -> Example:
    for command in commands:
        needed = next((reason for pattern, reason in NEEDS.items() if re.search(pattern, command)), "")
        if needed:
            example.marked[command] = needed
        else:
            example.commands.append(command)
            example.network |= bool(_OUTSIDE.search(command))
    return example
