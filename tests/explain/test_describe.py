"""Descriptions equal the pipelines that the loaders build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data.bad_images.lists import BadImageError
from ppcls.explain.describe import describe as describe_splits
from ppcls.explain.description import PipelineDescription, StageOperator, describe_arrays
from ppcls.recipe.schema import Config
from ppcls.registry import SOURCES
from ppcls.runtime.start import Runtime

WINDOW = (
    "The start (top, left) and the size (height, width) of the window, [N, 2] int32 each (4 random numbers)"
)
FLIP = "Whether to flip each image, [N] int32 (1 random number)"
BYTES = "[?] uint8"
VARIED = "[?, ?, 3] HWC uint8"


def describe(config: Config, runtime: Runtime) -> list[PipelineDescription]:
    classes = {name: config.class_count(training=name == "Train") for name in config.used_splits}
    return describe_splits(config.used_splits, classes, config.Global, config.Arch, runtime)


def names(described: PipelineDescription) -> list[list[str]]:
    return [[each.split(" ")[0] for each in stage.transforms] for stage in described.stages]


def operators(described: PipelineDescription) -> list[StageOperator]:
    return [operator for stage in described.stages for operator in stage.operators]


def cpu(*pairs: tuple[str, str]) -> list[StageOperator]:
    return [StageOperator(name, "cpu", output) for name, output in pairs]


def test_describe_resnet50_with_dali_lists_its_operators(make: Any) -> None:
    train, evaluation = describe(make("ResNet50", "Global.use_dali=True"), Runtime())
    assert (train.split, train.backend) == ("DataLoader.Train", "DALI on the CPU")
    assert names(train) == [["read"], ["[0]", "[1]", "[2]", "[3]", "[+]"]]
    assert operators(train) == cpu(
        ("external_source", ""),
        ("io.file.read", BYTES),
        ("decoders.image_slice", VARIED),
        ("python_function(by_numpy)", "[3, 224, 224] CHW uint8"),
        ("normalize", "[3, 224, 224] CHW float32"),
    )
    assert [stage.decisions for stage in train.stages] == ["", f"{WINDOW}; {FLIP}"]
    assert names(evaluation) == [["read"], ["[0]"], ["[1]"], ["[2]", "[3]", "[+]"]]
    assert operators(evaluation)[2:] == cpu(
        ("decoders.image", VARIED),
        ("python_function(by_numpy)", VARIED),
        ("crop_mirror_normalize", "[3, 224, 224] CHW float32"),
    )


@pytest.mark.parametrize("use_dali", [True, False])
@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("ResNet50_fp16", "[3, 224, 224] CHW float32"),
        ("ResNet50_fp16_ultra", "[224, 224, 4] HWC float16"),
        ("ResNet50_bf16", "[224, 224, 4] HWC float32"),
    ],
)
def test_describe_mixed_precision_config_ends_with_its_pixel_format(
    make: Any, name: str, pixels: str, use_dali: bool
) -> None:
    """The shipped configs need a GPU only to compute."""
    for split in describe(make(name, "AMP.use_amp=False", f"Global.use_dali={use_dali}"), Runtime()):
        assert operators(split)[-1].output == pixels


def test_describe_resnet50_with_paddle_io_lists_its_functions(make: Any) -> None:
    train, evaluation = describe(make("ResNet50", "Global.use_dali=False"), Runtime())
    assert train.backend == "paddle.io with NumPy on the CPU"
    assert names(train) == [["read"], ["[0]"], ["[1]"], ["[2]"], ["[3]"], ["[+]"]]
    assert operators(train) == cpu(
        ("read", BYTES),
        ("cv2.imdecode", ""),
        ("cv2.cvtColor", VARIED),
        ("cv2.resize", "[224, 224, 3] HWC uint8"),
        ("cv2.flip", "[224, 224, 3] HWC uint8"),
        ("cv2.LUT", "[224, 224, 3] HWC float32"),
        ("numpy", "[3, 224, 224] CHW float32"),
    )
    assert [stage.decisions for stage in train.stages] == ["", "", WINDOW, FLIP, "", ""]
    assert operators(evaluation)[3] == StageOperator("cv2.resize", "cpu", VARIED)


def test_describe_quickstart_returns_its_facts(make: Any) -> None:
    train, _ = describe(make("quickstart"), Runtime(cores=3))
    assert train.stages[1].transforms == (
        "[0] DecodeImage",
        "[1] RandCropImage size=(32, 32) scale=(0.6, 1) ratio=(0.8, 1.25)",
    )
    facts = train.facts
    assert facts["sampler"] == "DistributedBatchSampler, 6 samples per epoch: 2 steps of 4"
    assert facts["DALI"] == "1 thread, 4 batches ahead, dynamic executor; decoder: DALI's defaults"
    assert facts["batch"] == "[4, 3, 32, 32] NCHW float32 on the CPU, labels [4] int64"


def test_pillow_functions_are_named(make: Any) -> None:
    backend = "DataLoader.Train.dataset.transform_ops.1.RandCropImage.backend=pil"
    train, _ = describe(make("quickstart", "Global.use_dali=False", backend), Runtime())
    assert [each.name for each in train.stages[2].operators] == ["PIL.Image.fromarray", "PIL.Image.resize"]


def test_dropped_layout_transform_is_reported(make: Any) -> None:
    ops = "[DecodeImage, ResizeImage: {size: 8}, ToCHWImage, NormalizeImage]"
    chain = f"DataLoader.Train.dataset.transform_ops={ops}"
    train, evaluation = describe(make("quickstart", "Arch.data_format=NHWC", chain), Runtime())
    assert train.facts["dropped"] == "[2] ToCHWImage: the model expects NHWC images"
    assert train.facts["batch"].startswith("[4, 8, 8, 3] NHWC")
    assert "dropped" not in evaluation.facts
    train, _ = describe(make("quickstart", chain), Runtime())
    assert names(train)[-1] == ["[3]", "[2]"]
    assert "dropped" not in train.facts


@pytest.mark.parametrize("use_dali", [True, False])
def test_changing_size_is_reported(make: Any, use_dali: bool) -> None:
    sizes = "DataLoader.Train.input_size={name: Progressive, sizes: [16, 32], epochs: [0, 2]}"
    train, _ = describe(make("quickstart", sizes, f"Global.use_dali={use_dali}"), Runtime())
    size = "changes during training: Progressive sizes=(16, 32) epochs=(0, 2)"
    assert train.facts["size"].startswith(size)
    assert train.facts["batch"].startswith("[4, 3, 16, 16]")
    crop = next(stage for stage in train.stages if any("RandCropImage" in each for each in stage.transforms))
    assert crop.operators[-1].output == "[16, 16, 3] HWC uint8"
    assert WINDOW in crop.decisions


def test_last_epoch_of_mixing_is_named(make: Any) -> None:
    mixing = "[OpSampler: {last_epoch: 3, MixupOperator: {prob: 0.5}}]"
    key = f"DataLoader.Train.dataset.batch_transform_ops={mixing}"
    train, _ = describe(make("quickstart", key), Runtime())
    assert train.stages[-1].transforms == ("[batch] OpSampler last_epoch=3 MixupOperator=(prob=0.5)",)


@pytest.mark.parametrize("use_dali", [True, False])
def test_mixing_is_last_stage(make: Any, use_dali: bool) -> None:
    mixing = "DataLoader.Train.dataset.batch_transform_ops=[MixupOperator: {alpha: 0.2}]"
    train, evaluation = describe(make("quickstart", mixing, f"Global.use_dali={use_dali}"), Runtime())
    assert train.stages[-1].transforms == ("[batch] MixupOperator alpha=0.2",)
    assert train.stages[-1].operators == (StageOperator("mix_images", "cpu", "[4, 3, 32, 32] NCHW"),)
    assert train.facts["batch"].endswith("labels [4, 10] float32")
    assert "batch" not in evaluation.stages[-1].transforms[0]


class Photographs:
    """The photographs of a folder as a Python source."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("jpeg4*.jpg"))
        self.labels = np.zeros(len(self._files), np.int64)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, position: int) -> bytes:
        return self._files[position].read_bytes()


@pytest.mark.parametrize(("use_dali", "reader"), [(True, "external_source"), (False, "read")])
def test_python_source_is_described(
    make: Any, photos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, use_dali: bool, reader: str
) -> None:
    monkeypatch.setitem(SOURCES._entries, "photos", lambda: Photographs(photos["png-odd"].parent))
    chain = "[DecodeImage, ResizeImage: {size: 8}, NormalizeImage]"
    dataset = f"DataLoader.Train.dataset={{name: PythonDataset, source: photos, transform_ops: {chain}}}"
    train, _ = describe(make("quickstart", dataset, f"Global.use_dali={use_dali}"), Runtime())
    assert train.stages[0].operators == (StageOperator(reader, "cpu", BYTES),)
    assert train.facts["data"] == "PythonDataset photos"
    assert train.facts["batch"].startswith("[4, 3, 8, 8]")


def test_unused_split_is_not_described(make: Any) -> None:
    described = describe(make("quickstart", "Global.eval_during_train=False"), Runtime())
    assert [each.split for each in described] == ["DataLoader.Train"]


@pytest.mark.parametrize("use_dali", [True, False])
def test_bad_image_error_names_file(make: Any, tmp_path: Path, use_dali: bool) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    (tmp_path / "list.txt").write_text("bad.jpg 0\n" * 6)
    folder = f"DataLoader.Train.dataset.image_root={tmp_path}"
    with pytest.raises(BadImageError, match=r"bad\.jpg .*dataset\.on_error=skip"):
        describe(make("quickstart", f"Global.use_dali={use_dali}", folder), Runtime())


def test_describe_arrays_marks_varying_sizes() -> None:
    same = [[4, 5, 3], [4, 5, 3]]
    assert describe_arrays(same, "HWC", "uint8", False) == "[4, 5, 3] HWC uint8"
    assert describe_arrays(same, "HWC", "uint8", True) == VARIED
    assert describe_arrays([[3, 4, 5], [3, 4, 6]], "CHW", "float32", False) == "[3, 4, ?] CHW float32"
    assert describe_arrays([[], []], "", "int32", False) == "[] int32"


@pytest.mark.gpu
def test_operators_have_gpu_devices(make: Any) -> None:
    runtime = Runtime(device="gpu", device_id=0, cores=2)
    train, evaluation = describe(make("ResNet50", "Global.device=gpu", "Global.use_dali=True"), runtime)
    assert train.backend == "DALI on GPU 0"
    made = {each.name: each.device for each in (*operators(train), *operators(evaluation))}
    assert made == {
        "external_source": "cpu",
        "io.file.read": "cpu",
        "decoders.image_slice": "mixed",
        "decoders.image": "mixed",
        "resize": "gpu",
        "crop_mirror_normalize": "gpu",
    }
    assert "on GPU 0, labels" in train.facts["batch"]
    assert operators(train)[2].output == VARIED
