"""Facts for the titles of charts."""

from __future__ import annotations

import pytest

from ppcls.report.html import RunInfo
from ppcls.report.summary.facts import describe_device, read_batch_size


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        ({"Device": "CPU", "Processor": "some", "Cores per process": "2"}, "CPU: some (2 cores)"),
        ({"Device": "CPU"}, "CPU: unknown"),
        ({"Device": "GPU, H100, 80 GiB, compute 9.0", "Processor": "some"}, "GPU, H100, 80 GiB, compute 9.0"),
        ({}, "unknown device"),
    ],
)
def test_describe_device(hardware: dict[str, str], text: str) -> None:
    assert describe_device(hardware) == text


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        ("{batch_size: 7}", "7 per process"),
        ("{batch_size: null, global_batch_size: 64}", "64 over all processes"),
        ("{first_bs: 9}", "9 at first"),
        ("null", ""),
    ],
)
def test_read_batch_size(sampler: str, text: str) -> None:
    config = f"DataLoader: {{Train: {{sampler: {sampler}}}}}"
    assert read_batch_size(config) == text
    title = RunInfo("ResNet18, output/x", config, hardware={"Device": "CPU"}).title
    assert title.startswith("ResNet18, output/x, CPU: unknown, ")
    assert (f"batch size: {text}" in title) == bool(text)


def test_read_batch_size_of_other_text_is_empty() -> None:
    assert (read_batch_size("- 1"), read_batch_size("")) == ("", "")
