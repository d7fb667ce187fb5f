"""Building samplers from a config, and reading sample weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.base import Sampler as Spec
from ppcls.data.sampling.epoch_samplers import (
    BalancedClassSampler,
    EpochSampler,
    IdentitySampler,
    RepeatedAugmentationSampler,
    SequentialSampler,
    ShardWindowSampler,
    ShuffledSampler,
    WeightedRandomSampler,
)
from ppcls.data.sampling.samplers import MultiScaleSampler, WeightedSampler
from ppcls.data.sampling.weights import read_weights
from ppcls.errors import UserError
from ppcls.registry import SAMPLERS

LABELS = np.arange(30) % 6


class Shards(FileIndex):
    """Samples in three shards."""

    shard_ends = (8, 17, 30)


INDEX = Shards(Path("images"), np.array([b"a"] * 30), LABELS, Path("list.txt"))
EXPECTED: dict[str, list[tuple[dict[str, Any], EpochSampler]]] = {
    "DistributedBatchSampler": [({}, SequentialSampler(30)), ({"shuffle": True}, ShuffledSampler(30))],
    "BatchSampler": [({}, SequentialSampler(30)), ({"shuffle": True}, ShuffledSampler(30))],
    "ShardSampler": [
        ({}, ShardWindowSampler(Shards.shard_ends, 8)),
        ({"window": 2}, ShardWindowSampler(Shards.shard_ends, 2)),
    ],
    "ClassBalancedSampler": [
        ({}, BalancedClassSampler(LABELS, 30)),
        ({"samples": 100}, BalancedClassSampler(LABELS, 100)),
    ],
    "WeightedSampler": [
        ({"class_weights": (0.0, 1, 2, 3, 4, 5)}, WeightedRandomSampler(LABELS.astype(float), 30)),
        ({"class_weights": (1,) * 6, "samples": 7}, WeightedRandomSampler(np.ones(30), 7)),
    ],
    "RepeatedAugSampler": [
        ({}, RepeatedAugmentationSampler(30, 3, 16)),
        ({"num_repeats": 2}, RepeatedAugmentationSampler(30, 2, 16)),
    ],
    "PKSampler": [({"sample_per_id": 4}, IdentitySampler(LABELS, 4, 4))],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_build_sampler_returns_the_named_sampler(name: str) -> None:
    for options, expected in EXPECTED[name]:
        spec: Spec = SAMPLERS[name](batch_size=8, **options)
        found = spec.build(INDEX, world=2)
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        assert found.describe() == expected.describe()
        np.testing.assert_array_equal(found.epoch(3, 1), expected.epoch(3, 1))


@pytest.mark.parametrize("name", EXPECTED)
def test_built_sampler_ignores_the_number_of_ranks(name: str) -> None:
    for options, _ in EXPECTED[name]:
        one, four = (
            SAMPLERS[name](batch_size=batch, **options).build(INDEX, world)
            for batch, world in ((16, 1), (4, 4))
        )
        np.testing.assert_array_equal(one.epoch(3, 1), four.epoch(3, 1))
        assert one.describe() == four.describe()
        spread = SAMPLERS[name](global_batch_size=16, **options).build(INDEX, 3)
        np.testing.assert_array_equal(spread.epoch(3, 1), one.epoch(3, 1))


def test_multi_scale_sampler_has_each_sample_once() -> None:
    found = MultiScaleSampler(scales=(32, 64), first_bs=8).build(INDEX, world=2)
    np.testing.assert_array_equal(found.epoch(3, 1), ShuffledSampler(30).epoch(3, 1))


@pytest.mark.parametrize("window", [1, 2, 3])
def test_shard_sampler_uses_each_sample_once_and_few_shards_at_a_time(window: int) -> None:
    ends = tuple(range(10, 101, 10))
    orders = [ShardWindowSampler(ends, window).epoch(3, epoch) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(100))
        windows = [{*(order[i : i + 10 * window] // 10).tolist()} for i in range(0, 100, 10 * window)]
        assert all(len(shards) <= window for shards in windows)
    assert orders[0].tolist() != orders[1].tolist()


def test_shard_sampler_needs_containers() -> None:
    files = FileIndex(Path("images"), np.array([b"a"] * 30), LABELS, Path("list.txt"))
    with pytest.raises(UserError, match="ShardSampler needs a data set in containers"):
        SAMPLERS["ShardSampler"](batch_size=8).build(files, 1)


def test_all_registered_samplers_are_tested() -> None:
    assert {*EXPECTED, "MultiScaleSampler"} == set(SAMPLERS)


def test_build_sampler_reads_weights_file(tmp_path: Path) -> None:
    file = tmp_path / "weights.txt"
    file.write_text("\n".join(map(str, range(30))))
    found = WeightedSampler(batch_size=8, weights_file=str(file)).build(INDEX, 1)
    np.testing.assert_array_equal(found.epoch(0, 0), WeightedRandomSampler(np.arange(30.0), 30).epoch(0, 0))


def test_build_sampler_rejects_weights_without_samples() -> None:
    spec = WeightedSampler(batch_size=8, class_weights=(0,) * 6 + (1,))
    with pytest.raises(UserError) as caught:
        spec.build(INDEX, 1)
    assert str(caught.value) == (
        "list.txt: the classes of all samples have weight 0; "
        "increase DataLoader.Train.sampler.class_weights for a class that has samples"
    )


def test_build_sampler_rejects_too_few_identities() -> None:
    spec = SAMPLERS["PKSampler"](batch_size=8, sample_per_id=2)
    assert len(spec.build(INDEX, 1)) == 30
    needed = r"PKSampler needs 8 .*batch_size 8 / sample_per_id 2 x 2 processes"
    with pytest.raises(UserError, match=rf"6 identities, but {needed}.*decrease .*sampler\.batch_size"):
        spec.build(INDEX, 2)


@pytest.fixture
def three() -> FileIndex:
    return FileIndex(Path("images"), np.array([b"a", b"b", b"c"]), np.array([0, 1, 1]), Path("list.txt"))


def write_weights(folder: Path, text: str) -> Path:
    file = folder / "weights.txt"
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize("text", ["0.5\n2\n0\n", "\ufeff0.5\r\n 2e0 \r\n\r\n0", "5e-1\n\n2.\n+0"])
def test_read_weights_reads_one_weight_per_line(tmp_path: Path, three: FileIndex, text: str) -> None:
    found = read_weights(write_weights(tmp_path, text), three)
    assert found.dtype == np.float64
    assert found.tolist() == [0.5, 2.0, 0.0]


def test_read_weights_names_wrong_lines(tmp_path: Path, three: FileIndex) -> None:
    wrong = {3: "-2", 4: "many", 5: "nan", 6: "inf", 7: "1 2"}
    file = write_weights(tmp_path, "1\n\n" + "\n".join(wrong.values()) + "\n3")
    with pytest.raises(UserError) as caught:
        read_weights(file, three)
    assert str(caught.value).splitlines() == [
        f"{file}, line {number}: expected a number >= 0, got {text!r}" for number, text in wrong.items()
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1\n1\n", "2 weights, but list.txt has 3 samples"),
        ("1\n1\n1\n1", "4 weights, but list.txt has 3 samples"),
        ("", "0 weights, but list.txt has 3 samples"),
        ("0\n0\n0.0\n", "all weights are 0; expected at least one > 0"),
        ("x\n" * 12, "… and 2 more lines"),
    ],
)
def test_read_weights_rejects_wrong_weights(
    tmp_path: Path, three: FileIndex, text: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        read_weights(write_weights(tmp_path, text), three)


def test_read_weights_reports_missing_file(tmp_path: Path, three: FileIndex) -> None:
    with pytest.raises(UserError, match=r"gone\.txt: can't read these weights: No such file or directory"):
        read_weights(tmp_path / "gone.txt", three)
