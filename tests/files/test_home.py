"""Paddle compiles models also if the home folder is missing or read-only."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppcls.files.home import writable_home


@pytest.mark.parametrize("home", ["missing", "file/home", None])
def test_another_home_is_set_within_the_block(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without an entry in passwd
    else:
        monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    folder = tmp_path / "output"
    folder.mkdir()
    with writable_home(folder):
        assert Path(os.environ["HOME"]).parent == folder
    assert os.environ.get("HOME") == (None if home is None else str(tmp_path / home))
    assert [*folder.iterdir()] == []


def test_home_of_another_user_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files can't even be listed, for example those of root in a container of another user."""
    home = tmp_path / "root"
    whole = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if not isinstance(path, int) and home in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return whole(path, *arguments, **options)

    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != home)
    with writable_home(tmp_path):
        assert os.environ["HOME"] != str(home)


def test_a_writable_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "new"))
    with writable_home(tmp_path):
        assert os.environ["HOME"] == str(tmp_path / "new")


def test_a_model_is_saved_without_a_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = """
import sys
from pathlib import Path
import paddle
from ppcls.files.home import writable_home

class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = paddle.nn.Linear(3, 2)

    def forward(self, image):
        return self.layer(image)

with writable_home(Path(sys.argv[1])):
    spec = paddle.static.InputSpec([None, 3], "float32")
    static = paddle.jit.to_static(Model(), input_spec=[spec], full_graph=True)
    paddle.jit.save(static, sys.argv[1] + "/model")
"""
    script = tmp_path / "save.py"  # a file, because Paddle reads the source of the model
    script.write_text(code)
    environment = os.environ | {"HOME": str(tmp_path / "file" / "home")}
    output = tmp_path / "output"
    output.mkdir()
    subprocess.run([sys.executable, str(script), str(output)], check=True, env=environment, timeout=300)
    names = sorted(path.name for path in output.iterdir())
    assert names in (
        ["model.json", "model.pdiparams"],  # Paddle 3
        ["model.pdiparams", "model.pdiparams.info", "model.pdmodel"],  # Paddle 2.6
    )
