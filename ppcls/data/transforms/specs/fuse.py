"""Neighbouring transforms that DALI does in one operator: pure functions from chain to chain."""

from __future__ import annotations

from collections.abc import Sequence

from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    ToCHWImage,
)


class Fused(Transform):
    """Several neighbours in one; from the op's slot on, their random numbers lie side by side."""

    @property
    def parts(self) -> tuple[Transform, ...]:
        """The transforms that it replaces, in order."""
        raise NotImplementedError

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Random numbers of all parts."""
        return sum(part.draws for part in self.parts)

    def after(self, state: ImageState) -> ImageState:
        """Returns the state after all parts."""
        for part in self.parts:
            state = part.after(state)
        return state


class DecodeRandCrop(Fused):
    """Decodes only the window of a random crop."""

    decode: DecodeImage
    crop: RandCropImage

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Decode, crop."""
        return self.decode, self.crop

    def resized(self, size: int) -> DecodeRandCrop:
        """Returns the transform for another size."""
        return self.model_copy(update={"crop": self.crop.resized(size)})


class DecodeCropFlipNormalize(DecodeRandCrop):
    """Decodes the window of a random crop and gives it mirrored and normalized, plane by plane."""

    flip: RandFlipImage
    normalize: NormalizeImage
    to_chw: ToCHWImage

    @property
    def parts(self) -> tuple[Transform, ...]:
        """All five."""
        return self.decode, self.crop, self.flip, self.normalize, self.to_chw


class CropFlipNormalize(Fused):
    """Cuts the centre, mirrors, normalizes and lays out in one pass over the pixels."""

    crop: CropImage | None = None
    flip: RandFlipImage | None = None
    normalize: NormalizeImage
    to_chw: ToCHWImage | None = None

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Those of the four that are there."""
        return tuple(part for part in (self.crop, self.flip, self.normalize, self.to_chw) if part is not None)


def fuse(ops: Sequence[Op], *, decode_window: bool = True, by_opencv: bool = False) -> tuple[Op, ...]:
    """Replaces runs of transforms by fused ones; the result draws the same numbers from the same slots.

    Args:
        ops: The chain.
        decode_window: Whether a random crop that comes first is cut while decoding.
        by_opencv: Whether OpenCV does what it can between decoding and normalizing, as on a CPU.
    """
    fused = _fuse_normalize(_fuse_decode(tuple(ops)) if decode_window else tuple(ops))
    return _fuse_planes(fused) if by_opencv else fused


def _fuse_decode(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    if len(ops) >= 2:
        decode, crop = ops[0].spec, ops[1].spec
        if isinstance(decode, DecodeImage) and isinstance(crop, RandCropImage):
            fused = DecodeRandCrop(decode=decode, crop=crop)
            return Op(fused, ops[1].slot, _positions(ops[:2])), *ops[2:]
    return ops


def _fuse_normalize(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    at = next((i for i, op in enumerate(ops) if isinstance(op.spec, NormalizeImage)), None)
    if at is None:
        return ops
    begin, end = at, at + 1
    parts: dict[str, Transform] = {"normalize": ops[at].spec}
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
            DecodeRandCrop(decode=DecodeImage(channels=3, dtype="uint8") as decode, crop=crop),
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
