"""Labels that a random transform determines, for every loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tree import small_tree

from ppcls.config.base.errors import ConfigError
from ppcls.data.build import build_loader
from ppcls.data.loaders.batch import Loader
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.runtime.start import Runtime


def turning(images: Path, output: Path, **run: Any) -> dict[str, Any]:
    """Quarter turns of the small images, whose list has no labels."""
    tree = small_tree(images, output)
    tree["Global"] |= run
    tree["Arch"]["class_num"] = 4
    train = tree["DataLoader"]["Train"]["dataset"]
    listing = output.parent / "paths.txt"
    lines = Path(train.pop("cls_label_path")).read_text().splitlines()
    listing.write_text("".join(line.rsplit(" ", 1)[0] + "\n" for line in lines))
    train |= {"name": "CustomLabelDataset", "sample_list_path": str(listing)}
    train |= {"label_key": "random_rot90_orientation"}
    chain = [{"DecodeImage": None}, {"ResizeImage": {"size": 16}}, {"RandomRot90": None}]
    train["transform_ops"] = [*chain, {"NormalizeImage": None}]
    del tree["DataLoader"]["Eval"]
    tree["Global"]["eval_during_train"] = False
    return tree


def load(tree: dict[str, Any]) -> Loader:
    config = load_config(tree)
    return build_loader(config.DataLoader.need_train(), "Train", Runtime(), config.Global, config.Arch, 4)


@pytest.mark.parametrize("use_dali", [False, True], ids=["paddle.io", "dali"])
def test_label_is_the_turn_of_the_image(images: Path, tmp_path: Path, use_dali: bool) -> None:
    loader = load(turning(images, tmp_path / "run", use_dali=use_dali))
    seen = set()
    upright: dict[int, Any] = {}
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            assert batch.positions is not None
            rows = zip(batch.image.numpy(), batch.label.numpy(), batch.positions, strict=True)
            for image, label, position in list(rows)[: batch.valid]:
                turned = np.rot90(image, -label, (1, 2))
                np.testing.assert_array_equal(upright.setdefault(int(position), turned), turned)
                seen.add(int(label))
                epochs[-1].append(int(label))
    assert seen == {0, 1, 2, 3}
    assert epochs[0] != epochs[1], "each epoch draws new rotations"


def test_resumed_loader_draws_the_same_labels(images: Path, tmp_path: Path) -> None:
    loader = load(turning(images, tmp_path / "run", use_dali=False))
    batches = iter(loader)
    next(batches)
    state, expected = loader.state_dict(), next(batches).label.tolist()
    resumed = load(turning(images, tmp_path / "run", use_dali=False))
    resumed.load_state_dict(state)
    assert next(iter(resumed)).label.tolist() == expected


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("Arch.class_num", 3, "RandomRot90 has 4 labels, so Arch.class_num must be 4"),
        (
            "DataLoader.Train.sampler",
            {"name": "PKSampler", "batch_size": 8, "sample_per_id": 2},
            "PKSampler needs a list file with labels",
        ),
        (
            "DataLoader.Train.dataset.label_key",
            "blur_image",
            "expected one transform in transform_ops that determines this",
        ),
        ("Loss", {"Train": [{"CELoss": {"class_weight": "balanced"}}]}, "needs the frequencies of labels"),
    ],
)
def test_what_needs_listed_labels_is_rejected(
    images: Path, tmp_path: Path, path: str, value: Any, text: str
) -> None:
    tree = turning(images, tmp_path / "run")
    node = tree
    *parents, last = path.split(".")
    for key in parents:
        node = node[key]
    node[last] = value
    with pytest.raises(ConfigError, match=text):
        load_config(tree)


def test_list_without_paths_is_an_error(images: Path, tmp_path: Path) -> None:
    tree = turning(images, tmp_path / "run")
    tree["DataLoader"]["Train"]["dataset"]["delimiter"] = "\t"
    (tmp_path / "paths.txt").write_text("\t1\n../a.png\t0\n")
    with pytest.raises(
        UserError, match=r"line 1: expected a path before '\\t', got an empty path\n.*line 2: .* leads out of"
    ):
        load(tree)
