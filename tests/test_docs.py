"""README, CONTRIBUTING and docs: each link leads somewhere, and what they name and call is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from documents import BLOCK, DOCUMENTS, FENCED, WRITTEN, examples, logical_lines, read
from paths import ROOT

from benchmarks.run import main as benchmarks
from ppcls.cli import benchmark as benchmark_cli
from ppcls.cli import dataset as dataset_cli
from ppcls.cli import export as export_cli
from ppcls.cli import index as index_cli
from ppcls.cli import infer as infer_cli
from ppcls.cli import models as models_cli
from ppcls.cli import serve as serve_cli
from ppcls.cli import train as cli
from ppcls.cli.command import Command, CommandGroup
from ppcls.cli.doctor import doctor
from ppcls.cli.eval import calibrate, evaluate
from ppcls.cli.launch import split_words
from ppcls.cli.results.runs import runs
from ppcls.recipe.load import load_config
from ppcls.recipe.published import published_names
from ppcls.recipe.reference import render

TOOLS: dict[str, Command[Any] | CommandGroup] = {
    "benchmark": benchmark_cli.main,
    "run": benchmarks,
    "calibrate": calibrate,
    "dataset": dataset_cli.main,
    "doctor": doctor,
    "eval": evaluate,
    "export": export_cli.export,
    "index": index_cli.main,
    "infer": infer_cli.infer,
    "models": models_cli.main,
    "runs": runs,
    "serve": serve_cli.serve,
    "train": cli.train,
    "tune": cli.tune,
    "verify": export_cli.verify,
}
EXAMPLE = "configs/quickstart.yaml"
NOT_OURS = {"utils.py"}  # what there shall not be
PLACEHOLDERS = {"CONFIG": EXAMPLE, "FILE": EXAMPLE, "mine.yaml": EXAMPLE, "KEY=VALUE": "Global.seed=1"}
of_documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
of_written = pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)


def anchors(document: Path) -> set[str]:
    """Returns the names that GitHub gives the document's headings."""
    text = re.sub(FENCED, "", read(document), flags=re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(document: Path) -> Iterator[str]:
    """Yields the lines of the blocks of code."""
    for block in re.findall(BLOCK, read(document), re.MULTILINE):
        yield from logical_lines(block)


def spans(document: Path) -> list[str]:
    """Returns the pieces of code within sentences and tables."""
    return re.findall(r"`([^`]+)`", re.sub(BLOCK, "", read(document), flags=re.MULTILINE))


_SCRIPT = r"(?:python [^|]*)?\b(?:tools/(?=\w+\.py )|benchmarks/(?=run\.py ))"
COMMAND = rf"(?:^|\| )(?:{_SCRIPT}|ppcls )(\w+)(?:\.py)? (.+)"


def calls(document: Path) -> list[tuple[str, list[str]]]:
    """Returns the tools that the document calls, each with its arguments."""
    tools = []
    for example in examples(document):
        for command in [*example.commands, *example.marked]:
            called = re.search(COMMAND, command)
            if called and called[2] != "--help":
                words = [PLACEHOLDERS.get(word, word) for word in shlex.split(called[2])]
                tool = called[1].removesuffix("_model")
                if tool == "launch":  # starts another tool
                    tool, *words = split_words(words).program
                tools.append((tool, words))
    return tools


@of_documents
def test_document_links_exist(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", read(document)):
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            target = (document.parent / path).resolve() if path else document
            assert target.exists(), f"{document.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{document.name}: {link}"


@of_written
def test_document_names_existing_files(document: Path) -> None:
    text = read(document)
    for name in re.findall(
        r"(?<![\w/.-])(?:benchmarks|configs|docs|examples|tools|tests|ppcls)/[\w./-]+\.\w+", text
    ):
        # Paths of PaddleClas's tree stand for recipes of ppcls; see `ppcls.recipe.published`.
        published = name.partition("configs/ImageNet/")[2] in published_names()
        assert name in NOT_OURS or published or (ROOT / name).exists(), f"{document.name}: {name}"
    folders = [ROOT / folder for folder in ("ppcls", "benchmarks", "tools", "tests", "examples")]
    modules = {path.name for folder in folders for path in folder.rglob("*.py")}
    assert set(re.findall(r"(?<![\w*/])\w+\.py\b", text)) <= modules | NOT_OURS


@of_written
def test_document_names_existing_make_targets(document: Path) -> None:
    goals = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for literal in [*blocks(document), *spans(document)]:
        named = re.match(r"make ([a-z][\w-]*)", literal)
        assert named is None or named[1] in goals, f"{document.name}: {literal}"


def test_readme_names_every_document() -> None:
    text = read(ROOT / "README.md")
    pages = [path.name for path in DOCUMENTS if path.parent.name != "measurements"]
    assert [name for name in pages if name != "README.md" and name not in text] == []


KEY = r"\b(?:Global|AMP|EMA|Arch|Optimizer|DataLoader|Infer)\.[\w.]*\w"


@pytest.mark.parametrize(
    "document",
    # Two documents name keys that only PaddleClas has.
    [path for path in WRITTEN if path.name not in ("from-paddleclas.md", "paddleclas-files.md")],
    ids=lambda path: path.name,
)
def test_document_names_existing_config_keys(document: Path) -> None:
    text = render()
    headings = " ".join(re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    keys = {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE), *re.findall(r"\w+", headings)}
    for name in re.findall(KEY, "\n".join([*blocks(document), *spans(document)])):
        wrong = [part for part in name.split(".") if not part.isdecimal() and part not in keys]
        assert wrong == [], f"{document.name}: {name}"


@pytest.mark.parametrize("document", [path for path in WRITTEN if calls(path)], ids=lambda path: path.name)
def test_document_shows_valid_commands(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is parsed by its tool; its config and what it sets there are checked as the tool would."""
    for folder in ("configs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for name in ("cats", "dogs"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for tool, words in calls(document):
        called = TOOLS[tool]
        if isinstance(called, CommandGroup):
            called = called.commands[words.pop(0)]
        options: Any = called.parse(words)
        if getattr(options, "config", None) is not None:
            load_config(options.config, options.override)


def commands_of(tool: str) -> Iterator[tuple[str, Command[Any]]]:
    """Yields a tool's commands, each with its name on the command line."""
    called = TOOLS[tool]
    if isinstance(called, Command):
        yield program(tool), called
    else:
        yield from ((f"{program(tool)} {name}", each) for name, each in called.commands.items())


def program(tool: str) -> str:
    return "python benchmarks/run.py" if tool == "run" else f"ppcls {tool}"


def check_examples(name: str, examples: Sequence[str], parse: Callable[[list[str]], Any]) -> None:
    assert 1 <= len(examples) <= 3, name
    for example in examples:
        assert example.startswith(name), example
        options = parse(shlex.split(example)[len(name.split()) :])
        if getattr(options, "config", None) is not None:
            load_config(ROOT / options.config, options.override)


@pytest.mark.parametrize("tool", TOOLS)
def test_help_ends_with_examples_that_parse(tool: str) -> None:
    for name, each in commands_of(tool):
        check_examples(name, each.options.examples, each.parse)
        assert each.parser().format_help().endswith("".join(f"  {line}\n" for line in each.options.examples))
    group = TOOLS[tool]
    if isinstance(group, CommandGroup):
        check_examples(program(tool), group.examples, lambda words: group.commands[words[0]].parse(words[1:]))
        assert all(example in group.help("ppcls") for example in group.examples)


def test_document_shows_valid_settings_for_own_pictures(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
    text = read(ROOT / "docs" / "own-data.md")
    settings = re.findall(r"^\| `'?((?:Optimizer|Arch)\.[^`]*?=[^`]*?)'?` \|", text, re.MULTILINE)
    assert len(settings) == 4
    for setting in settings:
        root = f"DataLoader.Train.dataset.image_root={tmp_path}"
        load_config(ROOT / "configs" / "finetune.yaml", [root, setting])


def test_the_recording_shows_the_command_above_it() -> None:
    before = read(ROOT / "README.md").partition("docs/images/train.svg")[0]
    recorded = (ROOT / "docs" / "images" / "train.svg").read_text(encoding="utf-8")
    commands = [line for line in before.splitlines() if line.startswith("ppcls train ")]
    assert commands
    for command in commands:
        assert f">$ {command}</text>" in recorded
