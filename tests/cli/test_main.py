"""The program ``ppcls`` runs the functions of tools/, imports nothing for its help, and suggests commands."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from ppcls.cli import main as module
from ppcls.cli.main import main


@pytest.mark.parametrize("name", module._COMMANDS)
def test_command_is_the_function_of_its_script(name: str) -> None:
    path, function = module._COMMANDS[name][0].split(":")
    assert callable(getattr(importlib.import_module(path), function))
    assert f'run_command("{name}", sys.argv[1:])' in (ROOT / "tools" / f"{name}.py").read_text()


@pytest.mark.parametrize(
    "script",
    ["tools/train.py", "tools/export_model.py", "tools/runs.py", "ppcls/train.py", "ppcls/static/train.py"],
)
def test_script_in_another_python_explains_missing_packages(script: str) -> None:
    run = subprocess.run(  # without site-packages
        [sys.executable, "-S", str(ROOT / script), "-c", "quickstart"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: the Python package ")
    assert len(run.stderr.splitlines()) == 1
    if (ROOT / ".venv" / "bin" / "activate").is_file():
        command = shlex.join(["source", str(ROOT / ".venv" / "bin" / "activate")])
        assert f"; first run `{command}`" in run.stderr


def test_script_of_the_package_is_main() -> None:
    assert '[project.scripts]\nppcls = "ppcls.cli.main:main"\n' in (ROOT / "pyproject.toml").read_text()


def test_arguments_are_passed_to_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ppcls"])
    assert main(["train", "-c", str(tmp_path / "gone.yaml")]) == 2
    assert "gone.yaml: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    assert capsys.readouterr().out.startswith("usage: ppcls eval ")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_all_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments or ["-h"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in module._COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["predict"], "unknown command 'predict'; did you mean 'infer'?"),
        (["export_model"], "unknown command 'export_model'; did you mean 'export'?"),
        (["classify", "train", "data=x"], "unknown command 'classify'; did you mean 'train'?"),
        (["check", "-c", "x"], "; `ppcls train -c CONFIG --print-config` checks a config; "),
        (["classify", "val", "model=x"], "unknown command 'classify'; did you mean 'eval'?"),
        (["task=classify", "mode=predict"], "unknown command 'task=classify'; did you mean 'infer'?"),
        (["model=x", "mode=train"], "unknown command 'model=x'; did you mean 'train'?"),
        (["yolo", "classify", "train", "data=x"], "unknown command 'yolo'; did you mean 'train'?"),
        (["yolo", "val", "model=x"], "unknown command 'yolo'; did you mean 'eval'?"),
        (["yolo", "task=classify", "mode=export"], "unknown command 'yolo'; did you mean 'export'?"),
        (["settings"], "unknown command 'settings'; did you mean 'doctor'?"),
        (["resume", "x"], "unknown command 'resume'; `ppcls train --resume RUN` continues a run"),
        (["deploy"], "unknown command 'deploy'; `ppcls serve --model RUN` serves a model; "),
        (["-v"], "-v: expected a command first; `ppcls version` prints the version"),
        (["checks"], "unknown command 'checks'; did you mean 'doctor'?"),
        (["gradio"], "unknown command 'gradio'; did you mean 'serve'?"),
        (["models", "show", "ResNet18"], "unknown command 'show'; did you mean 'list'?"),
        (["dataset", "info"], "unknown command 'info'; did you mean 'stats'?"),
        (["stats"], "unknown command 'stats'; did you mean 'dataset stats'?"),
        (["lr_find"], "unknown command 'lr_find'; did you mean 'train --find-lr'?"),
        (["cross-validate"], "unknown command 'cross-validate'; did you mean 'train --folds'?"),
        (["test"], "`ppcls eval --model RUN --trust --data FOLDER` evaluates a model on labelled images"),
        (["logs"], "report.html and train.log in the output folder of a run"),
        (["xyz"], "unknown command 'xyz'; known: train, tune, eval, "),
        (["--epochs", "3", "train"], "put options after it: ppcls train --epochs"),
    ],
)
def test_unknown_command_is_rejected_with_a_suggestion(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


IMPORTS = """
import sys
from ppcls.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
watched = {"paddle", "scipy", "sklearn", "cv2", "numpy", "pydantic", "nvidia"}
print("imported", *sorted(watched & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["--help"], set()),
        (["train", "--help"], set()),
        (["infer", "--help"], set()),
        (["dataset", "check", "--help"], set()),
        (["benchmark", "train", "--help"], set()),
        (["train", "-c", "configs/quickstart.yaml", "--print-config"], {"pydantic", "numpy"}),
    ],
)
def test_help_and_print_config_import_little(arguments: list[str], imported: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.splitlines()[-1].split()[1:]) <= imported


@pytest.mark.parametrize("script", ["ppcls/train.py", "ppcls/static/train.py", "tools/export_model.py"])
def test_script_of_paddleclas_runs_the_command(script: str, tmp_path: Path) -> None:
    run = [sys.executable, str(ROOT / script), "-c", "gone.yaml"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("error: gone.yaml: no such config file")
    assert done.returncode == 2
