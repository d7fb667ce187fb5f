"""No command of the documents is ignored: `test_doc_commands` runs it, or the text says why not.

The lines of a shell block are commands, and other text is in blocks of another language. Code with options in
a sentence is a command, unless it only names one.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from documents import (
    COMMAND,
    COMMENTED,
    DOCUMENTS,
    NAME,
    OTHER_LANGUAGES,
    RUNNERS,
    SHELL,
    all_examples,
    blocks,
    commands_in,
    comments,
    is_command,
    logical_lines,
    prose,
    spans,
)


@pytest.mark.parametrize("document", [*DOCUMENTS, *RUNNERS], ids=lambda path: path.parent.name + path.name)
def test_each_line_of_a_shell_block_is_a_command(document: Path) -> None:
    """Other lines would be neither run nor marked; a command in another block would be ignored."""
    problems = []
    for block in blocks(document):
        place = f"{document.name}:{block.line}"
        lines = [line for line in logical_lines(block.text) if line and not line.startswith("#")]
        if block.language in SHELL:
            if not block.text.startswith("#!"):  # a script is one command
                wrong = [line for line in lines if not re.match(COMMAND, line)]
                problems += [
                    f"{place}: not a command of PROGRAMS; use ```text or ```yaml: {line}" for line in wrong
                ]
        elif block.language not in OTHER_LANGUAGES:
            problems.append(f"{place}: expected one of {OTHER_LANGUAGES}, found {block.language!r}")
        elif block.language != "python":
            hidden = [line for line in lines if re.match(COMMAND, line)]
            problems += [f"{place}: a command in a block of {block.language}: {line}" for line in hidden]
    assert not problems, "\n".join(problems)


OPTIONS = re.compile(r"(?:\w+=\S+ )*[a-z.][\w./-]*(?: \S+)* --?[a-z]")
# Parts of commands in tables, whose beginning the text above the table gives.
PARTS = re.compile(r"configs/\S+\.yaml -o \S+|taskset -c 0")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_code_with_options_is_a_command(document: Path) -> None:
    ignored = [
        f"{document.name}:{line}: neither run nor marked: {span}"
        for line, span, _ in spans(document)
        if OPTIONS.match(span)
        if not (is_command(span) or NAME.fullmatch(span) or PARTS.fullmatch(span))
    ]
    assert not ignored, "\n".join(ignored)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_sentences_show_commands_as_code(document: Path) -> None:
    """So that they are found."""
    text = re.sub(r"`[^`]+`|\]\([^)]*\)", "", prose(document))
    programs = r"(?:ppcls|python3?|pip|curl|docker|kubectl)"
    assert re.findall(rf"(?<![\w./-]){programs} \S+[^\n.]*? --?[a-z].*|python3? \S+\.py.*", text) == []


@pytest.mark.parametrize("path", COMMENTED, ids=lambda path: path.name)
def test_commands_in_comments_are_found(path: Path) -> None:
    found = "\n".join(commands_in(comments(path)))
    started = re.compile(r"(?<![\w./`-])(?:ppcls|python|docker|kubectl|nginx|pip|curl) \S+.*? --?[a-z]")
    ignored = [line for line in comments(path) if (match := started.search(line)) and match[0] not in found]
    assert not ignored, "\n".join(ignored)


def test_commands_are_complete() -> None:
    """Bash can parse them: no command is a part of a longer one, such as the first line of a loop."""
    for example in all_examples():
        for command in [*example.commands, *example.marked]:
            parsed = subprocess.run(
                ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
            )
            assert parsed.returncode == 0, f"{example.name}: {parsed.stderr}"


# What only works with certain hardware, programs or rights, or changes the machine.
SPECIAL = re.compile(
    r"--gpus\b|DEVICE=gpu|paddlepaddle-gpu|\[gpu\b|requirements(?:-gpu)?\.txt|--cudnn-search"
    r"|\bTF32\b|\bO[12]\b(?!-bfloat16)|--device[= ](?:gpu|cuda)|\.device=(?:gpu|cuda)|tensorrt|nvidia-smi"
    r"|\b(?:apt-get|docker|gpg|kubectl|nginx|sbatch|scontrol|srun|ssh|sudo) \S"
)


def test_commands_with_special_needs_are_marked() -> None:
    """So that no test runs them by accident, for example on a machine with GPUs."""
    problems = [
        f"{example.name}: the text does not say what the command needs: {command}"
        for example in all_examples()
        for command in example.commands
        if SPECIAL.search(command) and not command.startswith("python - <<")
    ]
    assert not problems, "\n".join(problems)
