"""1, 2, 3 and 7 processes: the same samples in the same steps, each of them once per epoch, one result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from figures import Figure
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from runs import assert_same_files, begin, end, lines, said
from s3_server import BUCKET, s3_server

from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, plan_chain
from ppcls.files.urls import is_url
from ppcls.storage.run_copy import RunCopy
from ppcls.weights.files import read_arrays

WORLDS = (1, 2, 3, 7)
KEPT: dict[str, Any] = {"EMA": {"decay": 0.5}}
# Settings of runs on GPUs whose steps are noted, and whose results do not depend on measured times.
ON_GPUS = (
    "Global.device=gpu",
    "Global.cuda_graph=False",
    "Global.deterministic=True",
    "NVIDIA_TF32_OVERRIDE=0",
)
COUNT = 45  # samples; each label is its sample's own


def order_of(size: int, batch: int, world: int, *, shuffle: bool, seed: int = 3) -> Order:
    sampler = ShuffledSampler(size) if shuffle else SequentialSampler(size)
    return Order(sampler, -(-batch // world), seed, world=world, global_batch_size=batch)


def steps_of(order: Order, epoch: int) -> list[list[int]]:
    """Returns the samples of all ranks, step by step."""
    parts = [replace(order, rank=rank) for rank in range(order.world)]
    assert len({len(each) for each in parts}) == 1
    found = []
    for step in range(len(order)):
        taken = [each.at(Cursor(epoch, step)) for each in parts]
        found.append([index for part in taken for index in part.indices[: part.valid].tolist()])
    return found


@given(st.integers(1, 200), st.integers(7, 40), st.booleans(), st.integers(0, 9), st.integers(0, 3))
def test_order_has_each_sample_once_for_any_number_of_processes(
    size: int, batch: int, shuffle: bool, seed: int, epoch: int
) -> None:
    orders = [order_of(size, batch, world, shuffle=shuffle, seed=seed) for world in WORLDS]
    one, *others = (steps_of(order, epoch) for order in orders)
    assert sorted(index for step in one for index in step) == list(range(size))
    assert all(other == one for other in others)


@given(st.integers(14, 200), st.integers(7, 40), st.lists(st.sampled_from(WORLDS), min_size=2), st.data())
def test_epoch_with_changing_processes_has_each_sample_once(
    size: int, batch: int, worlds: list[int], data: st.DataObject
) -> None:
    cursor, seen = Cursor(1, 0), list[int]()
    before = order_of(size, batch, worlds[0], shuffle=True)
    for world in worlds:
        order = order_of(size, batch, world, shuffle=True)
        cursor = order.restore(before.state_dict(cursor))
        if cursor.epoch > 1:
            break
        last = len(order) if world is worlds[-1] else data.draw(st.integers(cursor.step, len(order) - 1))
        seen += [index for step in steps_of(order, 1)[cursor.step : last] for index in step]
        before, cursor = order, Cursor(1, last) if last < len(order) else Cursor(2, 0)
    if cursor.epoch == 1:
        seen += [index for step in steps_of(before, 1)[cursor.step :] for index in step]
    assert sorted(seen) == list(range(size))


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of 45 images of noise, each a class of its own."""
    folder, rng = tmp_path_factory.mktemp("own classes"), np.random.default_rng(3)
    for label in range(COUNT):
        cv2.imwrite(str(folder / f"{label}.jpg"), rng.integers(0, 255, (24, 20, 3), np.uint8))
    path = folder / "list.txt"
    path.write_text("".join(f"{label}.jpg {label}\n" for label in range(COUNT)))
    return path


MAKERS: dict[str, Callable[..., Loader]] = {
    "dali": partial(DaliLoader, settings=DaliSettings(threads=1)),
    "paddle.io": PaddleLoader,
}
CHAIN = plan_chain([DecodeImage(), RandCropImage(size=(16, 16)), NormalizeImage()], "CHW")


def images_of(make: Callable[..., Loader], index: Index, world: int) -> list[dict[int, NDArray[Any]]]:
    """Returns what all ranks' loaders give in two epochs: each step's images by their labels."""
    steps: dict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    order = order_of(COUNT, 14, world, shuffle=True)
    for rank in range(world):
        loader = make(index, replace(order, rank=rank), CHAIN)
        batches = [batch for _ in range(2) for batch in loader]
        for step, batch in enumerate(batches):
            labels = np.array(batch.label)[: batch.valid].tolist()
            assert not steps[step].keys() & set(labels)
            steps[step] |= dict(zip(labels, np.array(batch.image), strict=False))
        loader.release()
    return [steps[step] for step in sorted(steps)]


@pytest.mark.parametrize("kind", MAKERS)
def test_loaders_of_any_number_of_processes_give_the_same_images(
    listing: Path, figure: Figure, kind: str
) -> None:
    chain = [{"DecodeImage": None}, {"RandCropImage": {"size": 16}}, {"NormalizeImage": None}]
    dataset = {"image_root": str(listing.parent), "cls_label_path": str(listing), "transform_ops": chain}
    index = ImageNetDataset.model_validate(dataset).read(COUNT)
    one, *others = (images_of(MAKERS[kind], index, world) for world in WORLDS)
    for epoch in (one[: len(one) // 2], one[len(one) // 2 :]):
        assert sorted(label for step in epoch for label in step) == list(range(COUNT))
    for other in others:
        assert [set(step) for step in other] == [set(step) for step in one]
        for found, expected in zip(other, one, strict=True):
            for label, image in expected.items():
                np.testing.assert_array_equal(found[label], image)
    figure(
        f"{kind} loaders of 1, 2, 3 and 7 processes, {COUNT} images in batches of 14, 2 epochs: "
        "the same images, to the bit, in the same steps; each once an epoch"
    )


def noted_steps(notes: Path, ranks: int) -> dict[int, list[int]]:
    """Returns the samples that all ranks trained on, by update."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in range(ranks):
        for line in lines(notes, "steps", rank):
            place, _, samples = line.partition(":")
            found[int(place.split()[2])] += map(int, samples.split())
    return {update: sorted(samples) for update, samples in sorted(found.items())}


@pytest.fixture
def make_run(make_yaml: Callable[..., Path], listing: Path) -> Callable[..., Path]:
    """Makes a run of two epochs over `listing`, 14 images a step whoever takes them."""

    def make(output: str, **changes: Any) -> Path:
        return make_yaml(
            output,
            Arch={"name": "Linear", "class_num": COUNT},
            Metric__Train=[{"TopkAcc": {"topk": 1}}],
            DataLoader__Train__dataset__image_root=str(listing.parent),
            DataLoader__Train__dataset__cls_label_path=str(listing),
            DataLoader__Train__sampler={"global_batch_size": 14, "shuffle": True},
            **changes,
        )

    return make


def run(config: Path, notes: Path, ranks: int, *changes: str) -> dict[int, list[int]]:
    overrides = ("STEPS=1", "Global.checkpoints=auto", *changes)
    assert end(begin("noting_run.py", config, notes, *overrides, ranks=ranks)) == 0, said(notes)
    return noted_steps(notes, ranks)


def several_gpus(count: int, *values: Any) -> Any:
    """Returns a parameter of a test that needs several GPUs."""
    return pytest.param(*values, ON_GPUS, marks=[pytest.mark.gpu, pytest.mark.several_gpus(count)])


def assert_close(one: Path, other: Path) -> float:
    """Holds the weights of two runs to be the same but for the order of sums; returns how far they are."""
    expected, found = (read_arrays(each / "latest" / "model.safetensors") for each in (one, other))
    far = max(float(np.abs(found[name] - expected[name]).max()) for name in expected)
    assert far < 2e-6
    return far


@pytest.mark.reliability
@pytest.mark.parametrize("use_dali", [True, False], ids=["dali", "paddle.io"])
def test_real_runs_of_any_number_of_processes_agree(
    make_run: Callable[..., Path], tmp_path: Path, figure: Figure, use_dali: bool
) -> None:
    steps, far = {}, {}
    for ranks in WORLDS:
        config = make_run(f"run{ranks}", Global__use_dali=use_dali)
        steps[ranks] = run(config, tmp_path / f"notes{ranks}", ranks)
        far[ranks] = assert_close(tmp_path / "run1", tmp_path / f"run{ranks}")
    for first in (0, 4):  # the updates of an epoch
        seen = [sample for update in range(first, first + 4) for sample in steps[1][update]]
        assert sorted(seen) == list(range(COUNT))
    assert all(found == steps[1] for found in steps.values())
    rates = ", ".join(f"{each:.0e}" for each in far.values())
    figure(
        f"runs of 1, 2, 3 and 7 processes by gloo, {'dali' if use_dali else 'paddle.io'}: the same samples "
        f"in each step, each once an epoch; weights differ by at most {rates}"
    )


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("world_sizes", "device"),
    [
        ((1, 3, 2, 1), ()),
        ((4, 2, 4), ()),
        several_gpus(2, (2, 1, 2)),
        several_gpus(4, (4, 2, 4)),
    ],
)
def test_run_with_changing_number_of_processes_trains_on_the_same_samples(
    make_run: Callable[..., Path],
    tmp_path: Path,
    figure: Figure,
    world_sizes: tuple[int, ...],
    device: tuple[str, ...],
) -> None:
    """Rank 0 is killed in the third update of each; what it takes with it comes again, in another number."""
    straight = run(make_run("straight", Global__use_dali=True), tmp_path / "notes", 1, *device)
    seen: dict[int, list[int]] = {}
    config = make_run("changing", Global__use_dali=True, Global__save_steps=1, Global__checkpoints="auto")
    for number, ranks in enumerate(world_sizes):
        notes = tmp_path / f"notes{number}"
        last = 8 if number == len(world_sizes) - 1 else 2 * (number + 1)
        changes = ("STEPS=1", f"DIE_AT={last}", *device)
        code = end(begin("noting_run.py", config, notes, *changes, ranks=ranks))
        assert (code == 0) == (last == 8), said(notes)
        found = noted_steps(notes, ranks)
        assert min(found) == len(seen), "it continues where the others ended"
        seen |= {update: samples for update, samples in found.items() if update < last}
    assert seen == straight
    far = assert_close(tmp_path / "straight", tmp_path / "changing")
    numbers = ", then ".join(map(str, world_sizes))
    figure(
        f"a run of {numbers} processes, killed between: the samples of one process's run, "
        f"step by step; weights differ by at most {far:.0e}"
    )


FAULTS = (
    *("1:step:5", "0:reduce:4", "1:reduce:7"),
    *("0:part:1", "0:part:7", "1:part:9", "0:part:12", "0:part:13"),
    *("0:upload:2", "0:upload:6", "1:upload:8", "0:upload:11", "0:upload:20"),
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an undisturbed run of two processes, and of its notes."""
    return tmp_path_factory.mktemp("undisturbed")


def final_weights(notes: Path) -> list[str]:
    """Returns the last update and the digest of the weights after it, of each rank."""
    return [lines(notes, "weights", rank)[-1] for rank in range(2)]


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("fault", "device"),
    [
        *((fault, ()) for fault in FAULTS),
        *(several_gpus(2, fault) for fault in ("1:step:5", "0:reduce:4", "1:reduce:7")),
    ],
)
def test_run_whose_rank_is_lost_ends_with_the_state_of_an_undisturbed_run(
    make_run: Callable[..., Path],
    tmp_path: Path,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    figure: Figure,
    fault: str,
    device: tuple[str, ...],
) -> None:
    """The rank is killed, and the same command continues, with object storage on another machine.

    It is killed at a step, within a sum over all ranks, or before a file of a checkpoint or an object is
    written.
    """
    with ExitStack() as stack:
        settings = [f"PPCLS_HOME={tmp_path / 'home'}"]
        address = str(tmp_path / "lost")
        if ":upload:" in fault:
            stack.enter_context(s3_server(monkeypatch, tmp_path / "home"))
            address = f"s3://{BUCKET}/lost"
        undisturbed = undisturbed / ("gpus" if device else "cpu")
        if not (undisturbed / "notes").exists():
            run(make_run("straight", Global__use_dali=True, **KEPT), undisturbed / "notes", 2, *device)
            (tmp_path / "straight").rename(undisturbed / "run")
        config = make_run("lost", Global__use_dali=True, Global__save_steps=1, **KEPT)
        first = tmp_path / "first"
        options = (f"Global.output_dir={address}", "Global.checkpoints=auto", "STEPS=1", *device)
        assert end(begin("noting_run.py", config, first, *options, *settings, f"FAULT={fault}", ranks=2)) != 0
        before = noted_steps(first, 2)
        home = tmp_path / "another"
        rest = tmp_path / "rest"
        again = begin("noting_run.py", config, rest, *options, f"PPCLS_HOME={home}", ranks=2)
        assert end(again) == 0, said(rest)
        after = noted_steps(rest, 2)
        straight = noted_steps(undisturbed / "notes", 2)
        assert 0 < len(after) <= len(straight)
        assert {
            update: samples for update, samples in before.items() if update < min(after)
        } | after == straight
        assert final_weights(rest) == final_weights(undisturbed / "notes"), "bit for bit, on all ranks"
        folder = tmp_path / "lost"
        if is_url(address):
            copy = RunCopy(address, folder)
            assert copy.pull()
        assert_same_files(undisturbed / "run" / "latest", folder / "latest")
    figure(
        f"rank lost ({fault}), continued from update {min(after)}: samples of an undisturbed run, and its "
        "weights on all ranks, bit for bit"
    )
