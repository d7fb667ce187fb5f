"""docs/data.md's example of a transform: run as it stands there, and held to what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import test_parity
from nvidia.dali import fn
from paths import ROOT
from pydantic import Field

from ppcls.config.base.fields import Fraction
from ppcls.config.load import validate
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms import dali_ops, numpy_ops
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import bernoulli, need_8_bit, need_hwc
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.registry import TRANSFORMS

DOCUMENT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
# What the files that it names have imported already.
IMPORTED: dict[str, Any] = {
    **{"np": np, "fn": fn, "Any": Any, "ClassVar": ClassVar, "Field": Field, "Fraction": Fraction},
    **{"Transform": Transform, "ImageState": ImageState, "need_hwc": need_hwc, "need_8_bit": need_8_bit},
    **{"decide": decide, "bernoulli": bernoulli, "Draws": Draws, "Sides": Sides, "Decisions": Decisions},
    **{"apply": numpy_ops.apply, "Array": np.ndarray, "decoded": test_parity.decoded},
    **{"lower": dali_ops.lower, "LoweringContext": dali_ops.LoweringContext, "Node": dali_ops.Node},
}


@pytest.fixture(scope="module")
def example() -> tuple[type[Transform], list[test_parity.Case]]:
    cases: dict[str, list[test_parity.Case]] = {}
    names = {**IMPORTED, "ALONE": cases, "__name__": "example"}
    exec(compile(CODE, "docs/data.md", "exec"), names)
    ((name, own),) = cases.items()
    return names[name], own


def planned(case: test_parity.Case) -> tuple[Op, ...]:
    return test_parity.plan(case.chain)


def test_it_is_short() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) < 40


def test_both_backends_agree(example: Any, photos: dict[str, Path]) -> None:
    spec, cases = example
    together = test_parity.together(map(planned, cases), photos, "cpu")
    for case in cases:
        assert {each.kind for each in case.chain} == {"DecodeImage", spec.__name__}
        test_parity.compare(case, together.images(planned(case)), photos)


@pytest.mark.gpu
def test_a_gpu_agrees(example: Any, photos: dict[str, Path]) -> None:
    together = test_parity.together(map(planned, example[1]), photos, "gpu")
    for case in example[1]:
        test_parity.compare_as_wholes(case, together.images(planned(case)), photos)


def test_it_does_something(example: Any, photos: dict[str, Path]) -> None:
    always = test_parity.plan(example[1][-1].chain)
    file = photos["png-odd"].read_bytes()
    draws = np.zeros(1, np.float32)
    decoded, changed = (numpy_ops.run(ops, file, draws) for ops in (always[:1], always))
    np.testing.assert_array_equal(changed, 255 - decoded)


def test_any_config_may_ask_for_it(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = example
    monkeypatch.setattr(TRANSFORMS, "_entries", {**TRANSFORMS._entries, spec.__name__: spec})
    chain = ["DecodeImage", {"ResizeImage": {"size": 8}}, {spec.__name__: {"prob": 0.3}}, "NormalizeImage"]
    tree = {
        "Arch": {"name": "ResNet18"},
        "Optimizer": {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 0.1}},
        "DataLoader": {
            "Train": {
                "dataset": {"name": "ImageFolderDataset", "image_root": ".", "transform_ops": chain},
                "sampler": {"batch_size": 2},
            }
        },
    }
    train = validate(tree, "example").DataLoader.Train
    assert train is not None
    ops = test_parity.plan(train.dataset.transform_ops)
    assert ops[2].spec == spec(prob=0.3)
    check_numpy(ops, "chain")
    for device_id in (None, 0):
        check_dali(fuse(ops), "chain", DaliSettings(device_id))


def test_the_table_names_what_there_is() -> None:
    section = DOCUMENT.split("## Transforms")[1].split("## Samplers")[0]
    families = section.split("| family |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", families)) == set(TRANSFORMS)
