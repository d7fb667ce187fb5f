"""``ppcls doctor``: checks whether this machine and its packages can train, and prints what to install."""

from __future__ import annotations

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
from typing import Any, ClassVar, Literal

import ppcls
from ppcls.cli.arguments.options import option
from ppcls.cli.command import command, write_output
from ppcls.deploy.models.engine import find_tensorrt
from ppcls.errors import UserError, counted
from ppcls.runtime.device import PYPI_GPU_CAPABILITIES, has_pypi_kernels
from ppcls.runtime.hardware import Driver, read_driver, usable_cores
from ppcls.runtime.paddle_import import advise_library

Status = Literal["ok", "note", "error"]
_INDEX = "https://www.paddlepaddle.org.cn/packages/stable/"
_BLACKWELL = (10, 0)  # first compute capability without kernels in Paddle's builds for CUDA 12.6
_DALI = "nvidia-dali-cuda120"
_DALI_CUDA = 12  # major version of CUDA that this build of DALI needs
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


# Runs in a separate process, because a driver that does not suit DALI can end the process. Its argument is
# the number of GPUs. It decodes one JPEG on the CPU and one per GPU, and prints one error or "" for each.
_DALI_PROBE = """
import json, sys
import cv2
import numpy as np
from nvidia.dali import fn, pipeline_def
encoded = cv2.imencode(".jpg", np.full((48, 64, 3), 128, np.uint8))[1].reshape(-1)
@pipeline_def(batch_size=1, num_threads=1)
def decode(device):
    jpegs = fn.external_source(lambda: [encoded])
    return fn.resize(fn.decoders.image(jpegs, device=device), size=(32, 32))
problems = []
for number in (None, *range(int(sys.argv[1]))):
    try:
        pipeline = decode("cpu" if number is None else "mixed", device_id=number)
        pipeline.build()
        (images,) = pipeline.run()
        shape = tuple(images.shape()[0])
        problems.append("" if shape == (32, 32, 3) else f"decoded an image of shape {shape}")
    except RuntimeError as error:
        problems.append(str(error).strip().splitlines()[-1])
print("\\n" + json.dumps(problems))
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


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Check the driver, the GPUs, Paddle and the other packages, and print what to install.

    Exit code 2: something that training needs is missing or unusable.
    """

    examples: ClassVar[Sequence[str]] = ("ppcls doctor", "ppcls doctor --json")

    json: bool = option(False, "print the checks as JSON")


@command("doctor", DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Checks the driver, GPUs, packages, cores, memory and disk. Fails if training is impossible."""
    checks = []
    for check in _checks():
        checks.append(check)
        if not options.json:
            write_output(f"{check}\n")
    if options.json:
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
    if _version(_DALI):
        sys.stderr.write("starting DALI ...\n")
        yield from check_dali(driver, probe_dali(0 if driver is None else len(driver.cards)))
    else:
        yield from check_dali(driver, None)
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
        if requirement.name == _DALI:
            continue  # see `check_dali`
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
    return Check(
        "packages", "ok", f"{counted(count, 'required package is', 'required packages are')} installed"
    )


_INSTALL = "pip install . in the folder of ppcls, or install its wheel"


def check_cards(driver: Driver | None) -> Iterator[Check]:
    """Yields the checks of the driver and of each GPU."""
    if driver is None:
        text = (
            "none; training uses the CPU. Paddle's launcher ends with 'substring not found' for --gpus; "
            "--nproc_per_node=2 with -o Global.device=cpu starts two processes"
        )
        yield Check("NVIDIA driver", "ok", text)
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
    if untested := _describe_untested(probe["version"]):
        yield Check("Paddle version", "note", untested, advice)
    if driver is None:
        return
    if probe["cuda"] and (problem := describe_old_driver(driver, probe["cuda"])):
        yield Check("Paddle and CUDA", *problem)
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


def _describe_untested(version: str) -> str:
    """Returns a message if ppcls was not tested with this version of Paddle; else ""."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in metadata.requires("ppcls") or []]
    except metadata.PackageNotFoundError:
        return ""  # `check_dependencies` reports this
    pins = [item.specifier for item in requirements if item.name.startswith("paddlepaddle")]
    if any(pin.contains(version, prereleases=True) for pin in pins):
        return ""
    return f"{version} is installed, but ppcls is tested with {' and '.join(sorted(map(str, pins)))}"


def describe_old_driver(driver: Driver, needed: str) -> tuple[Status, str, str] | None:
    """Returns status, result and fix if the driver is older than a build for a version of CUDA; else None.

    Within one major version, CUDA runs on older drivers ("minor version compatibility", NVIDIA's guide *CUDA
    Compatibility*), except for programs that compile kernels at run time for the newer version.

    Args:
        driver: Driver of the machine.
        needed: Version of CUDA of the build, such as ``12.6``.
    """
    from packaging.version import InvalidVersion, Version

    try:
        build = Version(needed)
        supported = Version(driver.cuda)
    except InvalidVersion:
        return None
    if build <= supported:
        return None
    text = (
        f"this build is for CUDA {needed}, and the driver {driver.version} supports CUDA up to {driver.cuda}"
    )
    if build.major > supported.major:
        return "error", text, f"update the driver to one for CUDA {needed} or later"
    fix = f"update the driver to one for CUDA {needed} if kernels fail to start"
    return "note", f"{text}; most programs run on older drivers of the same major version", fix


def advise_paddle(driver: Driver | None) -> str:
    """Returns instructions to install the build of Paddle that suits the GPUs."""
    if driver is None or not driver.cards:
        return "pip install '.[cpu]' in the folder of ppcls, or: pip install paddlepaddle==3.3.1"
    if all(has_pypi_kernels(card.capability) for card in driver.cards):
        return "pip install '.[gpu]' in the folder of ppcls (CUDA 11.8 and cuDNN 8 must be installed)"
    low, high = (".".join(map(str, capability)) for capability in PYPI_GPU_CAPABILITIES)
    limits = f"PyPI's 2.6.2 supports compute capability {low} to {high} only"
    # Builds for CUDA 12.6 have no kernels for RTX 50 and B200, and those for 12.9 need a newer driver.
    newest = max(card.capability for card in driver.cards)
    build = "cu129" if newest >= _BLACKWELL else "cu126"
    return f"pip install paddlepaddle-gpu==3.3.1 -i {_INDEX}{build}/ (docs/gpu.md); {limits}"


def probe_dali(cards: int) -> list[str] | str:
    """Runs one DALI pipeline on the CPU and one per GPU.

    Args:
        cards: Number of GPUs.

    Returns:
        An error or "" for the CPU and for each GPU; or the reason why DALI can't be started at all.
    """
    command = [sys.executable, "-c", _DALI_PROBE, str(cards)]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {_PROBE_SECONDS} s"
    if done.returncode == 0:
        problems: list[str] = json.loads(done.stdout.splitlines()[-1])
        return problems
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines and done.returncode > 0 else f"crashed with exit code {done.returncode}"


def check_dali(driver: Driver | None, probe: list[str] | str | None) -> Iterator[Check]:
    """Yields checks that NVIDIA DALI has a tested version, and runs on the CPU and on each GPU.

    Args:
        driver: Driver and its GPUs; None without a driver.
        probe: Result of `probe_dali`; None if DALI is not installed.
    """
    from packaging.requirements import Requirement

    version = _version(_DALI)
    try:
        pins = [Requirement(text) for text in metadata.requires("ppcls") or [] if text.startswith(_DALI)]
    except metadata.PackageNotFoundError:
        pins = []  # `check_dependencies` reports this
    if probe is None:
        yield Check("DALI", "error", "not installed", _INSTALL)
        return
    expected = ",".join(str(pin.specifier) for pin in pins)
    if not all(pin.specifier.contains(version, prereleases=True) for pin in pins):
        text = f"{version} is installed, but {expected} is required"
        yield Check("DALI", "error", text, f"pip install '{_DALI}{expected}'")
        return
    yield Check("DALI", "ok", version)
    if driver is not None and int(driver.cuda.partition(".")[0]) < _DALI_CUDA:
        text = f"needs CUDA {_DALI_CUDA}, and the driver {driver.version} supports CUDA up to {driver.cuda}"
        yield Check("DALI and CUDA", "error", text, f"update the driver to one for CUDA {_DALI_CUDA}")
    if isinstance(probe, str):
        yield Check("DALI pipeline", "error", f"cannot be started: {probe}", _INSTALL)
        return
    for number, problem in enumerate(probe):
        device = "CPU" if number == 0 else f"GPU {number - 1}"
        if problem:
            fix = (
                "reinstall DALI" if number == 0 else "update the driver, or train with Global.use_dali=False"
            )
            yield Check(f"DALI on {device}", "error", problem, fix)
        else:
            yield Check(f"DALI on {device}", "ok", "a pipeline decoded and resized an image")


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


_OTHERS: dict[str, Sequence[str]] = {"serve": ("starlette", "h11", "python_multipart", "prometheus_client")}


def _other_fix(name: str) -> str:
    return (
        advise_paddle(read_driver())
        if name == "paddle"
        else f"{_INSTALL}; `ppcls doctor` checks all packages"
    )
