"""Reads package versions and hardware for the report of a run."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from ppcls.runtime.hardware import read_cpu_model
from ppcls.runtime.start import Runtime
from ppcls.version import __version__

_PACKAGES = (
    "paddlepaddle-gpu",
    "paddlepaddle",
    "nvidia-dali-cuda120",
    "numpy",
    "opencv-python-headless",
    "pillow",
    "visualdl",
)


def read_versions() -> dict[str, str]:
    """Returns the versions of ppcls, Python and the most important installed packages, keyed by name."""
    import paddle

    versions = {"ppcls": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if paddle.is_compiled_with_cuda():
        versions["CUDA of Paddle"] = str(paddle.version.cuda())
        versions["cuDNN of Paddle"] = str(paddle.version.cudnn())
    return versions


def read_hardware(runtime: Runtime) -> dict[str, str]:
    """Returns properties of the hardware that the run uses on this machine, keyed by label."""
    facts = {
        "Processes": str(runtime.world_size),
        "Device": f"GPU, {_gpu(runtime)}" if runtime.device == "gpu" else "CPU",
        "Processor": read_cpu_model(),
        "Cores per process": str(runtime.cores),
        "Paddle threads": str(runtime.threads),
        "Memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "System": f"{platform.system()} {platform.release()}",
    }
    if runtime.budget is not None:
        facts["GPU memory"] = runtime.budget.describe()
    return facts


def _gpu(runtime: Runtime) -> str:
    import paddle

    card = paddle.device.cuda.get_device_properties(runtime.device_id)
    return f"{card.name}, {card.total_memory / 2**30:.0f} GiB, compute {card.major}.{card.minor}"
