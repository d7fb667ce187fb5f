"""The example of a transform in docs/data.md: the code runs as printed and does what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from paths import ROOT

from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms import numpy_ops
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.fuse import fuse
from ppcls.recipe.load import validate
from ppcls.registry import TRANSFORMS

DOCUMENT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
CODE, CASES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def example() -> tuple[type[Transform], list[parity.Case]]:
    cases: dict[str, list[parity.Case]] = {}
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(CODE, "docs/data.md", "exec"), names)
    exec(compile(CASES, "docs/data.md", "exec"), names | {"ALONE": cases, "decoded": parity.decoded})
    ((name, own),) = cases.items()
    del TRANSFORMS._entries[name]  # the example registered itself
    return names[name], own


def planned(case: parity.Case) -> tuple[Op, ...]:
    return parity.plan(case.chain)


def test_example_is_short() -> None:
    lines = [line for line in CODE.splitlines() if line.strip()]
    assert len([line for line in lines if not re.match(r"from |import ", line)]) < 40


def test_example_on_cpu_matches_numpy(example: Any, photos: dict[str, Path]) -> None:
    spec, cases = example
    together = parity.run_chains(map(planned, cases), photos, "cpu")
    for case in cases:
        assert {each.kind for each in case.chain} == {"DecodeImage", spec.__name__}
        parity.compare(case, together.images(planned(case)), photos)


@pytest.mark.gpu
def test_example_on_gpu_matches_numpy(example: Any, photos: dict[str, Path]) -> None:
    together = parity.run_chains(map(planned, example[1]), photos, "gpu")
    for case in example[1]:
        parity.compare_as_wholes(case, together.images(planned(case)), photos)


def test_example_inverts_image(example: Any, photos: dict[str, Path]) -> None:
    always = parity.plan(example[1][-1].chain)
    file = photos["png-odd"].read_bytes()
    draws = np.zeros(1, np.float32)
    decoded, changed = (numpy_ops.run(ops, file, draws) for ops in (always[:1], always))
    np.testing.assert_array_equal(changed, 255 - decoded)


def test_example_works_in_config(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ops = parity.plan(train.dataset.transform_ops)
    assert ops[2].spec == spec(prob=0.3)
    check_numpy(ops, "chain")
    for device_id in (None, 0):
        check_dali(fuse(ops), "chain", DaliSettings(device_id))


def test_table_names_all_transforms() -> None:
    section = DOCUMENT.split("## Transforms")[1].split("## Samplers")[0]
    families = section.split("| family |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", families)) == set(TRANSFORMS)
