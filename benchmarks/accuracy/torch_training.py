"""Trains a WideResNet on IDX files with PyTorch, as a config of ppcls describes it.

Started as ``PYTHON torch_training.py JOB.json``; prints one line of JSON per evaluation. It imports nothing
from ppcls, because the interpreter with PyTorch may lack the packages that ppcls needs.

Decisions:
- All images are on the device, and they are augmented there in whole batches. This is the fastest way in
  PyTorch for data sets of this size, so the comparison of seconds is fair.
- The initial weights come from ppcls (``job["weights"]``), so both start from the same network.
- Random numbers differ from those of ppcls, so the results differ as those of two seeds do.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

_SLOPE = 0.1  # of the leaky ReLU of ppcls's WideResNet


class TorchWideBlock(nn.Module):  # type: ignore[misc]
    """A residual block of two convolutions; see `ppcls.arch.families.wide_resnet.WideBlock`."""

    def __init__(self, inputs: int, outputs: int, stride: int, first: bool, momentum: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs, momentum=momentum)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, momentum=momentum)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.projected = inputs != outputs
        if self.projected:
            self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.normalized = first or not self.projected

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride]."""
        inner = functional.leaky_relu(self.bn1(x), _SLOPE) if self.normalized else x
        shortcut = self.convShortcut(inner) if self.projected else x
        hidden = functional.leaky_relu(self.bn2(self.conv1(inner)), _SLOPE)
        return shortcut + self.conv2(hidden)


class TorchWideResNet(nn.Module):  # type: ignore[misc]
    """The network of `ppcls.arch.families.wide_resnet.WideResNet`, with the same names of parameters."""

    def __init__(self, classes: int, depth: int, widen_factor: int, momentum: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        channels = 16
        for stage, stride in enumerate((1, 2, 2)):
            width = 16 * widen_factor << stage
            blocks = []
            for block in range((depth - 4) // 6):
                step = stride if block == 0 else 1
                blocks.append(TorchWideBlock(channels, width, step, stage == 0, momentum))
                channels = width
            self.add_module(f"block{stage + 1}", nn.ModuleDict({"layer": nn.Sequential(*blocks)}))
        self.bn1 = nn.BatchNorm2d(channels, momentum=momentum)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, 3, H, W] to logits [B, classes]."""
        x = self.conv1(x)
        for stage in (self.block1, self.block2, self.block3):
            x = stage["layer"](x)
        return self.fc(functional.leaky_relu(self.bn1(x), _SLOPE).mean((2, 3)))


def load_weights(model: nn.Module, file: str) -> None:
    """Loads weights of ppcls, whose linear layers are transposed and whose statistics have other names."""
    named = {}
    for name, value in np.load(file).items():
        name = name.replace("._mean", ".running_mean").replace("._variance", ".running_var")
        named[name] = torch.from_numpy(value.T.copy() if name == "fc.weight" else value)
    counters = {name for name in model.state_dict() if name.endswith("num_batches_tracked")}
    missing = set(model.state_dict()) - counters - set(named)
    if missing:
        raise ValueError(f"{file}: weights are missing: {sorted(missing)[:5]}")
    model.load_state_dict(named, strict=False)


def read_idx(file: str) -> np.ndarray[Any, Any]:
    """Returns the unsigned bytes in an IDX file."""
    content = Path(file).read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    rank = content[3]
    shape = np.frombuffer(content, ">u4", rank, 4).tolist()
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


class Augmenter:
    """Pads, crops, flips and erases images as the transforms of the config do.

    Args:
        job: Settings of the run.
        device: Device of the images.
    """

    def __init__(self, job: dict[str, Any], device: torch.device) -> None:
        self._pad = job["padding"]
        self._erase = job["erase"]
        self._flip = job["flip"]
        self._black = -job["mean"] / job["std"]
        self._generator = torch.Generator(device).manual_seed(job["seed"])
        self._device = device

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator, device=self._device)

    def order(self, images: int) -> Tensor:
        """Returns the order of the images in an epoch."""
        return torch.randperm(images, generator=self._generator, device=self._device)

    def __call__(self, x: Tensor) -> Tensor:
        """Maps normalized images [B, C, H, W] to augmented ones in channels-last memory."""
        count, _, height, width = x.shape
        pad = self._pad
        x = functional.pad(x, (pad, pad, pad, pad), value=self._black)
        starts = (self._uniform(count, 2) * (2 * pad + 1)).long()
        columns = torch.arange(width, device=self._device)
        flipped = (self._uniform(count) < self._flip)[:, None]
        rows = starts[:, :1] + torch.arange(height, device=self._device)
        columns = starts[:, 1:] + torch.where(flipped, width - 1 - columns, columns)
        batch = torch.arange(count, device=self._device)[:, None, None]
        x = x.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]]
        if self._erase is not None:
            x = x.masked_fill(self._rectangles(count, height, width)[..., None], 0.0)
        return x.permute(0, 3, 1, 2)  # channels-last memory

    def _rectangles(self, count: int, height: int, width: int) -> Tensor:
        """Returns which pixels are erased, [B, H, W]; see `ppcls.data.transforms.specs.erasing`."""
        erase = self._erase
        area = (erase["sl"] + (erase["sh"] - erase["sl"]) * self._uniform(count)) * height * width
        lowest = (area / width**2).clamp(erase["r1"], 1 / erase["r1"])
        highest = (height**2 / area).clamp(erase["r1"], 1 / erase["r1"])
        aspect = lowest + (highest - lowest) * self._uniform(count)
        tall = (area * aspect).sqrt().round().clamp(1, height)
        wide = (area / aspect).sqrt().round().clamp(1, width)
        top = ((height - tall + 1) * self._uniform(count)).floor()
        left = ((width - wide + 1) * self._uniform(count)).floor()
        y = torch.arange(height, device=self._device)
        x = torch.arange(width, device=self._device)
        inside_y = (y >= top[:, None]) & (y < (top + tall)[:, None])
        inside_x = (x >= left[:, None]) & (x < (left + wide)[:, None])
        applied = self._uniform(count) < erase["probability"]
        return inside_y[:, :, None] & inside_x[:, None, :] & applied[:, None, None]


def learning_rate(job: dict[str, Any], update: int, per_epoch: int) -> float:
    """Returns the learning rate of an update: a linear warm-up, and then half a cosine."""
    warm = job["warmup_epochs"] * per_epoch
    if update < warm:
        return float(job["learning_rate"] * update / warm)
    progress = (update - warm) / (job["epochs"] * per_epoch - warm)
    return float(job["learning_rate"] * (1 + math.cos(math.pi * progress)) / 2)


def moving_average(model: nn.Module, decay: float, *, warmup: bool) -> AveragedModel:
    """Returns the moving average of weights and statistics, as `ppcls.engine.core.ema` computes it."""
    counted = itertools.count(1)

    def average(averages: list[Tensor], values: list[Tensor], updates: Tensor) -> None:
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


def main(job: dict[str, Any]) -> None:
    """Trains and evaluates."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(job["seed"])
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": None}[job["precision"]]
    start = time.perf_counter()

    def load(part: str) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(read_idx(job[part]["image_file"]).copy()).to(device)
        labels = torch.from_numpy(read_idx(job[part]["label_file"]).copy()).long().to(device)
        images = ((pixels.float() / 255 - job["mean"]) / job["std"])[:, None].expand(-1, 3, -1, -1)
        return images.to(dtype or torch.float32).contiguous(memory_format=torch.channels_last), labels

    images, labels = load("train")
    test_images, test_labels = load("test")
    model = TorchWideResNet(job["classes"], job["depth"], job["widen_factor"], 1 - job["batch_norm_momentum"])
    load_weights(model, job["weights"])
    model = model.to(device).to(memory_format=torch.channels_last)
    average = moving_average(model, **job["ema"]) if job["ema"] else None
    optimizer = torch.optim.SGD(
        model.parameters(),
        job["learning_rate"],
        job["momentum"],
        weight_decay=job["weight_decay"],
        nesterov=job["nesterov"],
    )
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    network = torch.compile(model) if job["compile"] else model
    augment = Augmenter(job, device)
    batch = job["batch_size"]
    per_epoch = -(-len(images) // batch)
    for epoch in range(job["epochs"]):
        order = augment.order(len(images))
        for step in range(per_epoch):
            update = epoch * per_epoch + step
            optimizer.param_groups[0]["lr"] = learning_rate(job, update, per_epoch)
            chosen = order[step * batch : (step + 1) * batch]
            x = augment(images[chosen])
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                logits = network(x)
            loss = functional.cross_entropy(logits.float(), labels[chosen], label_smoothing=job["smoothing"])
            scaler.scale(loss).backward()
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
