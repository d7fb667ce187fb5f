"""Measures how PyTorch trains a model of timm or torchvision on one random batch: ``torch_worker.py FOLDER``.

Like `benchmarks.worker`, this script reads ``task.json`` and writes ``rank_N.json`` in the folder. It
imports nothing from ppcls, because the interpreter with PyTorch may lack the packages that ppcls needs.
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

_MIN_STEPS = 2
# Largest relative difference between the numbers of parameters. MobileNetV3's squeeze-and-excitation rounds
# its channels in another way than timm and torchvision: 0.05 %. A network with other layers differs by more.
_PARAMETERS_TOLERANCE = 0.001


class NotMeasurable(Exception):  # noqa: N818 - a reason, not a fault
    """Raised if the task cannot be measured."""


def build_model(task: dict[str, Any]) -> torch.nn.Module:
    """Returns the model of timm, or of torchvision with the same name, after a check of its parameters.

    Raises:
        NotMeasurable: The library has no such model, or the number of parameters differs.
    """
    if task["timm"] is not None:
        model = build_timm_model(task["timm"], task["classes"])
        return check_parameters(task, model, f"timm's {task['timm']}")
    names = {name.replace("_", ""): name for name in torchvision.models.list_models(torchvision.models)}
    name = names.get(task["model"].lower().replace("_", ""))
    if name is None:
        raise NotMeasurable(f"torchvision {torchvision.__version__} has no model {task['model']}")
    model = torchvision.models.get_model(name, weights=None, num_classes=task["classes"])
    return check_parameters(task, model, f"torchvision's {name}")


def build_timm_model(name: str, classes: int) -> torch.nn.Module:
    """Returns a model of timm.

    Raises:
        NotMeasurable: timm is not installed, or has no such model.
    """
    try:
        import timm
    except ImportError:
        raise NotMeasurable("timm is not installed for this Python interpreter") from None
    if not timm.is_model(name):
        raise NotMeasurable(f"timm {timm.__version__} has no model {name}")
    model: torch.nn.Module = timm.create_model(name, num_classes=classes)
    return model


def check_parameters(task: dict[str, Any], model: torch.nn.Module, name: str) -> torch.nn.Module:
    """Returns the model if it has the number of parameters of the model that ppcls trains.

    Raises:
        NotMeasurable: It does not.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    if abs(count - task["parameters"]) > _PARAMETERS_TOLERANCE * task["parameters"]:
        raise NotMeasurable(
            f"{name} has {count:,} parameters, but {task['model']} has {task['parameters']:,}"
        )
    return model


def build_optimizer(task: dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer, with a rate of 0, in the fastest form of PyTorch."""
    if task["optimizer"] == "AdamW":
        # The fused form is faster than the default, which starts several kernels for many tensors at once.
        return torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.05, fused=True)
    return torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)


def build_step(task: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """Returns a function that runs one update.

    It uses autocast for half precision, loss scaling for float16, and DistributedDataParallel for several
    ranks.
    """
    tf32 = task["format"] == "TF32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = task["cudnn_search"]
    layout = torch.channels_last if task["layout"] == "NHWC" else torch.contiguous_format
    model = build_model(task).to(device).to(memory_format=layout)
    optimizer = build_optimizer(task, model)
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
            local = several and number < task["accumulate"]
            with network.no_sync() if local else nullcontext():
                with torch.autocast(device.type, half) if half is not None else nullcontext():
                    loss = functional.cross_entropy(compiled(image), label)
                scaler.scale(loss / task["accumulate"]).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Measures a task. Returns a sample with the same keys as `ppcls.bench.train.worker.measure_workload`."""
    device = torch.device("cpu")
    if task["device"] == "gpu":
        if not torch.cuda.is_available():
            raise NotMeasurable(f"PyTorch {torch.__version__} finds no GPU")
        device = torch.device("cuda", _rank())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(task["threads"])
    step = build_step(task, device)
    warm = [_run(step, device, 1) for _ in range(task["warm_up"])]
    (last,) = _reduce(device, warm[-1] if warm else task["seconds"])
    steps = task["steps"] or max(_MIN_STEPS, round(task["seconds"] / last))
    _run(step, device, round(task["settle"] / last))
    _reduce(device, 0.0)  # barrier, so that all ranks start together
    computed = time.process_time()
    began = time.perf_counter()
    seconds = _run(step, device, steps)
    used = (time.process_time() - computed) / (time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    (slowest,) = _reduce(device, seconds)
    cores, host = _reduce(device, used, peak, total=True)
    sample = {
        "images_per_second": task["batch_size"] * task["accumulate"] * steps * task["processes"] / slowest,
        "step": slowest / steps,
        "cpu_cores": cores,
        "host_memory": host,
        "steps": steps,
        "execution": f"steps: PyTorch {torch.__version__}, {'compiled' if task['compile'] else 'eager'}",
    }
    if device.type == "cuda":
        memory = [torch.cuda.max_memory_allocated() >> 20, torch.cuda.max_memory_reserved() >> 20]
        sample["gpu_allocated"], sample["gpu_reserved"] = _reduce(device, *memory)
    return sample


def _run(step: Callable[[], None], device: torch.device, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _reduce(device: torch.device, *values: float, total: bool = False) -> list[float]:
    """Returns the maximum of each value over all ranks, or the sum if ``total``."""
    reduced = torch.tensor(values, dtype=torch.float64, device=device)
    if distributed.is_initialized():
        distributed.all_reduce(reduced, distributed.ReduceOp.SUM if total else distributed.ReduceOp.MAX)
    result: list[float] = reduced.tolist()
    return result


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def main(folder: Path) -> int:
    """Writes the sample of the task in a folder, or the versions for an empty task. Returns the exit code."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    answer: dict[str, Any] = {
        "found": {"version": f"{torch.__version__} and torchvision {torchvision.__version__}"}
    }
    if task.get("processes", 1) > 1:
        distributed.init_process_group("nccl" if task["device"] == "gpu" else "gloo")
    try:
        if "model" in task:
            answer = {"found": measure(task)}
    except NotMeasurable as error:
        answer = {"reason": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        answer = {"reason": f"out of GPU memory: {error}"}
    (folder / f"rank_{_rank()}.json").write_text(json.dumps(answer), encoding="utf-8")
    if distributed.is_initialized() and "found" in answer:
        distributed.destroy_process_group()
    return 0 if "found" in answer else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
