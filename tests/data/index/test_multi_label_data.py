"""Datasets with several labels per image, in lists and in the batches of each loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from ppcls.data.index.image_lists import ImageNetDataset, MultiLabelDataset
from ppcls.data.index.protocol import Index, describe_index, positive_rates
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.mixing import MixedLoader, decide_mix, mix_labels
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.batch import Mix, MixupOperator
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain
from ppcls.dataset_tools.mean_std import compute_mean_std
from ppcls.dataset_tools.stats import collect_stats
from ppcls.errors import UserError

CHAIN = (DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage())
OPS = plan_chain(CHAIN, "CHW")
MAKERS: dict[str, Callable[[Index, Order], Any]] = {
    "dali-cpu": lambda index, order: DaliLoader(index, order, OPS, DaliSettings(threads=1)),
    "dali-gpu": lambda index, order: DaliLoader(index, order, OPS, DaliSettings(device_id=0, threads=1)),
    "paddle-0": lambda index, order: PaddleLoader(index, order, OPS),
    "paddle-1": lambda index, order: PaddleLoader(index, order, OPS, PaddleSettings(workers=1)),
}
LABELS = [[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 1], [0, 1, 0]]
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=pytest.mark.gpu if "gpu" in name else ()) for name in MAKERS]
)


def read(folder: Path, content: str, class_num: int = 3, **options: Any) -> Index:
    listing = folder / "list.txt"
    listing.write_text(content)
    dataset = MultiLabelDataset(
        image_root=str(folder), cls_label_path=str(listing), transform_ops=CHAIN, **options
    )
    return dataset.read(class_num)


@pytest.fixture
def index(photos: dict[str, Path], tmp_path: Path) -> Index:
    """Five photographs of three classes."""
    folder, names = next(iter(photos.values())).parent, [each.name for each in photos.values()]
    listing = tmp_path / "list.txt"
    rows = (f"{name}\t{','.join(map(str, label))}" for name, label in zip(names, LABELS, strict=False))
    listing.write_text("\n".join(rows) + "\n")
    dataset = MultiLabelDataset(image_root=str(folder), cls_label_path=str(listing), transform_ops=CHAIN)
    return dataset.read(3)


def test_multi_label_list_returns_rows_of_flags(tmp_path: Path) -> None:
    index = read(tmp_path, "a b.jpg\t0,1, 1\n\nc.jpg\t1,0,0\n")
    assert index.labels.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert index.labels.dtype == np.float32
    assert index.where(1).endswith("list.txt, line 3")
    share = positive_rates(index)
    assert share is not None
    assert share.tolist() == [0.5, 0.5, 0.5]
    other = read(tmp_path, "a b.jpg\t0,1,1\nc.jpg\t1,0,1\n")
    assert describe_index(other) != describe_index(index)
    assert read(tmp_path, "a b.jpg 1,0", 2, delimiter=" ").labels.tolist() == [[1, 0]]
    assert read(tmp_path, "a.jpg\t1", 1).labels.tolist() == [[1]]


def test_multi_label_list_names_wrong_lines(tmp_path: Path) -> None:
    lines = ("a.jpg\t0,1", "b.jpg\t0,1,2", "c.jpg\t0,,1", "d.jpg 0,1,1", "e.jpg\t1,0,1", "../f.jpg\t1,0,1")
    with pytest.raises(UserError) as caught:
        read(tmp_path, "\n".join(lines))
    problems = [
        line.removeprefix(f"{tmp_path / 'list.txt'}, line ") for line in str(caught.value).splitlines()
    ]
    assert problems == [
        "1: expected labels of 3 classes (Arch.class_num), got 2",
        "2: expected a 0 or 1 for each class, separated by commas, got '2'",
        "3: expected a 0 or 1 for each class, separated by commas, got an empty value",
        "4: expected 'path\tlabel', got no label after '\\t'; this line has a space before the label: "
        'set delimiter: " "',
        "6: path '../f.jpg' leads out of image_root; expected a path below image_root",
    ]


def test_single_label_list_suggests_multi_label_dataset(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text("a.jpg 0,1,1\n")
    dataset = ImageNetDataset(image_root=str(tmp_path), cls_label_path=str(listing), transform_ops=CHAIN)
    with pytest.raises(UserError, match="as label, got '0,1,1'; for several labels use MultiLabelDataset"):
        dataset.read(3)


@kinds
def test_loaders_return_multi_labels(kind: str, index: Index) -> None:
    loader = MAKERS[kind](index, Order(ShuffledSampler(5), batch_size=2, seed=3))
    seen = 0
    for batch in loader:
        assert batch.label.dtype == paddle.float32
        assert batch.label.shape == [2, 3]
        assert batch.label.numpy().tolist() == index.labels[batch.positions].tolist()
        seen += batch.valid
    assert seen == 5


@kinds
def test_mixed_loader_mixes_multi_labels(kind: str, index: Index) -> None:
    order, spec = Order(ShuffledSampler(4), batch_size=4, seed=3, group=2), MixupOperator(alpha=1.0)
    inner = MAKERS[kind](index, order)
    (batch,) = MixedLoader(inner, spec, 3, "CHW")
    kept = decide_mix(spec, 3, Cursor(0, 0), (8, 8)).kept
    labels = index.labels[batch.positions]
    np.testing.assert_allclose(
        batch.label.numpy(), kept * labels + (1 - kept) * labels[[1, 0, 3, 2]], atol=1e-6
    )


def test_mixed_loader_keeps_the_labels_of_its_loader() -> None:
    label = paddle.to_tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    mixed = mix_labels(label, Mix(0.75), 2, 2)
    assert mixed.tolist() == [[0.25, 1.0], [0.75, 1.0], [1.0, 0.0]]
    assert label.tolist() == [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]


def test_collect_stats_counts_all_labels_of_an_image(index: Index) -> None:
    moments = compute_mean_std(index, DecodeImage(), 1, lambda images: None)
    stats = collect_stats("several", index.labels, (), moments, DecodeImage())
    assert stats.counts.tolist() == [2, 3, 2]
    assert "5 images of 3 classes" in stats.describe()
