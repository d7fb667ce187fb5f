"""Errors for transforms that a backend does not support."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from nvidia.dali import fn

from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.supported import check_dali, check_numpy, transforms_of
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.dali_ops import LoweringContext, lower
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
    plan_chain,
)
from ppcls.data.transforms.specs.decisions import Decisions
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.errors import UserError

PATH = "DataLoader.Train.dataset.transform_ops"


class _Same(Transform, abstract=True):
    def after(self, state: ImageState) -> ImageState:
        return state


class OnlyNumpy(_Same, abstract=True):
    """Has no DALI form."""


class OnlyDali(_Same, abstract=True):
    """Has no form in numpy."""


class OnlyOnCpu(_Same, abstract=True):
    """Asks for an operator that DALI has on the CPU alone."""


class Returning(_Same, abstract=True):
    """Comes back from the GPU, which DALI's static executor refuses."""


class Undecided(_Same, abstract=True):
    """Takes random numbers, and nothing says what they mean."""

    draws: ClassVar[int] = 1


@apply.register(OnlyNumpy)
@apply.register(OnlyOnCpu)
@apply.register(Returning)
@apply.register(Undecided)
def _(spec: Transform, image: np.ndarray, decided: Decisions) -> Any:
    return image


@lower.register
def _(spec: OnlyDali, node: Any, place: LoweringContext) -> Any:
    return node


@lower.register
def _(spec: OnlyOnCpu, node: Any, place: LoweringContext) -> Any:
    return fn.peek_image_shape(node)


@lower.register
def _(spec: Returning, node: Any, place: LoweringContext) -> Any:
    return node.cpu()


@lower.register
def _(spec: Undecided, node: Any, place: LoweringContext) -> Any:
    return node


def around(spec: Transform) -> Any:
    return plan_chain(
        [DecodeImage(), RandCropImage(size=(8, 8)), spec, NormalizeImage(), ToCHWImage()], "CHW"
    )


@pytest.mark.parametrize(("device_id", "where"), [(None, "a CPU"), (0, "a GPU")])
def test_check_dali_rejects_transform_without_dali_form(device_id: int | None, where: str) -> None:
    with pytest.raises(UserError) as raised:
        check_dali(around(OnlyNumpy()), PATH, DaliSettings(device_id))
    assert str(raised.value) == (
        f"{PATH}[2].OnlyNumpy: not supported by DALI on {where}: the DALI backend does not implement "
        "OnlyNumpy; set Global.use_dali=False to use paddle.io, or remove this transform "
        "(docs/data.md describes how to implement it for DALI)"
    )


def test_check_dali_rejects_operator_missing_on_device() -> None:
    check_dali(around(OnlyOnCpu()), PATH, DaliSettings(None))
    with pytest.raises(UserError) as raised:
        check_dali(around(OnlyOnCpu()), PATH, DaliSettings(0))
    assert str(raised.value).startswith(
        f"{PATH}[2].OnlyOnCpu: not supported by DALI on a GPU: "
        "its operator peek_image_shape does not support the device 'gpu'; set Global.use_dali=False"
    )


def test_check_dali_suggests_dynamic_executor() -> None:
    check_dali(around(Returning()), PATH, DaliSettings(0))
    check_dali(around(Returning()), PATH, DaliSettings(None, exec_dynamic=False))
    with pytest.raises(UserError) as raised:
        check_dali(around(Returning()), PATH, DaliSettings(0, exec_dynamic=False))
    said = str(raised.value)
    assert said.startswith(
        f"{PATH}[2].Returning: not supported by DALI on a GPU: This pipeline doesn't support"
    )
    assert "; set DataLoader.Train.loader.dali.exec_dynamic=True, or set Global.use_dali=False" in said
    assert "\n" not in said


def test_checks_reject_transform_without_decisions() -> None:
    for check in (lambda ops: check_dali(ops, PATH, DaliSettings(None)), lambda ops: check_numpy(ops, PATH)):
        with pytest.raises(
            UserError, match=r"transform_ops\[2\]\.Undecided: .* decide has no implementation for Undecided"
        ):
            check(around(Undecided()))


def test_check_numpy_rejects_transform_without_numpy_form() -> None:
    check_dali(around(OnlyDali()), PATH, DaliSettings(None))
    with pytest.raises(UserError) as raised:
        check_numpy(around(OnlyDali()), PATH)
    assert str(raised.value) == (
        f"{PATH}[2].OnlyDali: not supported by paddle.io: the NumPy backend does not implement OnlyDali; "
        "set Global.use_dali=True, or remove this transform"
    )


CHAINS: list[list[Transform]] = [
    [DecodeImage(), RandCropImage(size=(8, 8)), RandFlipImage(), NormalizeImage()],
    [DecodeImage(), ResizeImage(resize_short=9), CropImage(size=(8, 8)), NormalizeImage(), ToCHWImage()],
    [DecodeImage(), ResizeImage(size=(8, 8), backend="pil"), RandFlipImage(flip_code=0), NormalizeImage()],
]


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("chain", CHAINS, ids=len)
def test_checks_accept_shipped_transforms(chain: list[Transform], layout: Any) -> None:
    ops = plan_chain(chain, layout)
    check_numpy(ops, PATH)
    check_dali(ops, PATH, DaliSettings(None))
    check_dali(ops, PATH, DaliSettings(0))  # builds the GPU's graph, which needs no GPU


def test_transforms_of_returns_positions() -> None:
    normalize, to_chw = NormalizeImage(), ToCHWImage()
    chain = [DecodeImage(), CropImage(size=(8, 8)), normalize]
    assert [transforms_of(op) for op in fuse(plan_chain(chain, "CHW"))] == [
        [(0, chain[0])],
        [(1, chain[1]), (2, normalize), (None, to_chw)],
    ]
    with_chw = [*chain, to_chw]
    assert transforms_of(fuse(plan_chain(with_chw, "CHW"))[-1])[-1] == (3, to_chw)
    assert transforms_of(fuse(plan_chain(with_chw, "HWC"))[-1])[-1] == (2, normalize)
