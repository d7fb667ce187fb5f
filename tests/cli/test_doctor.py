"""``ppcls doctor``: each check, its exit code, and the explanation of missing packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

import ppcls
from ppcls.cli import doctor
from ppcls.cli.main import main
from ppcls.runtime.hardware import Driver, InstalledCard

AMPERE = InstalledCard("A100", (8, 0), 40 << 10, 39 << 10)
HOPPER = InstalledCard("H200", (9, 0), 140 << 10, 139 << 10)
BLACKWELL = InstalledCard("RTX 5090", (12, 0), 32 << 10, 31 << 10)
GPU_BUILD = {"version": "2.6.2", "cuda": "11.8", "cards": [""], "cpu": True}


def driver(*cards: InstalledCard) -> Driver:
    return Driver("550.1", "12.4", cards)


def paddle_checks(cards: Driver | None, found: dict[str, Any] | str | None) -> list[tuple[str, str, str]]:
    return [(check.status, check.result, check.fix) for check in doctor.check_paddle(cards, found)]


@pytest.fixture
def no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "")


def test_doctor_of_this_machine_finds_paddle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "read_driver", lambda: None)
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["Paddle"]["status"] == "ok"
    assert {"Python", "packages", "NVIDIA driver", "DALI", "CPU cores", "memory", "disk"} <= set(checks)
    assert checks["DALI on CPU"]["result"] == "a pipeline decoded and resized an image"
    assert "Paddle version" not in checks


def test_doctor_fails_if_paddle_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_versions: None
) -> None:
    monkeypatch.setattr(doctor, "read_driver", lambda: driver(AMPERE))
    assert main(["doctor"]) == 2
    out = capsys.readouterr()
    assert "ERROR Paddle         not installed\n" in out.out
    assert "GPU 0          A100, compute capability 8.0, 40 GiB, 39 GiB free" in out.out
    assert "fix these problems first" in out.err


@pytest.mark.parametrize(
    ("cards", "advice"),
    [
        (None, "pip install '.[cpu]'"),
        (driver(AMPERE), "pip install '.[gpu]'"),
        (driver(AMPERE, HOPPER), "-i https://www.paddlepaddle.org.cn/packages/stable/cu126/ "),
        (driver(HOPPER, BLACKWELL), "-i https://www.paddlepaddle.org.cn/packages/stable/cu129/ "),
    ],
)
def test_advice_fits_the_cards(cards: Driver | None, advice: str) -> None:
    assert advice in doctor.advise_paddle(cards)


def test_paddle_that_works_is_ok(no_versions: None) -> None:
    assert {status for status, _, _ in paddle_checks(driver(AMPERE), GPU_BUILD)} == {"ok"}


def test_paddle_without_kernels_for_a_card_is_an_error(no_versions: None) -> None:
    found = GPU_BUILD | {"cards": ["Paddle 2.6.2 has no kernels for GPU 0"]}
    _, (status, text, fix) = paddle_checks(driver(HOPPER), found)
    assert (status, text) == ("error", "Paddle 2.6.2 has no kernels for GPU 0")
    assert "6.1 to 8.6 only" in fix


def test_cpu_build_beside_a_card_is_an_error(no_versions: None) -> None:
    _, (status, text, fix) = paddle_checks(driver(AMPERE), GPU_BUILD | {"cuda": "", "cards": []})
    assert (status, text) == ("error", "this build cannot use GPUs")
    assert fix.startswith("pip uninstall paddlepaddle; pip install ")


def test_paddle_that_crashes_is_an_error() -> None:
    ((status, text, _),) = paddle_checks(None, "crashed with exit code -11")
    assert (status, text) == ("error", "cannot be imported: crashed with exit code -11")


def test_doctor_names_the_package_of_a_missing_library() -> None:
    error = "libgomp.so.1: cannot open shared object file: No such file or directory"
    ((status, text, fix),) = paddle_checks(None, error)
    assert (status, text) == ("error", f"cannot be imported: {error}")
    assert fix.startswith("apt-get install libgomp1 ")


def test_both_builds_of_paddle_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "2.6.2")
    ((status, text, _),) = paddle_checks(None, GPU_BUILD)
    assert status == "error"
    assert "both installed" in text


@pytest.fixture
def paddleclas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "paddleclas-2.5.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paddleclas\nVersion: 2.5.1\n")
    (info / "RECORD").write_text("ppcls/__init__.py,,\nppcls/engine/engine.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_another_package_named_ppcls_is_an_error(paddleclas: None) -> None:
    check = doctor.check_package()
    assert check.status == "error"
    assert check.result.startswith("paddleclas 2.5.1 also installs a package named ppcls")
    assert "pip uninstall paddleclas" in check.fix


def test_replaced_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ppcls, "__version__")
    assert "belongs to another package named ppcls" in doctor.find_conflict()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("onnxruntime", "onnxruntime is missing; pip install '.[onnx]'"),
        ("prometheus_client", "prometheus_client is missing; pip install '.[serve]'"),
        ("visualdl.component", "visualdl is missing; pip install '.[loggers]'"),
        ("scipy", "scipy is missing; pip install ."),
    ],
)
def test_command_explains_a_missing_package(
    name: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: object) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr("ppcls.cli.models.main", fail)
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))  # of the Python of `make setup`
    assert main(["models"]) == 2
    assert message in capsys.readouterr().err


def test_command_explains_that_its_package_was_replaced(
    paddleclas: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: object) -> None:
        raise ModuleNotFoundError("No module named 'ppcls.cli.flags'", name="ppcls.cli.flags")

    monkeypatch.setattr("ppcls.cli.models.main", fail)
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))  # of the Python of `make setup`
    monkeypatch.delattr(ppcls, "__version__")
    assert main(["models"]) == 2
    assert "paddleclas 2.5.1 also installs a package named ppcls" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "status", "fix"),
    [
        ("", "ok", ""),
        (
            "its libraries are not installed; pip install tensorrt",
            "note",
            "pip install tensorrt, if you need it",
        ),
    ],
)
def test_tensorrt_is_a_note_if_it_cannot_be_used(
    problem: str, status: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_tensorrt", lambda: problem)
    check = doctor.check_tensorrt()
    assert (check.status, check.fix) == (status, fix)


def dali_checks(cards: Driver | None, probe: list[str] | str | None) -> dict[str, tuple[str, str, str]]:
    return {check.name: (check.status, check.result, check.fix) for check in doctor.check_dali(cards, probe)}


def test_dali_of_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1.2.0")
    status, result, fix = dali_checks(None, [""])["DALI"]
    assert status == "error"
    assert result.startswith("1.2.0 is installed, but ")
    assert fix.startswith("pip install 'nvidia-dali-cuda120")
    assert "2.4" in fix


@pytest.mark.parametrize("cuda", ["11.8", "12.0"])
def test_driver_for_an_older_cuda_is_an_error_for_dali(cuda: str) -> None:
    old = Driver("520.61", cuda, (AMPERE,))
    assert ("DALI and CUDA" in dali_checks(old, ["", ""])) == (cuda == "11.8")


def test_each_device_of_dali_is_checked() -> None:
    checks = dali_checks(driver(AMPERE, AMPERE), ["", "", "no kernel image is available"])
    assert checks["DALI on CPU"][0] == "ok"
    assert checks["DALI on GPU 0"][0] == "ok"
    assert checks["DALI on GPU 1"][:2] == ("error", "no kernel image is available")
    assert dali_checks(None, "crashed with exit code -11")["DALI pipeline"][0] == "error"


@pytest.mark.parametrize(
    ("cuda", "status"), [("11.8", None), ("12.4", None), ("12.6", "note"), ("13.0", "error"), ("", None)]
)
def test_driver_is_compared_with_the_cuda_of_the_build(cuda: str, status: str | None) -> None:
    found = doctor.describe_old_driver(driver(AMPERE), cuda)  # supports CUDA 12.4
    assert (None if found is None else found[0]) == status


def test_version_of_paddle_that_was_not_tested_is_a_note() -> None:
    build = {"version": "3.0.0", "cuda": "", "cards": [], "cpu": True}
    assert any(
        status == "note" and "3.0.0 is installed, but ppcls is tested with ==2.6.2 and ==3.3.1" in result
        for status, result, _ in paddle_checks(None, build)
    )
