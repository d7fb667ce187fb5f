"""Trains a network on IDX files with PyTorch, as a config of ppcls describes it.

Started as ``PYTHON torch_training.py JOB.json`` with this repository in PYTHONPATH; prints one line of JSON
per evaluation. It imports nothing from ppcls, because the interpreter with PyTorch may lack the packages that
ppcls needs.

Decisions:
- Images of another size than that of ``ResizeImage`` are resized once, when they are loaded.
- All images are on the device, and they are augmented there in whole batches. This is the fastest way in
  PyTorch for data sets of this size, so the comparison of seconds is fair.
- The initial weights and the learning rate of each update come from ppcls, so both start from the same
  network and follow the same schedule.
- Random numbers differ from those of ppcls, so the results differ as those of two seeds do.
- PyTorch has only autocast, which corresponds to O1. It is also used if the config has O2.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.accuracy.resize import resize
from benchmarks.accuracy.torch_augment import Augmenter, Mixer
from benchmarks.accuracy.torch_networks import build_network


def read_idx(file: str) -> np.ndarray[Any, Any]:
    """Returns the unsigned bytes in an IDX file."""
    content = Path(file).read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    rank = content[3]
    shape = np.frombuffer(content, ">u4", rank, 4).tolist()
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def moving_average(model: nn.Module, decay: float, *, warmup: bool) -> AveragedModel:
    """Returns the moving average of weights and statistics, as `ppcls.engine.core.ema` computes it."""
    counted = itertools.count(1)

    def average(averages: list[Tensor], values: list[Tensor], updates: Tensor) -> None:
        if not averages[0].is_floating_point():
            return  # BatchNorm's counters, which are passed in a call of their own, have no effect
        done = next(counted)  # to read ``updates`` would wait for the GPU in each step
        current = min(decay, (1 + done) / (10 + done)) if warmup else decay
        get_ema_multi_avg_fn(current)(averages, values, updates)

    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)


@torch.no_grad()  # type: ignore[untyped-decorator]
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype | None) -> float:
    """Returns the share of the images whose highest score is that of their label."""
    model.eval()
    right = 0
    for part, target in zip(images.split(500), labels.split(500), strict=True):
        with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
            right += int((model(part).argmax(1) == target).sum())
    model.train()
    return right / len(labels)


def build_optimizer(model: nn.Module, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """Returns SGD with momentum or AdamW; the parameters in ``no_decay`` have no weight decay."""
    exempt = set(settings["no_decay"])
    groups: list[dict[str, Any]] = [
        {"params": [value for name, value in model.named_parameters() if name not in exempt]},
        {
            "params": [value for name, value in model.named_parameters() if name in exempt],
            "weight_decay": 0.0,
        },
    ]
    groups = [group for group in groups if group["params"]]
    decay = settings["weight_decay"]
    if settings["name"] == "AdamW":
        betas = settings["beta1"], settings["beta2"]
        return torch.optim.AdamW(groups, betas=betas, eps=settings["epsilon"], weight_decay=decay)
    momentum = settings["momentum"]
    return torch.optim.SGD(groups, momentum=momentum, nesterov=settings["use_nesterov"], weight_decay=decay)


def mixed_loss(logits: Tensor, labels: Tensor, share: float, smoothing: float) -> Tensor:
    """Returns the cross-entropy; ``share`` is the weight of an image's own label in a mixed image."""
    logits = logits.float()
    loss = functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    if share == 1:
        return loss
    other = functional.cross_entropy(logits, labels.roll(-1, 0), label_smoothing=smoothing)
    return loss * share + other * (1 - share)


@contextmanager
def moved(model: nn.Module, rho: float) -> Iterator[None]:
    """Moves the weights by ``rho`` in the direction of the gradient, for the second pass of SAM.

    The gradient is cleared. In the end, the weights and the statistics of BatchNorm return. If the gradient
    is not finite, that of the second pass is not finite either, so the scaler skips the update.
    """
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    with torch.no_grad():
        copies = [(tensor, tensor.clone()) for tensor in (*weights, *model.buffers())]
        factor = rho / (get_total_norm([weight.grad for weight in weights]) + 1e-12)
        for weight in weights:
            weight.add_(weight.grad * factor)
            weight.grad = None
    yield
    with torch.no_grad():
        for tensor, copy in copies:
            tensor.copy_(copy)


def main(job: dict[str, Any]) -> None:
    """Trains and evaluates."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(job["seed"])
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": None}[job["precision"]]
    start = time.perf_counter()

    def load(part: str) -> tuple[Tensor, Tensor]:
        images = resize(read_idx(job[part]["image_file"]), job[part]["size"])
        pixels = torch.from_numpy(images.copy()).to(device)
        labels = torch.from_numpy(read_idx(job[part]["label_file"]).copy()).long().to(device)
        if pixels.ndim == 3:  # grey images
            pixels = pixels[..., None].expand(-1, -1, -1, 3)
        mean, std = (torch.tensor(job[key], device=device) for key in ("mean", "std"))
        normalized = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
        normalized = normalized.to(dtype or torch.float32)
        return normalized.contiguous(memory_format=torch.channels_last), labels

    images, labels = load("train")
    test_images, test_labels = load("test")
    model = build_network(job["network"], job["classes"], job["weights"])
    model = model.to(device).to(memory_format=torch.channels_last)
    average = moving_average(model, **job["ema"]) if job["ema"] else None
    optimizer = build_optimizer(model, job["optimizer"])
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    network = torch.compile(model) if job["compile"] else model
    augment = Augmenter(job, device)
    mix = Mixer(job["mix"], job["seed"])
    sam = job["sam"]
    gpus = [torch.cuda.current_device()] if device.type == "cuda" else []

    def add_gradient(x: Tensor, labels: Tensor, share: float) -> Tensor:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            logits = network(x)
        loss = mixed_loss(logits, labels, share, job["smoothing"])
        scaler.scale(loss).backward()
        return loss

    batch = job["batch_size"]
    per_epoch = len(images) // batch if job["drop_last"] else -(-len(images) // batch)
    for epoch in range(job["epochs"]):
        order = augment.order(len(images))
        for step in range(per_epoch):
            for group in optimizer.param_groups:
                group["lr"] = job["learning_rates"][epoch * per_epoch + step]
            chosen = order[step * batch : (step + 1) * batch]
            x, share = mix(augment(images[chosen]), epoch)
            twice = sam is not None and epoch + 1 >= sam["first_epoch"]
            with torch.random.fork_rng(gpus, enabled=twice):  # both passes draw the same numbers
                loss = add_gradient(x, labels[chosen], share)
            if twice:
                with moved(model, sam["rho"]):
                    add_gradient(x, labels[chosen], share)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if average is not None:
                average.update_parameters(model)
        if (epoch + 1) % job["eval_interval"] == 0 or epoch + 1 == job["epochs"]:
            top1 = accuracy(average or model, test_images, test_labels, dtype)
            record = {
                "epoch": epoch + 1,
                "loss": loss.item(),
                "top1": top1,
                "seconds": time.perf_counter() - start,
            }
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
