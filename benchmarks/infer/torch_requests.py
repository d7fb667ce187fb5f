"""Measures how PyTorch predicts with a model of timm.

Started as ``PYTHON -m benchmarks.infer.torch_requests FOLDER`` with this repository in PYTHONPATH. Reads
``task.json`` and writes ``rank_0.json`` in the folder, as `benchmarks.pytorch.torch_worker` does. It imports
nothing from ppcls, because the interpreter with PyTorch may lack the packages that ppcls needs.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.pytorch.torch_worker import NotMeasurable, build_timm_model

# statistics of the images of ImageNet, on the scale of 8-bit pixels
_MEAN = (123.675, 116.28, 103.53)
_STD = (58.395, 57.12, 57.375)
_FEWEST = 2  # requests; percentiles of one are not defined


class Requests(torch.nn.Module):  # type: ignore[misc]
    """A network that returns the probabilities of the classes.

    Args:
        network: Network for normalized images, [B, 3, H, W].
        pixels: Whether the images are [B, H, W, 3] uint8, as those of a model of ppcls on a GPU. Otherwise,
            they are normalized, [B, 3, H, W] float32.
    """

    def __init__(self, network: torch.nn.Module, pixels: bool) -> None:
        super().__init__()
        self._network = network
        self._pixels = pixels
        self._dtype = next(network.parameters()).dtype
        self.register_buffer("_mean", torch.tensor(_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the probabilities, [B, C] float32."""
        if self._pixels:
            images = (images.permute(0, 3, 1, 2).float() - self._mean) / self._std
        images = images.to(self._dtype).contiguous(memory_format=torch.channels_last)
        return torch.softmax(self._network(images).float(), 1)


def build_request(task: dict[str, Any], device: torch.device) -> Callable[[], torch.Tensor]:
    """Returns a function that predicts the same random batch, from its images to its scores in host memory.

    Raises:
        NotMeasurable: timm is not installed, or has no such model.
    """
    half = device.type == "cuda"
    network = build_timm_model(task["timm"], task["classes"]).eval()
    network = network.to(device, torch.float16 if half else torch.float32)
    network = network.to(memory_format=torch.channels_last)
    model: Callable[..., torch.Tensor] = Requests(network, pixels=half).to(device)
    if task["compile"]:
        model = torch.compile(model, mode="reduce-overhead" if half else "default")  # with CUDA graphs
    height, width = task["size"]
    if half:
        images = torch.randint(0, 256, (task["batch_size"], height, width, 3), dtype=torch.uint8).pin_memory()
    else:
        images = torch.randn(task["batch_size"], 3, height, width)

    def request() -> torch.Tensor:
        with torch.inference_mode():
            return model(images.to(device, non_blocking=True)).cpu()

    return request


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Measures a task. Returns a sample with the keys of `benchmarks.infer.predictions.measure`."""
    device = torch.device("cpu")
    if task["device"] == "gpu":
        if not torch.cuda.is_available():
            raise NotMeasurable(f"PyTorch {torch.__version__} finds no GPU")
        device = torch.device("cuda")
    torch.set_num_threads(task["threads"])
    request = build_request(task, device)
    for _ in range(task["warm_up"]):
        request()
    latencies: list[float] = []
    computed = time.process_time()
    began = time.perf_counter()
    while len(latencies) < max(_FEWEST, task["requests"] or 0) or (
        task["requests"] is None and time.perf_counter() - began < task["seconds"]
    ):
        sent = time.perf_counter()
        request()
        latencies.append(time.perf_counter() - sent)
    wall = time.perf_counter() - began
    used = time.process_time() - computed
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        **{f"p{percent}": percentiles[percent - 1] for percent in (50, 90, 99)},
        "images_per_second": task["batch_size"] * len(latencies) / wall,
        "requests": len(latencies),
        "cpu_cores": used / wall,
        "host_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main(folder: Path) -> int:
    """Writes the sample of the task in a folder. Returns the exit code."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    answer: dict[str, Any]
    try:
        answer = {"found": measure(task)}
    except NotMeasurable as error:
        answer = {"reason": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        answer = {"reason": f"out of GPU memory: {error}"}
    (folder / "rank_0.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0 if "found" in answer else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
