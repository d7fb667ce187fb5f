"""The keys of ``Global`` for the process of a run: device, threads, memory and timeouts.

Paddle reads most of them when it is imported, so this module must not import Paddle.
"""

from __future__ import annotations

from typing import Literal

from ppcls.config.base.fields import Part, Positive, Workers
from ppcls.config.base.section import Section


class RuntimeSettings(Section):
    """Device, threads, memory and timeouts of a process."""

    device: Literal["auto", "gpu", "cpu"] = "auto"
    """Device that trains and evaluates the model; `auto`: a GPU if there is one, else the CPU."""
    deterministic: bool = False
    """Produce bit-identical results in each run on the same machine. Slower on a GPU."""
    cpu_threads: Workers | None = None
    """Number of CPU threads of Paddle per process; default: the number of cores that the process may use; 1
    on a GPU with DALI, where Paddle has no work for more."""
    gpu_memory_fraction: Part | None = None
    """Maximum share of the GPU's memory that Paddle may allocate per process, 0 to 1; default: 0.8 with DALI
    on a GPU, else no limit. Takes precedence over FLAGS_fraction_of_gpu_memory_to_use."""
    use_dali: bool = False
    """Load images with NVIDIA DALI instead of paddle.io."""
    hang_timeout: Positive | None = 1800
    """Maximum time in seconds for a step or an evaluation batch, also in tools/eval.py; null for no limit. If
    a process exceeds the limit, all processes end, and the log shows their stacks. The limit is tripled until
    the first step is finished, and for other work such as checkpoints (docs/gpu.md). Tools that predict,
    export or measure have no limit."""
