"""Augmentation of whole batches on the device with PyTorch, as the transforms of a config do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Augmenter:
    """Pads, crops, flips and erases images.

    Args:
        job: Settings of the run.
        device: Device of the images.
    """

    def __init__(self, job: dict[str, Any], device: torch.device) -> None:
        self._pad = job["padding"]
        self._erase = job["erase"]
        self._flip = job["flip"]
        mean, std = (torch.tensor(job[key], device=device)[:, None, None] for key in ("mean", "std"))
        self._black = -mean / std  # normalized pixels of the padding, [C, 1, 1]
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
        if pad:
            padded = self._black.to(x.dtype).expand(count, -1, height + 2 * pad, width + 2 * pad).clone()
            padded[:, :, pad:-pad, pad:-pad] = x
            x = padded
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


class Mixer:
    """Mixes each image of a batch with the next one: Mixup, CutMix or neither, chosen for each batch.

    See `ppcls.data.transforms.batch`. The random numbers are drawn on the CPU, so that no step waits for the
    GPU.

    Args:
        mix: Probability and alpha of Mixup and CutMix, and the last epoch in which they are applied, or None
            for all epochs; None for no mixing.
        seed: Seed of the random numbers.
    """

    def __init__(self, mix: dict[str, Any] | None, seed: int) -> None:
        self._mix = mix
        self._random = np.random.default_rng(seed)

    def __call__(self, x: Tensor, epoch: int) -> tuple[Tensor, float]:
        """Maps images [B, C, H, W] to mixed ones and the share of the first of the two labels.

        Args:
            x: Images.
            epoch: Number of completed epochs.
        """
        if self._mix is None:
            return x, 1.0
        last_epoch = self._mix["last_epoch"]
        if last_epoch is not None and epoch >= last_epoch:
            return x, 1.0
        mixup = self._mix["mixup"]
        cutmix = self._mix["cutmix"]
        choice = self._random.random()
        if choice < mixup["prob"]:
            share = self._random.beta(mixup["alpha"], mixup["alpha"])
            share = max(share, 1 - share)
            return x * share + x.roll(-1, 0) * (1 - share), share
        if choice < mixup["prob"] + cutmix["prob"]:
            return self._copy_window(x, self._random.beta(cutmix["alpha"], cutmix["alpha"]))
        return x, 1.0

    def _copy_window(self, x: Tensor, share: float) -> tuple[Tensor, float]:
        """Copies a window of the next image into each image; see `__call__`."""
        ranges = []
        for length in x.shape[2:]:
            size = int(length * (1 - share) ** 0.5)
            start = int(length * self._random.random()) - size // 2
            ranges.append((max(start, 0), min(start + size, length)))
        (top, bottom), (left, right) = ranges
        mixed = x.clone()
        mixed[:, :, top:bottom, left:right] = x.roll(-1, 0)[:, :, top:bottom, left:right]
        return mixed, 1 - (bottom - top) * (right - left) / (x.shape[2] * x.shape[3])
