"""The iterator over a pipeline of one's own: NVIDIA's documented epochs, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.paddle import DALIGenericIterator

from ppcls.data.loaders.dali.iterator import PipelineIterator
from ppcls.errors import UserError

FILL = LastBatchPolicy.FILL
PARTIAL = LastBatchPolicy.PARTIAL
DROP = LastBatchPolicy.DROP
DEVICES = [None, pytest.param(0, marks=pytest.mark.gpu)]


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """Returns a function that returns files, which contain the numbers from 1 as one byte."""
    folder = tmp_path_factory.mktemp("numbers")

    def write(count: int) -> list[str]:
        files = [folder / f"{number}.bin" for number in range(1, count + 1)]
        for number, file in enumerate(files, start=1):
            # Not twice: DALI's reader maps files into memory, and the pipeline of an earlier test may still
            # read ahead. If its file is truncated, the process ends with SIGBUS.
            if not file.exists():
                file.write_bytes(bytes([number]))
        return list(map(str, files))

    return write


def pipeline_of(
    files: Sequence[str], batch: int, device: int | None, *, dynamic: bool = True, **reader: object
) -> Pipeline:
    pipeline = Pipeline(batch, num_threads=1, device_id=device, exec_dynamic=dynamic)
    with pipeline:
        data, label = fn.readers.file(files=files, name="reader", **reader)
        number = fn.cast(data, dtype=types.INT32)
        pipeline.set_outputs(number if device is None else number.gpu(), label)
    return pipeline


def epochs(batches: PipelineIterator | DALIGenericIterator, count: int) -> list[list[list[int]]]:
    found = []
    for _ in range(count):
        epoch = []
        for batch in batches:
            tensors = batch if isinstance(batch, dict) else batch[0]
            epoch.append(np.asarray(tensors["number"]).ravel().tolist())
        found.append(epoch)
    return found


# The documented examples of NVIDIA's class: seven samples in batches of two.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("policy", "padded", "last", "following"),
    [
        (PARTIAL, True, [7], [1, 2]),
        (PARTIAL, False, [7], [2, 3]),
        (FILL, True, [7, 7], [1, 2]),
        (FILL, False, [7, 1], [2, 3]),
        (DROP, True, [5, 6], [1, 2]),
        (DROP, False, [5, 6], [2, 3]),
    ],
)
def test_epochs_are_those_that_dali_documents(
    numbers: Callable[[int], list[str]],
    policy: LastBatchPolicy,
    padded: bool,
    last: list[int],
    following: list[int],
    dynamic: bool,
    device: int | None,
) -> None:
    pipeline = pipeline_of(numbers(7), 2, device, dynamic=dynamic, pad_last_batch=padded)
    batches = PipelineIterator(
        pipeline, ["number", "label"], reader_name="reader", auto_reset=True, last_batch_policy=policy
    )
    first, second = epochs(batches, 2)
    assert first == [[1, 2], [3, 4], [5, 6], *([] if policy is DROP else [last])]
    assert first[-1] == last
    assert second[0] == following


@pytest.mark.gpu
@pytest.mark.parametrize("policy", [FILL, PARTIAL, DROP])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("size", [4, 5, 7])
def test_cpu_epochs_equal_those_of_nvidia(
    numbers: Callable[[int], list[str]], size: int, padded: bool, policy: LastBatchPolicy
) -> None:
    names = ["number", "label"]
    theirs = DALIGenericIterator(
        [pipeline_of(numbers(size), 3, 0, pad_last_batch=padded)],
        names,
        reader_name="reader",
        auto_reset=True,
        last_batch_policy=policy,
    )
    ours = PipelineIterator(
        pipeline_of(numbers(size), 3, None, pad_last_batch=padded),
        names,
        reader_name="reader",
        auto_reset=True,
        last_batch_policy=policy,
    )
    assert epochs(ours, 5) == epochs(theirs, 5)


@pytest.mark.parametrize("device", DEVICES)
def test_epoch_must_be_reset_without_auto_reset(
    numbers: Callable[[int], list[str]], device: int | None
) -> None:
    batches = PipelineIterator(pipeline_of(numbers(4), 2, device), ["number", "label"], reader_name="reader")
    assert epochs(batches, 2) == [[[1, 2], [3, 4]], []]
    batches.reset()
    batches.reset()  # without effect at the start of an epoch
    assert epochs(batches, 1) == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize("device", DEVICES)
def test_external_source_ends_epochs(device: int | None) -> None:
    def source(info: types.BatchInfo) -> list[np.ndarray]:
        if info.iteration == 2:
            raise StopIteration
        return [np.array([10 * info.epoch_idx + info.iteration])] * (2 - info.iteration)

    pipeline = Pipeline(2, num_threads=1, device_id=device, exec_dynamic=True)
    with pipeline:
        pipeline.set_outputs(fn.external_source(source, batch=True, dtype=types.INT64, batch_info=True))
    batches = PipelineIterator(pipeline, ["number"], auto_reset=True)
    assert epochs(batches, 2) == [[[0, 0], [1]], [[10, 10], [11]]]


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_shards_have_their_own_samples(numbers: Callable[[int], list[str]], shard: int) -> None:
    options = {"shard_id": shard, "num_shards": 3, "pad_last_batch": True, "stick_to_shard": True}
    batches = PipelineIterator(
        pipeline_of(numbers(7), 2, None, **options),
        ["number", "label"],
        reader_name="reader",
        auto_reset=True,
        last_batch_policy=PARTIAL,
    )
    expected = [[[1, 2]], [[3, 4]], [[5, 6], [7]]][shard]
    assert epochs(batches, 3) == [expected] * 3


def test_tensors_stay_valid(numbers: Callable[[int], list[str]]) -> None:
    for dynamic in (True, False):
        pipeline = pipeline_of(numbers(9), 1, None, dynamic=dynamic)
        kept = list(PipelineIterator(pipeline, ["number", "label"], reader_name="reader"))
        assert [batch["number"].item() for batch in kept] == list(range(1, 10))


@pytest.mark.parametrize(
    ("names", "reader", "options", "message"),
    [
        (["a", "a"], "reader", {}, "output_map: expected distinct names, got ['a', 'a']"),
        (["a"], "reader", {}, "output_map: expected 2 names, one per output of the pipeline, got ['a']"),
        (["a", "b"], "other", {}, "reader_name: the pipeline has no reader 'other'; it has reader"),
        (
            ["a", "b"],
            "reader",
            {"num_shards": 2},
            "reader 'reader': its 2 shards of 3 samples differ",
        ),
    ],
)
def test_wrong_arguments_are_explained(
    numbers: Callable[[int], list[str]],
    names: list[str],
    reader: str,
    options: dict[str, object],
    message: str,
) -> None:
    pipeline = pipeline_of(numbers(3), 2, None, **options)
    with pytest.raises(UserError) as raised:
        PipelineIterator(pipeline, names, reader_name=reader)
    assert message in str(raised.value)


def test_samples_of_several_shapes_are_explained(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for size, file in enumerate(files, start=1):
        file.write_bytes(bytes(size))
    batches = PipelineIterator(
        pipeline_of(list(map(str, files)), 2, None), ["number", "label"], reader_name="reader"
    )
    with pytest.raises(UserError, match=r"'number': expected samples of one shape, found \(1,\) and \(2,\)"):
        next(batches)
