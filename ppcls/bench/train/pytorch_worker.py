"""Measures PyTorch's training of one of torchvision's models on one random batch: ``worker.py FOLDER``.

Reads ``task.json`` and writes ``rank_N.json`` in the folder, as `ppcls.bench.worker` does. It imports nothing
of ppcls, for the Python that has PyTorch may have nothing of what ppcls needs.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

_LEAST = 2  # steps that are timed


class Refused(Exception):  # noqa: N818 - a reason, not a fault
    """What can't be measured, and why."""


def build_model(task: dict[str, Any]) -> torch.nn.Module:
    """Builds torchvision's model of the same name, and shows that it is the same.

    Raises:
        Refused: There is none, or it has another number of parameters.
    """
    known = {name.replace("_", ""): name for name in torchvision.models.list_models(torchvision.models)}
    name = known.get(task["model"].lower().replace("_", ""))
    if name is None:
        raise Refused(f"torchvision {torchvision.__version__} has no {task['model']}")
    model: torch.nn.Module = torchvision.models.get_model(name, weights=None, num_classes=task["classes"])
    count = sum(each.numel() for each in model.parameters())
    if count != task["parameters"]:
        raise Refused(
            f"torchvision's {name} has {count:,} parameters, and {task['model']} has {task['parameters']:,}"
        )
    return model


def build_step(task: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """Returns what takes one optimizer update: autocast, a scaled loss for float16, DDP for several."""
    tf32 = task["format"] == "TF32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = task["cudnn_search"]
    layout = torch.channels_last if task["layout"] == "NHWC" else torch.contiguous_format
    model = build_model(task).to(device).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)
    network: Any = model
    several = task["processes"] > 1
    if several:
        network = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    compiled = torch.compile(network) if task["compile"] else network
    half = getattr(torch, task["format"]) if task["format"] in ("float16", "bfloat16") else None
    scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)
    shape = (task["batch_size"], 3, *task["size"])
    image = torch.rand(shape, device=device).to(memory_format=layout)
    label = torch.arange(task["batch_size"], device=device) % task["classes"]

    def step() -> None:
        for number in range(1, task["accumulate"] + 1):
            alone = several and number < task["accumulate"]
            with network.no_sync() if alone else nullcontext():
                with torch.autocast(device.type, half) if half is not None else nullcontext():
                    loss = functional.cross_entropy(compiled(image), label)
                scaler.scale(loss / task["accumulate"]).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Measures a task; what it returns is named as in `ppcls.bench.train.worker.measure`."""
    device = torch.device("cpu")
    if task["device"] == "gpu":
        if not torch.cuda.is_available():
            raise Refused(f"PyTorch {torch.__version__} finds no GPU")
        device = torch.device("cuda", _rank())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(task["threads"])
    step = build_step(task, device)
    warm = [_seconds(step, device, 1) for _ in range(task["warm_up"])]
    (last,) = _over_ranks([warm[-1] if warm else task["seconds"]], device, "max")
    steps = task["steps"] or max(_LEAST, round(task["seconds"] / last))
    _seconds(step, device, round(task["settle"] / last))
    _over_ranks([0.0], device, "max")  # all begin together
    computed, began = time.process_time(), time.perf_counter()
    taken = _seconds(step, device, steps)
    used = (time.process_time() - computed) / (time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    (slowest,) = _over_ranks([taken], device, "max")
    cores, host = _over_ranks([used, peak], device, "sum")
    found = {
        "images_per_second": task["batch_size"] * task["accumulate"] * steps * task["processes"] / slowest,
        "step": slowest / steps,
        "cpu_cores": cores,
        "host_memory": host,
        "steps": steps,
        "execution": f"steps: PyTorch {torch.__version__}, {'compiled' if task['compile'] else 'eager'}",
    }
    if device.type == "cuda":
        of_gpu = [torch.cuda.max_memory_allocated() >> 20, torch.cuda.max_memory_reserved() >> 20]
        found["gpu_allocated"], found["gpu_reserved"] = _over_ranks(of_gpu, device, "max")
    return found


def _seconds(step: Callable[[], None], device: torch.device, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _over_ranks(values: list[float], device: torch.device, how: str) -> list[float]:
    """Returns the largest of each value over all ranks, or the sum."""
    if not distributed.is_initialized():
        return values
    each = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(each, distributed.ReduceOp.MAX if how == "max" else distributed.ReduceOp.SUM)
    found: list[float] = each.tolist()
    return found


def _rank() -> int:
    """Returns this process's place among those of one machine."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def main(folder: Path) -> int:
    """Does the task of a folder; returns the exit code."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    said: dict[str, Any]
    if task["processes"] > 1:
        distributed.init_process_group("nccl" if task["device"] == "gpu" else "gloo")
    try:
        said = {"found": measure(task)}
    except Refused as error:
        said = {"reason": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        said = {"reason": f"out of GPU memory: {error}"}
    (folder / f"rank_{_rank()}.json").write_text(json.dumps(said), encoding="utf-8")
    if distributed.is_initialized() and "found" in said:
        distributed.destroy_process_group()
    return 0 if "found" in said else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
