from __future__ import annotations

import paddle
import pytest

from ppcls.report.about import hardware, versions
from ppcls.runtime.start import Runtime


def test_versions_are_those_that_run() -> None:
    found = versions()
    assert paddle.__version__ in (found.get("paddlepaddle"), found.get("paddlepaddle-gpu"))
    assert {"ppcls", "Python", "nvidia-dali-cuda120", "numpy"} <= set(found)
    assert all(found.values())


def test_hardware_is_told_without_a_gpu() -> None:
    found = hardware(Runtime(world_size=2, cores=3, threads=2))
    assert (found["Processes"], found["Device"], found["Cores a process"]) == ("2", "CPU", "3")
    assert found["Processor"]
    assert found["Memory"].endswith("GiB")


@pytest.mark.gpu
def test_hardware_names_the_gpu() -> None:
    found = hardware(Runtime(device="gpu", device_id=0))
    assert found["Device"].startswith("GPU, NVIDIA")
    assert "CUDA of Paddle" in versions()
