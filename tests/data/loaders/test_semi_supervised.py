"""Labelled batches with two views of unlabelled images, from both backends."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_tree import small_tree

from ppcls.data.build import add_unlabelled, build_loader
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime

RUNTIME = Runtime(device="cpu")


def semi_supervised(images: Path, tmp_path: Path, use_dali: bool) -> Config:
    """8 labelled and 4 unlabelled images per step; the strong view is inverted by its normalization."""
    tree = small_tree(images, tmp_path / "run")
    tree["Global"]["use_dali"] = use_dali
    train = tree["DataLoader"]["Train"]
    train["sampler"] |= {"drop_last": True}
    weak = train["dataset"]["transform_ops"]
    inverted = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.25] * 3, "scale": -1 / 255}}
    tree["DataLoader"]["UnLabelTrain"] = {
        **train,
        "transform_ops_strong": [*weak[:-1], inverted],
        "sampler": {"batch_size": 4, "shuffle": True, "drop_last": True},
    }
    tree["SSL"] = {"threshold": 0.4}
    return validate(tree, "tree")


def build(config: Config) -> tuple[Loader, Loader, Loader]:
    """The semi-supervised loader, and separate ones of labelled and weak images."""
    train, unlabelled = config.DataLoader.Train, config.DataLoader.UnLabelTrain
    assert train is not None
    assert unlabelled is not None

    def loader(split: Any, place: str) -> Loader:
        return build_loader(split, place, RUNTIME, config.Global, config.Arch, None)

    joined = add_unlabelled(loader(train, "Train"), unlabelled, RUNTIME, config.Global, config.Arch)
    return joined, loader(train, "Train"), loader(unlabelled, "UnLabelTrain")


def pixels(batch: Batch) -> NDArray[np.float32]:
    return np.asarray(batch.image.numpy())


@pytest.mark.parametrize("use_dali", [False, True], ids=["paddle.io", "dali"])
def test_views_follow_the_labelled_images_and_a_resumed_run_repeats_them(
    images: Path, tmp_path: Path, use_dali: bool
) -> None:
    config = semi_supervised(images, tmp_path, use_dali)
    joined, labelled, weak = build(config)
    assert len(joined) == len(labelled) == 3
    batches = [batch for _ in range(3) for batch in joined]
    assert len(batches) == 9 > len(weak)  # more than an epoch of the unlabelled images
    expected = [batch for _ in range(3) for batch in labelled]
    views = [batch for _ in range(2) for batch in weak]
    for batch, first, view in zip(batches, expected, views, strict=False):
        rows = pixels(batch)
        assert (batch.valid, batch.unlabelled, len(rows)) == (8, 4, 16)
        assert (batch.label.numpy() == first.label.numpy()).all()
        np.testing.assert_array_equal(rows[:8], pixels(first))
        np.testing.assert_array_equal(rows[8:12], pixels(view))
        np.testing.assert_allclose(rows[12:], -rows[8:12] - 4, atol=1e-5)
    resumed, *_ = build(config)
    state = None
    for batch in islice(joined, 2):
        state = joined.state_dict()
        last = pixels(batch)
    assert state == {**state, "epoch": 3, "step": 2}
    resumed.load_state_dict({**state, "step": 1})
    np.testing.assert_array_equal(pixels(next(iter(resumed))), last)
    for loader in (joined, resumed):
        loader.release()
