"""Commands whose standard streams are closed, full, or lack the characters of a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from paths import ROOT
from runs import GUARD

COMMAND = f"'{sys.executable}' '{ROOT / 'tools' / 'models.py'}' list 'ResNet5*'"
CLOSED = "error: standard output: can't be written: Bad file descriptor\n"
FULL = "error: standard output: can't be written: No space left on device\n"


def run_shell(line: str, folder: Path, **variables: str) -> tuple[int, str, str]:
    """Returns the exit code and the output of a line of Bash."""
    environment = {"PATH": os.environ["PATH"], "PPCLS_OFFLINE": "1", **variables}
    completed = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=GUARD,
        check=False,
    )
    return completed.returncode, completed.stdout, completed.stderr


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">&-", 2, CLOSED),
        (">/dev/full", 2, FULL),
        ("<&- >/dev/full", 2, FULL),
        (">&- 2>&- <&-", 2, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("<&-", 0, ""),
        ("| head -c 1; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_result_that_can_not_be_written_is_an_error(
    redirection: str, code: int, error: str, tmp_path: Path
) -> None:
    command = COMMAND
    if "head" in redirection:  # its first bytes fit into the pipe, so `head` must end first
        redirection = "> >(head -c 0); exit $?"
        command = f"sleep 0.2; {command}"
    returned, output, errors = run_shell(f"{command} {redirection}", tmp_path)
    assert (returned, errors) == (code, error)
    assert (code == 0) == bool(output)


def test_help_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    command = COMMAND.replace(" list 'ResNet5*'", " list --help")
    assert run_shell(f"{command} >/dev/full", tmp_path) == (2, "", FULL)


@pytest.mark.parametrize("stream", ["2>/dev/full", ">&- 2>&- <&-"])
def test_error_of_the_command_line_keeps_its_exit_code(stream: str, tmp_path: Path) -> None:
    assert run_shell(f"{COMMAND} --unknown {stream}", tmp_path)[0] == 2


def test_config_is_printed_as_yaml_that_an_ascii_terminal_can_show(tmp_path: Path) -> None:
    for name in ("café", "b😀"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(2):
            (tmp_path / "pictures" / name / f"{i}.jpg").touch()
    line = f"'{sys.executable}' '{ROOT / 'tools' / 'train.py'}' pictures --output été --print-config"
    code, output, errors = run_shell(line, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert code == 0, errors
    assert output.isascii()
    assert yaml.safe_load(output)["Global"]["output_dir"] == "été"


def test_name_that_the_locale_can_not_encode_is_explained(tmp_path: Path) -> None:
    line = f"'{sys.executable}' '{ROOT / 'tools' / 'train.py'}' . --output été"
    code, _, errors = run_shell(line, tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert code == 2
    assert "set the environment variable LC_ALL=C.UTF-8" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_run_and_its_results_are_complete_without_streams(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("café", "b😀"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            image = rng.integers(0, 255, (32, 32, 3)).astype(np.uint8)
            (tmp_path / "pictures" / name / f"{i}.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
    options = (
        "--model ResNet18 --epochs 1 --image-size 32 --batch-size 4 --device cpu -o Arch.pretrained=False"
    )
    train = f"'{sys.executable}' '{ROOT / 'tools' / 'train.py'}' pictures --output run {options} >&- 2>&- <&-"
    assert run_shell(train, tmp_path)[0] == 0
    assert "all files are in run" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    infer = f"'{sys.executable}' '{ROOT / 'tools' / 'infer.py'}' --model run"
    assert run_shell(f"{infer} pictures --out results.jsonl >&-", tmp_path)[0] == 0
    assert len((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 12
    code, output, _ = run_shell(
        f"{infer} --json pictures", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="1"
    )
    assert code == 0
    assert [json.loads(line)["path"] for line in output.splitlines()][-1] == "pictures/café/5.png"


OPENCV = """
import sys
sys.path.insert(0, sys.argv[1])
from ppcls.runtime.streams import prepare_streams
prepare_streams()
import cv2
assert cv2.imread("missing.tif") is None
"""


def test_opencv_writes_its_log_only_if_the_user_wants_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OPENCV, encoding="utf-8")
    line = f"'{sys.executable}' program.py '{ROOT}'"
    assert run_shell(line, tmp_path) == (0, "", "")
    code, _, errors = run_shell(line, tmp_path, OPENCV_LOG_LEVEL="WARNING")
    assert code == 0
    assert "missing.tif" in errors
