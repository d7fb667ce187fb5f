"""``ppcls doctor``: checks whether this machine and its packages can train, and prints what to install."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import ppcls
from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import build_parser
from ppcls.deploy.models.engine import find_tensorrt
from ppcls.errors import UserError
from ppcls.runtime.device import PYPI_GPU_CAPABILITIES, has_pypi_kernels
from ppcls.runtime.hardware import Driver, read_driver, usable_cores
from ppcls.runtime.paddle_import import advise_library

Status = Literal["ok", "note", "error"]
_INDEX = "https://www.paddlepaddle.org.cn/packages/stable/cu126/"
_EXTRAS = {
    "onnx": ("onnxruntime", "paddle2onnx"),
    "openvino": ("openvino", "nncf"),
    "serve": ("fastapi", "uvicorn"),
    "loggers": ("visualdl", "tensorboardX"),
}
_MIN_DISK = 5 << 30
_MIN_SHARED = 1 << 30
_PROBE_SECONDS = 180
# Runs in a separate process, because a build of Paddle that does not suit the machine can crash at import.
_PROBE = """
import json, sys
from ppcls.errors import UserError
from ppcls.runtime.device import check_gpu_kernels
from ppcls.runtime.paddle_import import import_paddle
try:
    import_paddle()
except UserError as error:
    sys.exit(str(error.__cause__))
import paddle
gpu = paddle.is_compiled_with_cuda()
report = {"version": paddle.__version__, "cuda": str(paddle.version.cuda()) if gpu else "", "cards": []}
for card in range(paddle.device.cuda.device_count() if gpu else 0):
    try:
        check_gpu_kernels(card)
        report["cards"].append("")
    except UserError as error:
        report["cards"].append(str(error))
paddle.set_device("cpu")
report["cpu"] = float((paddle.arange(8, dtype="float32") + 1.0).square().sum()) == 204.0
print("\\n" + json.dumps(report))
"""


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: Name of the checked component.
        status: ``ok``; ``note`` for a problem that affects only some commands; ``error`` for one that
            prevents training.
        result: Result of the check, such as a version.
        fix: Instructions to fix the problem; empty if there are none.
    """

    name: str
    status: Status
    result: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok   ", "note": "note ", "error": "ERROR"}[self.status]
        return f"{mark} {self.name:<14} {self.result}" + (f"\n{'':<21}-> {self.fix}" if self.fix else "")


class UnusableError(UserError):
    """Something that training needs is missing or unusable. The printed checks have the details."""


@command
def doctor(argv: Arguments = None) -> None:
    """Checks the driver, GPUs, packages, cores, memory and disk. Fails if training is impossible."""
    as_json = build_parser("doctor").parse_args(argv).json
    checks = []
    for check in _checks():
        checks.append(check)
        if not as_json:
            write_output(f"{check}\n")
    if as_json:
        write_output(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    errors = [check.name for check in checks if check.status == "error"]
    if errors:
        raise UnusableError(f"training is impossible; fix these problems first: {', '.join(errors)}")


def _checks() -> Iterator[Check]:
    yield Check("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield check_package()
    yield check_dependencies()
    driver = read_driver()
    yield from check_cards(driver)
    if not (_version("paddlepaddle") or _version("paddlepaddle-gpu")):
        yield from check_paddle(driver, None)
    else:
        sys.stderr.write("loading Paddle ...\n")
        yield from check_paddle(driver, probe_paddle())
    yield check_dali()
    yield from check_extras()
    if driver is not None:
        yield check_tensorrt()
    yield from check_machine()


def check_package() -> Check:
    """Checks that no other distribution installs a package named ``ppcls``."""
    name = "ppcls"
    place = Path(ppcls.__file__ or ".").parent
    if conflict := find_conflict():
        return Check(name, "error", conflict, CONFLICT_FIX)
    return Check(name, "ok", f"{ppcls.__version__}, {place}")


CONFLICT_FIX = (
    "pip uninstall paddleclas ppcls, then install ppcls again; install PaddleClas in another environment"
)


def find_conflict() -> str:
    """Returns a message if another distribution, such as PaddleClas, installs a package ``ppcls``; else "".

    Both distributions install into the same folder, where they overwrite each other's files.
    """
    others = []
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        files = (distribution.read_text("RECORD") or "") if name.lower() != "ppcls" else ""
        if any(line.startswith("ppcls/") for line in files.splitlines()):
            others.append(f"{name} {distribution.version}")
    if others:
        return f"{', '.join(others)} also installs a package named ppcls, into the same folder"
    if not hasattr(ppcls, "__version__"):
        return f"{ppcls.__file__} belongs to another package named ppcls, such as PaddleClas"
    return ""


def check_dependencies() -> Check:
    """Checks the versions of all packages that ppcls needs besides Paddle and DALI."""
    from packaging.requirements import Requirement

    problems = []
    count = 0
    try:
        requirements = [Requirement(text) for text in metadata.requires("ppcls") or []]
    except metadata.PackageNotFoundError:
        return Check("packages", "note", "not checked, because ppcls is not installed", _INSTALL)
    for requirement in requirements:
        if requirement.name.startswith("nvidia-dali"):
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        count = count + 1
        if not version:
            problems.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(
                f"{requirement.name} {version} is installed, but {requirement.specifier} is required"
            )
    if problems:
        return Check("packages", "error", "; ".join(problems), _INSTALL)
    return Check("packages", "ok", f"{count} required packages are installed")


_INSTALL = "pip install . in the folder of ppcls, or install its wheel"


def check_cards(driver: Driver | None) -> Iterator[Check]:
    """Yields the checks of the driver and of each GPU."""
    if driver is None:
        yield Check("NVIDIA driver", "ok", "none; ppcls runs on the CPU")
        return
    yield Check("NVIDIA driver", "ok", f"{driver.version}, supports CUDA up to {driver.cuda}")
    for number, card in enumerate(driver.cards):
        capability = ".".join(map(str, card.capability))
        memory = f"{card.total / 1024:.0f} GiB, {card.free / 1024:.0f} GiB free"
        yield Check(f"GPU {number}", "ok", f"{card.name}, compute capability {capability}, {memory}")


def probe_paddle() -> dict[str, Any] | str:
    """Returns Paddle's version and the devices that it can use, or the reason why the import fails."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{_PROBE}"
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {_PROBE_SECONDS} s"
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines and done.returncode > 0 else f"crashed with exit code {done.returncode}"


def check_paddle(driver: Driver | None, probe: dict[str, Any] | str | None) -> Iterator[Check]:
    """Yields checks that Paddle is installed, computes correctly, and can use each GPU.

    Args:
        driver: Driver and its GPUs; None without a driver.
        probe: Result of `probe_paddle`; None if Paddle is not installed.
    """
    advice = advise_paddle(driver)
    if probe is None:
        yield Check("Paddle", "error", "not installed", advice)
        return
    if isinstance(probe, str):
        yield Check("Paddle", "error", f"cannot be imported: {probe}", advise_library(probe) or advice)
        return
    build = f"CUDA {probe['cuda']}" if probe["cuda"] else "CPU build"
    both = bool(_version("paddlepaddle") and _version("paddlepaddle-gpu"))
    text = f"{probe['version']}, {build}"
    if both:
        fix = "pip uninstall paddlepaddle paddlepaddle-gpu, then install one of them"
        yield Check("Paddle", "error", f"{text}; paddlepaddle and paddlepaddle-gpu are both installed", fix)
    elif not probe["cpu"]:
        yield Check("Paddle", "error", f"{text}; it computes wrong numbers", advice)
    else:
        yield Check("Paddle", "ok", text)
    if driver is None:
        return
    if not probe["cuda"]:
        yield Check(
            "Paddle on GPU", "error", "this build cannot use GPUs", f"pip uninstall paddlepaddle; {advice}"
        )
    elif not probe["cards"]:
        reason = "CUDA_VISIBLE_DEVICES hides all GPUs, or the driver is too old"
        yield Check(
            "Paddle on GPU",
            "error",
            f"Paddle finds no GPU: {reason}",
            "change CUDA_VISIBLE_DEVICES, or update the driver",
        )
    for number, problem in enumerate(probe["cards"]):
        if problem:
            yield Check(f"Paddle on GPU {number}", "error", problem, advice)
        else:
            yield Check(f"Paddle on GPU {number}", "ok", "usable")


def advise_paddle(driver: Driver | None) -> str:
    """Returns instructions to install the build of Paddle that suits the GPUs."""
    if driver is None or not driver.cards:
        return "pip install '.[cpu]' in the folder of ppcls, or: pip install paddlepaddle==3.3.1"
    if all(has_pypi_kernels(card.capability) for card in driver.cards):
        return "pip install '.[gpu]' in the folder of ppcls (CUDA 11.8 and cuDNN 8 must be installed)"
    low, high = (".".join(map(str, capability)) for capability in PYPI_GPU_CAPABILITIES)
    limits = f"PyPI's 2.6.2 supports compute capability {low} to {high} only"
    return f"pip install paddlepaddle-gpu==3.3.1 -i {_INDEX} (docs/gpu.md); {limits}"


def check_dali() -> Check:
    """Checks that NVIDIA DALI is installed."""
    version = _version("nvidia-dali-cuda120")
    if version and importlib.util.find_spec("nvidia.dali") is not None:
        return Check("DALI", "ok", version)
    return Check("DALI", "error", "not installed", _INSTALL)


def check_extras() -> Iterator[Check]:
    """Yields one check per extra, a group of packages that only some commands need."""
    for extra, names in _EXTRAS.items():
        missing = [name for name in names if not _version(name)]
        if missing:
            fix = f"pip install '.[{extra}]' in the folder of ppcls, if you need it"
            yield Check(f"extra {extra}", "note", f"not installed: {', '.join(missing)}", fix)
        else:
            yield Check(f"extra {extra}", "ok", ", ".join(f"{name} {_version(name)}" for name in names))


def check_tensorrt() -> Check:
    """Checks whether TensorRT can run exported ONNX models."""
    if problem := find_tensorrt():
        reason, _, fix = problem.partition("; ")
        return Check("TensorRT", "note", f"cannot be used: {reason}", f"{fix}, if you need it")
    return Check("TensorRT", "ok", "runs .onnx files with -o Infer.engine=tensorrt")


def check_machine() -> Iterator[Check]:
    """Yields checks of the CPU cores, the memory and the free disk space."""
    import psutil

    yield Check("CPU cores", "ok", f"{usable_cores()} usable of {os.cpu_count()}")
    memory = psutil.virtual_memory()
    yield Check(
        "memory", "ok", f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available"
    )
    free = shutil.disk_usage(Path.cwd()).free
    low = free < _MIN_DISK
    fix = "checkpoints may not fit; write them elsewhere with --output" if low else ""
    yield Check("disk", "note" if low else "ok", f"{free / 2**30:.1f} GiB free in {Path.cwd()}", fix)
    shared = Path("/dev/shm")  # noqa: S108
    if shared.is_dir() and (size := shutil.disk_usage(shared).total) < _MIN_SHARED:
        fix = "with paddle.io's worker processes, start the container with --shm-size=8g"
        yield Check("shared memory", "note", f"{size / 2**20:.0f} MiB", fix)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def explain_missing_module(error: ModuleNotFoundError) -> str:
    """Returns a message for a failed import, with the cause and the fix.

    The cause is another package named ppcls, or a missing package.
    """
    if conflict := find_conflict():
        return f"{conflict}; {CONFLICT_FIX}"
    name = (error.name or "").partition(".")[0]
    extras = [extra for extra, names in _EXTRAS.items() if name in (*names, *_OTHERS.get(extra, ()))]
    fix = f"pip install '.[{extras[0]}]' in the folder of ppcls" if extras else _other_fix(name)
    return f"the Python package {name} is missing; {fix}"


_OTHERS: dict[str, Sequence[str]] = {"serve": ("starlette", "python_multipart", "prometheus_client")}


def _other_fix(name: str) -> str:
    return (
        advise_paddle(read_driver())
        if name == "paddle"
        else f"{_INSTALL}; `ppcls doctor` checks all packages"
    )
