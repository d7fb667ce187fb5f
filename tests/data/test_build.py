"""Building loaders: order, and errors for unsupported settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppcls.data.build import Feed, build_loader, dali_settings, describe_feed
from ppcls.data.loaders.section import Dali
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Cursor
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.registry import TRANSFORMS
from ppcls.runtime.start import Runtime

YAML = """
Arch: {{name: ResNet18, class_num: 3}}
Optimizer: {{name: SGD, lr: {{name: Constant, learning_rate: 0.1}}}}
Metric: {{Eval: [TopkAcc: {{topk: 1}}]}}
DataLoader:
  Train:
    dataset:
      name: ImageNetDataset
      image_root: {folder}
      cls_label_path: {folder}/list.txt
      transform_ops: [DecodeImage, ResizeImage: {{size: 8}}, NormalizeImage]
    sampler: {{name: PKSampler, batch_size: 4, sample_per_id: 2, drop_last: True}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Nine images of three classes; none of them is read."""
    (tmp_path / "list.txt").write_text("".join(f"{i}.jpg {i % 3}\n" for i in range(9)))
    (tmp_path / "run.yaml").write_text(YAML.format(folder=tmp_path))
    return load_config(tmp_path / "run.yaml", [])


def loader_of(config: Config, training: bool = True, **sampler: Any) -> Any:
    split = config.DataLoader.Train
    assert split is not None
    changed = type(split).model_validate({**dict(split), **({"sampler": sampler} if sampler else {})})
    return build_loader(changed, "Train" if training else "Eval", Runtime(), config.Global, config.Arch, 3)


def test_training_order_uses_the_sampler(config: Config) -> None:
    order = loader_of(config).order
    assert (order.size, order.group, order.drop_last, len(order)) == (10, 2, True, 2)


def test_evaluation_order_has_each_sample_once(config: Config) -> None:
    order = loader_of(config, training=False).order
    assert order.sampler == SequentialSampler(9)
    assert (order.group, order.drop_last, len(order)) == (1, False, 3)


@pytest.mark.parametrize("place", ["Train", "Eval"])  # an evaluation would compute many rows of padding
@pytest.mark.parametrize(("world", "rows"), [(1, 9), (2, 5), (4, 3), (9, 1)])
def test_fewer_images_than_a_batch_are_one_batch_without_drop_last(
    config: Config, world: int, rows: int, place: str
) -> None:
    split = config.DataLoader.need_train()
    sampler = {"name": "DistributedBatchSampler", "batch_size": 16, "drop_last": False}
    changed = type(split).model_validate({**dict(split), "sampler": sampler})
    steps = []
    for rank in range(world):
        runtime = Runtime(rank=rank, world_size=world)
        order = build_loader(changed, place, runtime, config.Global, config.Arch, 3).order
        assert (len(order), order.batch_size) == (1, rows)
        steps.append(order.at(Cursor()))
    assert sorted(position for step in steps for position in step.indices[: step.valid]) == [*range(9)]


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        ({"batch_size": 10, "drop_last": True}, "9 images are fewer than one batch of 10; "),
        (
            {"name": "ClassBalancedSampler", "batch_size": 8, "samples": 7, "drop_last": True},
            "7 images per epoch are fewer than one batch of 8; ",
        ),
        ({"global_batch_size": 10}, "9 images are fewer than one batch of 10; "),
    ],
)
def test_build_loader_rejects_epoch_smaller_than_batch(
    config: Config, sampler: dict[str, Any], text: str
) -> None:
    with pytest.raises(UserError) as caught:
        loader_of(config, **sampler)
    listing = config.DataLoader.Train.dataset.cls_label_path  # type: ignore[union-attr]
    name = "global_batch_size" if "global_batch_size" in sampler else "batch_size (--batch-size)"
    assert str(caught.value) == f"{listing}: {text}decrease DataLoader.Train.sampler.{name}"


class Formless(Transform, abstract=True):
    """Neither DALI nor numpy can do it."""

    def after(self, state: ImageState) -> ImageState:
        return state


@pytest.mark.parametrize("split", ["Train", "Eval"])
@pytest.mark.parametrize(
    ("use_dali", "text"),
    [
        (True, "not supported by DALI on a CPU: the DALI backend does not implement"),
        (False, "not supported by paddle.io: the NumPy backend does not implement"),
    ],
)
def test_build_loader_rejects_unsupported_transform(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, use_dali: bool, text: str
) -> None:
    monkeypatch.setitem(TRANSFORMS._entries, "Formless", Formless)
    run = tmp_path / "run.yaml"
    run.write_text(run.read_text().replace("NormalizeImage", "Formless, NormalizeImage"))
    config = load_config(run, [f"Global.use_dali={use_dali}"])
    with pytest.raises(UserError) as raised:
        loader_of(config, training=split == "Train")
    path = f"DataLoader.{split}.dataset.transform_ops[2].Formless"
    assert str(raised.value).startswith(f"{path}: {text} Formless; ")


def test_large_batches_decrease_the_prefetched_batches(config: Config) -> None:
    split = config.DataLoader.Train
    assert split is not None
    sampler = {"batch_size": 1 << 18}  # 192 MiB per batch of 8×8 pixels
    large = type(split).model_validate({**dict(split), "sampler": sampler})
    sizes = {"name": "MultiScale", "sizes": [8, 32]}
    varied = type(split).model_validate({**dict(large), "input_size": sizes})
    found = [
        dali_settings(chosen, Runtime(cores=16), training=True).prefetch for chosen in (split, large, varied)
    ]
    assert found == [32, 10, 4]


def test_describe_feed_names_the_backend(config: Config) -> None:
    split = config.DataLoader.Train
    assert split is not None
    assert describe_feed(split, Runtime(), config.Arch, use_dali=False) == Feed(
        uses_dali=False, dali_supported=True, prefetched=2 * 4
    )
    assert describe_feed(split, Runtime(), config.Arch, use_dali=True) == Feed(
        uses_dali=True, dali_supported=True, prefetched=4 + 3
    )


def test_describe_feed_reports_transform_unsupported_by_dali(config: Config) -> None:
    split = config.DataLoader.Train
    assert split is not None
    ops = split.dataset.transform_ops
    dataset = split.dataset.model_copy(update={"transform_ops": (*ops[:2], Formless(), *ops[2:])})
    changed = split.model_copy(update={"dataset": dataset})
    assert not describe_feed(changed, Runtime(), config.Arch, use_dali=False).dali_supported


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (
            {"cache_size": 100},
            r"\.cache_size: expected 0 because this run is on the CPU, got 100; only the GPU's decoder has a "
            "cache",
        ),
        ({"decode_on": "gpu"}, r"\.decode_on: expected auto or cpu because this run is on the CPU, got gpu"),
    ],
)
def test_build_loader_rejects_gpu_settings_on_cpu(config: Config, setting: dict[str, Any], text: str) -> None:
    split = config.DataLoader.Train
    assert split is not None
    loader = split.loader.model_copy(update={"dali": Dali(**setting)})
    by_dali = config.Global.model_copy(update={"use_dali": True})
    asked = split.model_copy(update={"loader": loader})
    with pytest.raises(UserError, match=rf"^DataLoader\.Train\.loader\.dali{text}$"):
        build_loader(asked, "Train", Runtime(), by_dali, config.Arch, 3)
    assert build_loader(asked, "Train", Runtime(), config.Global, config.Arch, 3), (
        "paddle.io has no such settings"
    )
