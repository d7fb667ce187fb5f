"""The words that `make lint` rejects in names, docstrings, messages and documents."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT

WORDS = (
    "told",
    "tells",
    "whom",
    "anew",
    "likewise",
    "in so many words",
    "by its place",
    "a folder a class",
    "one subfolder a class",
    "three images a class",
    "a file a rank",
    "heeded",
    "goes on",
)


@pytest.fixture(scope="module")
def check_source() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_source", ROOT / ".ci" / "check_source.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "line",
    ['"""Returns what is {} here."""', 'raise UserError(f"{{path}}: {}")', "# {}", "def find_{}() -> None:"],
    ids=["docstring", "message", "comment", "name"],
)
def test_check_python_words_finds_word(
    check_source: ModuleType, tmp_path: Path, line: str, word: str
) -> None:
    text = line.format(word.replace(" ", "_") if line.startswith("def") else word)
    (tmp_path / "module.py").write_text(f"x = 1\n{text}\n")
    (finding,) = check_source.check_python_words([tmp_path / "module.py"])
    assert finding.startswith(f"{tmp_path}/module.py:2: '")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("f'{len(index)} images'", 1),
        ("f'{x:,} bad images are skipped'", 1),
        ("f'{a} of {self.b} epochs'", 1),
        ("f'{rate} images/s'", 0),
        ("f'{x:g} epochs'", 0),
        ("f'at most {MAX_FILES} files'", 0),
        ("f'{counted(x, \"image\")} images'", 0),
        ("f'{data_format} images'", 0),
    ],
)
def test_check_counts_finds_a_plural_behind_a_number(check_source: ModuleType, text: str, count: int) -> None:
    findings = list(check_source.check_counts({Path("ppcls/module.py"): ast.parse(text)}))
    assert len(findings) == count


def test_check_python_words_splits_names_of_classes(check_source: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("class WhatIsTold:\n")
    assert len(list(check_source.check_python_words([tmp_path / "module.py"]))) == 1


@pytest.mark.parametrize("word", WORDS)
def test_check_text_words_skips_code_blocks(check_source: ModuleType, tmp_path: Path, word: str) -> None:
    (tmp_path / "page.md").write_text(f"A page.\n\n```\n{word}\n```\nIt is {word}.\n")
    (finding,) = check_source.check_text_words([tmp_path / "page.md"])
    assert finding.startswith(f"{tmp_path}/page.md:6: '")


def test_check_test_names_ignores_other_lines(check_source: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("# told\ndef test_user_is_told() -> None: ...\n")
    (finding,) = check_source.check_test_names([tmp_path / "test_it.py"])
    assert ":2: 'told'" in finding


def test_check_variables_accepts_parameters(check_source: ModuleType) -> None:
    tree = ast.parse("def report(found):\n    wanted = found\n    print(wanted)\n")
    (finding,) = check_source.check_variables({Path("module.py"): tree})
    assert finding.startswith("module.py:2: variable wanted")


IMPORT = "from ppcls.recipe.schema import Config\n"


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        (IMPORT + "def f(config: Config): ...", True),
        (IMPORT + "def f(config: Config | None = None): ...", True),
        (IMPORT + "def f(config: 'Optional[Config]'): ...", True),
        (IMPORT + "def f(*, config: Union[str, Config]): ...", True),
        (IMPORT + "async def f(*configs: Sequence[Config]): ...", True),
        (IMPORT + "class A:\n    def f(self, run: Callable[['Config'], int]): ...", True),
        (IMPORT + "@dataclass(frozen=True)\nclass A:\n    config: Config | None = None", True),
        (IMPORT + "class A:\n    config: Config", False),
        (IMPORT + "def f() -> Config:\n    def g(x: Config, /): ...", True),
        ("from ppcls.recipe.schema import Config as C\ndef f(config: C): ...", True),
        ("from ppcls.recipe import schema\ndef f(config: schema.Config): ...", True),
        ("import ppcls.recipe.schema as s\ndef f(config: s.Config): ...", True),
        ("if TYPE_CHECKING:\n    from ppcls.recipe.schema import Config\ndef f(c: Config): ...", True),
        ("import uvicorn\ndef f(config: uvicorn.Config): ...", False),
        ("from uvicorn import Config\ndef f(config: Config): ...", False),
        (IMPORT + "def f(section: ConfigSource, text: 'no Config here') -> Config: ...", False),
        (IMPORT + "def f(mode: Literal['a', 'b c']): x: Config", False),
    ],
)
def test_check_config_parameters_counts_those_of_the_root_config(
    check_source: ModuleType, monkeypatch: pytest.MonkeyPatch, source: str, counted: bool
) -> None:
    monkeypatch.setattr(check_source, "MOST_CONFIG_PARAMETERS", 0)
    tree = ast.parse(source)
    assert bool(list(check_source.check_config_parameters({Path("ppcls/module.py"): tree}))) == counted
    assert not list(check_source.check_config_parameters({Path("benchmarks/module.py"): tree}))


def test_check_config_parameters_fails_above_the_limit(check_source: ModuleType) -> None:
    functions = "".join(f"def f{number}(config: Config): ...\n" for number in range(21))
    (finding,) = check_source.check_config_parameters({Path("ppcls/a.py"): ast.parse(IMPORT + functions)})
    assert finding.startswith("21 parameters receive the whole config, expected at most 20; ")
    assert "ppcls/a.py:2 f0(config)" in finding
    fewer = ast.parse(IMPORT + functions.replace("def f0(config: Config): ...\n", ""))
    assert not list(check_source.check_config_parameters({Path("ppcls/a.py"): fewer}))


SECTIONS = {
    "ppcls/config/base/section.py": "class Section: ...\nclass Spec(Section): ...\n",
    "ppcls/loss/base.py": "from ppcls.config.base.section import Spec\nclass Loss(Spec): ...\n",
    "ppcls/loss/embedding.py": "from ppcls.loss.base import Loss\nclass TripletLoss(Loss): ...\n",
    "ppcls/loss/__init__.py": "from ppcls.loss.embedding import TripletLoss\n",
    "ppcls/arch/layers.py": "class TripletLoss: ...\n",
}


@pytest.mark.parametrize(
    ("path", "source", "branches"),
    [
        ("engine/step", "from ppcls.loss.embedding import TripletLoss\nisinstance(x, TripletLoss)", 1),
        ("engine/step", "from ppcls.loss import TripletLoss as T\nisinstance(x, (T, int))", 1),
        ("engine/step", "from ppcls.loss import base\nissubclass(x, base.Loss | str)", 1),
        ("engine/step", "import ppcls.loss.base as b\nmatch x:\n  case b.Loss(): pass", 1),
        (
            "engine/step",
            "from ppcls.loss import TripletLoss as T, base\nisinstance(x, (T, base.Loss, T))",
            3,
        ),
        ("loss/build", "from ppcls.loss.embedding import TripletLoss\nisinstance(x, TripletLoss)", 0),
        ("engine/step", "from ppcls.config.base.section import Spec\nisinstance(x, Spec)", 0),
        ("engine/step", "from ppcls.arch.layers import TripletLoss\nisinstance(x, TripletLoss)", 0),
        ("engine/step", "from paddle.nn import TripletLoss\nisinstance(x, TripletLoss)", 0),
        ("engine/step", "class TripletLoss: ...\nisinstance(x, TripletLoss)", 0),
    ],
)
def test_check_type_branches_counts_sections_of_other_folders(
    check_source: ModuleType, monkeypatch: pytest.MonkeyPatch, path: str, source: str, branches: int
) -> None:
    files = {**SECTIONS, f"ppcls/{path}.py": source, f"benchmarks/{path}.py": source}
    trees = {Path(name): ast.parse(text) for name, text in files.items()}
    monkeypatch.setattr(check_source, "MOST_TYPE_BRANCHES", -1)
    (finding,) = check_source.check_type_branches(trees)
    assert finding.startswith(f"{branches} branches on the type of a section, expected at most -1; ")
    monkeypatch.setattr(check_source, "MOST_TYPE_BRANCHES", branches)
    assert not list(check_source.check_type_branches(trees))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = pipeline._shutdown()", "_shutdown"),
        ("getattr(batches, '_workers', ())", "_workers"),
        ("from paddle import _C_ops", "_C_ops"),
        ("import nvidia.dali._utils as utils", "_utils"),
        ("class A(B):\n    def f(self): return super()._state()", "_state"),
        ("optimizer._momentum", "_momentum"),  # a class in another module has an attribute of this name
        ("from ppcls.own import Own\ndef f(own: Own): return own._momentum", None),
        ("class A:\n    def __init__(self): self._x = 1\ndef f(a: A): return a._x", None),
        ("class A(Own):\n    def f(self): return self._momentum", None),
        ("x: argparse._ArgumentGroup = group\nos._exit(1)\nrow._asdict()\nx.__dict__", None),
    ],
)
def test_check_private_names_finds_those_of_libraries(
    check_source: ModuleType, monkeypatch: pytest.MonkeyPatch, source: str, name: str | None
) -> None:
    own = "class Own:\n    def __init__(self): self._momentum = 1\n"
    trees = {Path("ppcls/own.py"): ast.parse(own), Path("ppcls/a.py"): ast.parse(source)}
    monkeypatch.setattr(check_source, "PRIVATE_NAMES", {})
    findings = list(check_source.check_private_names(trees))
    assert [finding.split(" is private")[0].rpartition(" ")[2] for finding in findings] == [name] * bool(name)
    monkeypatch.setattr(check_source, "PRIVATE_NAMES", {"ppcls/a.py": f"{name or ''} _other", "gone.py": ""})
    assert list(check_source.check_private_names(trees)) == [
        "ppcls/a.py: _other is not used; remove it from PRIVATE_NAMES",
        "gone.py: no such module; remove it from PRIVATE_NAMES",
    ]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return super().forward(x)", 1),
        ("return nn.Conv2D.forward(self, x)", 0),
        ("if self.training:\n            y: Tensor = x\n        return x", 1),
        ("y: Tensor\n        if self.training:\n            y = x\n        return x", 0),
    ],
)
def test_check_compilable_finds_what_paddle_cannot_compile(
    check_source: ModuleType, body: str, count: int
) -> None:
    text = f"""class Stem(nn.Conv2D):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        {body}
"""
    tree = ast.parse(text)
    assert len(list(check_source.check_compilable({Path("ppcls/arch/layers/stem.py"): tree}))) == count
    assert list(check_source.check_compilable({Path("ppcls/loss/stem.py"): tree})) == []


@pytest.mark.slow  # make lint checks the same
def test_check_source_of_this_repository_finds_nothing(
    check_source: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone")
    assert check_source.main() == 0, capsys.readouterr().out
