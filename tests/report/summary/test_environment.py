from __future__ import annotations

import paddle
import pytest

from ppcls.report.summary.environment import read_hardware, read_versions
from ppcls.runtime.start import Runtime


def test_read_versions_returns_installed_versions() -> None:
    versions = read_versions()
    assert paddle.__version__ in (versions.get("paddlepaddle"), versions.get("paddlepaddle-gpu"))
    assert {"ppcls", "Python", "nvidia-dali-cuda120", "numpy"} <= set(versions)
    assert all(versions.values())


def test_read_hardware_without_gpu_describes_cpu() -> None:
    facts = read_hardware(Runtime(world_size=2, cores=3, threads=2))
    assert (facts["Processes"], facts["Device"], facts["Cores per process"]) == ("2", "CPU", "3")
    assert facts["Processor"]
    assert facts["Memory"].endswith("GiB")


@pytest.mark.gpu
def test_read_hardware_with_gpu_names_it() -> None:
    facts = read_hardware(Runtime(device="gpu", device_id=0))
    assert facts["Device"].startswith("GPU, NVIDIA")
    assert "CUDA of Paddle" in read_versions()
