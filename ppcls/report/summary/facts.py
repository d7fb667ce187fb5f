"""Facts that decide the speed of a run, for the titles of charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppcls.config.base.yaml import parse_yaml
from ppcls.errors import counted

_SIZES = {  # keys of samplers, and what they count
    "global_batch_size": "over all processes",
    "batch_size": "per process",
    "first_bs": "at first",
}


def describe_device(hardware: Mapping[str, str]) -> str:
    """Returns the GPU, or the processor and its number of cores.

    Args:
        hardware: Result of `ppcls.report.summary.environment.read_hardware`.
    """
    device = hardware.get("Device", "")
    if device != "CPU":  # a GPU, with its name
        return device or hardware.get("Processor", "unknown device")
    cores = hardware.get("Cores per process")
    suffix = f" ({counted(int(cores), 'core')})" if cores else ""
    return f"CPU: {hardware.get('Processor', 'unknown')}{suffix}"


def read_batch_size(config: str) -> str:
    """Returns the batch size of a config's training, such as ``32 per process``; empty if it has none.

    Args:
        config: Config as YAML text.
    """
    section: Any = parse_yaml(config, "config of the results")
    for name in ("DataLoader", "Train", "sampler"):
        section = section.get(name) if isinstance(section, dict) else None
    if isinstance(section, dict):
        for name, meaning in _SIZES.items():
            if section.get(name):
                return f"{section[name]} {meaning}"
    return ""
