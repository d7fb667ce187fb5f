"""Fuses neighbouring transforms that one operator can execute, and changes the input size of chains.

Only DALI's loader fuses transforms. A fused transform must return the same pixels as its parts, because
training with one loader and evaluating with the other would otherwise use different images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.specs.basic import (
    CropImage,
    DecodeImage,
    DecodeNumpy,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.chain import Op
from ppcls.data.transforms.specs.decisions import (
    Decisions,
    Draws,
    Sides,
    checked_sides_after,
    count_decisions,
    decide,
    sides_after,
)


class FusedTransform(Transform, abstract=True):
    """Base class of transforms that combine several neighbouring transforms of a chain.

    The parts use consecutive random numbers, in the order of the parts.
    """

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Transforms that this one replaces, in order."""
        parts = (getattr(self, name) for name in type(self).model_fields)
        return tuple(part for part in parts if part is not None)

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers of all parts."""
        return sum(part.draws for part in self.parts)

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of images after all parts."""
        for part in self.parts:
            state = part.after(state)
        return state


@decide.register
def decide_parts(spec: FusedTransform, draws: Draws, sides: Sides) -> Decisions:
    """Returns the decisions of all parts, one after the other."""
    decisions: Decisions = ()
    slot = 0
    for part in spec.parts:
        of_part = decide(part, draws[:, slot : slot + part.draws], sides)
        sides = checked_sides_after(part, sides, of_part)
        decisions = decisions + of_part
        slot = slot + part.draws
    return decisions


@sides_after.register
def sides_after_parts(spec: FusedTransform, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of images after all parts, [N, 2] int64."""
    remaining = iter(decisions)
    for part in spec.parts:
        sides = sides_after(part, sides, tuple(islice(remaining, count_decisions(part))))
    return sides


class DecodeRandCrop(FusedTransform, abstract=True):
    """Decodes only the window of a random crop, and resizes it."""

    decode: DecodeImage | DecodeNumpy
    crop: RandCropImage

    def resized(self, size: int) -> DecodeRandCrop:
        """Returns the transform with another size of the crop."""
        return self.model_copy(update={"crop": self.crop.resized(size)})


class DecodeCropFlipNormalize(DecodeRandCrop, abstract=True):
    """Decodes the window of a random crop, and flips and normalizes each colour plane of the window."""

    flip: RandFlipImage
    normalize: NormalizeImage
    to_chw: ToCHWImage


class CropFlipNormalize(FusedTransform, abstract=True):
    """Crops the centre, flips, normalizes and transposes in one pass over the pixels."""

    crop: CropImage | None = None
    flip: RandFlipImage | None = None
    normalize: NormalizeImage
    to_chw: ToCHWImage | None = None


def fuse(ops: Sequence[Op], *, decode_window: bool = True, by_opencv: bool = False) -> tuple[Op, ...]:
    """Replaces sequences of transforms by fused transforms, which use the same random numbers.

    Args:
        ops: The chain.
        decode_window: Whether to decode only the window of a random crop that follows the decoder.
        by_opencv: Whether to use OpenCV for the work between decoding and normalizing if possible, which is
            faster on a CPU.
    """
    # In this order, because the last function recognizes the results of the others.
    fused = _fuse_normalize(_fuse_decode(tuple(ops), arrays=by_opencv) if decode_window else tuple(ops))
    return _fuse_planes(fused) if by_opencv else fused


def _fuse_decode(ops: tuple[Op, ...], *, arrays: bool) -> tuple[Op, ...]:
    """Fuses a decoder with a random crop.

    Args:
        arrays: Whether to do this for arrays too. On a GPU, a whole array is copied to the device anyway.
    """
    match [op.spec for op in ops[:2]]:
        case [
            (DecodeImage(expected_size=None) | DecodeNumpy(expected_size=None)) as decode,
            RandCropImage() as crop,
        ] if arrays or isinstance(decode, DecodeImage):
            fused = DecodeRandCrop(decode=decode, crop=crop)
            return Op(fused, ops[1].slot, _positions(ops[:2])), *ops[2:]
    return ops


def _fuse_normalize(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    at = next((i for i, op in enumerate(ops) if isinstance(op.spec, NormalizeImage)), None)
    if at is None:
        return ops
    begin = at
    end = at + 1
    parts: dict[str, Transform] = {"normalize": ops[at].spec}
    # DALI's crop_mirror_normalize flips only horizontally (flip code 1).
    if begin and isinstance(flip := ops[begin - 1].spec, RandFlipImage) and flip.flip_code == 1:
        parts["flip"], begin = flip, begin - 1
    slot = ops[begin].slot
    if begin and isinstance(crop := ops[begin - 1].spec, CropImage):
        parts["crop"], begin = crop, begin - 1
    if end < len(ops) and isinstance(to_chw := ops[end].spec, ToCHWImage):
        parts["to_chw"], end = to_chw, end + 1
    fused = CropFlipNormalize.model_validate(parts)
    return (*ops[:begin], Op(fused, slot, _positions(ops[begin:end])), *ops[end:])


def _fuse_planes(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    match [op.spec for op in ops]:
        case [
            DecodeRandCrop(
                decode=(
                    DecodeImage(channels=3, dtype="uint8") | DecodeNumpy(channels=3, dtype="uint8")
                ) as decode,
                crop=crop,
            ),
            CropFlipNormalize(
                crop=None,
                flip=RandFlipImage() as flip,
                normalize=NormalizeImage(output_fp16=False, channel_num=None) as normalize,
                to_chw=ToCHWImage() as to_chw,
            ),
        ] if crop.backend == "cv2":
            fused = DecodeCropFlipNormalize(
                decode=decode, crop=crop, flip=flip, normalize=normalize, to_chw=to_chw
            )
            return (Op(fused, ops[0].slot, _positions(ops)),)
    return ops


def _positions(ops: Sequence[Op]) -> tuple[int, ...]:
    return tuple(position for op in ops for position in op.positions)


class VariableSize(Transform, abstract=True):
    """A transform that resizes images to a size that changes from step to step."""

    part: Any

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers of the resizing transform."""
        return int(self.part.draws)

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Transforms that the resizing transform executes, in order."""
        parts: tuple[Transform, ...] = self.part.parts
        return parts

    @property
    def crop(self) -> ResizeImage | RandCropImage:
        """Transform that sets the size."""
        transform: ResizeImage | RandCropImage = (
            self.part.crop if isinstance(self.part, DecodeRandCrop) else self.part
        )
        return transform

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of images after the transform."""
        after: ImageState = self.part.after(state)
        return after


@decide.register
def decide_variable_size(spec: VariableSize, draws: Draws, sides: Sides) -> Decisions:
    """Returns the decisions of the resizing transform, and the size (width, height), [N, 2] float32."""
    size = np.array(spec.crop.size, np.float32)
    return *decide(spec.part, draws, sides), np.tile(size, (len(sides), 1))


@sides_after.register
def sides_after_variable_size(spec: VariableSize, sides: Sides, decided: Decisions) -> Sides:
    """Returns the heights and widths of resized images, [N, 2] int64."""
    return sides_after(spec.part, sides, decided[:-1])


@lru_cache(maxsize=64)
def resize_chain(ops: tuple[Op, ...], size: int) -> tuple[Op, ...]:
    """Returns the chain with another input size. The last op that sets the size becomes a `VariableSize`.

    Args:
        ops: The chain, before or after fusion.
        size: Side of the square images in pixels.

    Raises:
        ValueError: No transform of the chain resizes to a fixed size.
    """
    for at in reversed(range(len(ops))):
        spec = ops[at].spec
        changed = (spec.part if isinstance(spec, VariableSize) else spec).resized(size)
        if changed is not None:
            return *ops[:at], replace(ops[at], spec=VariableSize(part=changed)), *ops[at + 1 :]
    raise ValueError("expected a chain with RandCropImage, or with ResizeImage and size, found neither")
