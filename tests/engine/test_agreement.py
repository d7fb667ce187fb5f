"""Processes that must agree before they train, and end together where they can't."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml
from launched_run import launch
from paths import SUPPORT
from small_tree import small_tree

from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import describe_index, is_described
from ppcls.engine.agreement import agree, compare, describe_unshared, digest_package
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.runtime.collectives import all_gather_json, fail_together
from ppcls.runtime.start import Runtime

HOST = socket.gethostname()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agreement")


@pytest.fixture(scope="module")
def ended(images: Path, scratch: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each case ended with on rank 0 and on rank 1."""
    return run_cases(images, scratch, "cpu")


def run_cases(images: Path, scratch: Path, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    tree = small_tree(images, scratch / "out")
    tree["Global"]["device"] = device
    config = scratch / "small.yaml"
    config.write_text(yaml.safe_dump(tree))
    script = SUPPORT / "agreement_run.py"
    done = launch([str(script), str(config), str(scratch)], ranks=2, logs=scratch / "log")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    one, other = (json.loads((scratch / f"{rank}.json").read_text()) for rank in (0, 1))
    return one, other


@pytest.mark.gpu
def test_gpus_agree_as_cpus_do(images: Path, tmp_path: Path) -> None:
    if paddle.device.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ended = run_cases(images, tmp_path, "gpu")
    test_exchange_gives_each_rank_the_values_of_all(ended)
    test_failure_of_one_rank_ends_all(ended)
    test_another_config_or_other_data_is_named(ended)
    test_rank_0_chooses_the_checkpoint(ended, tmp_path)


def test_exchange_gives_each_rank_the_values_of_all(ended: tuple[dict[str, Any], ...]) -> None:
    expected = [{"rank": 0, "text": "ü"}, {"rank": 1, "text": "ü" * 1001}]
    assert [each["exchange"] for each in ended] == [expected, expected]


def test_gather_rows_accepts_ranks_without_rows(ended: tuple[dict[str, Any], ...]) -> None:
    assert [each["no rows"] for each in ended] == [[[], []]] * 2
    assert [each["rows of one rank"] for each in ended] == [[[], [[1.0] * 3] * 2]] * 2


def test_failure_of_one_rank_ends_all(ended: tuple[dict[str, Any], ...]) -> None:
    assert [each["nobody fails"] for each in ended] == [None, None]
    assert [each["one fails"] for each in ended] == [
        f"UserError: rank 1 on {HOST}: no such folder",
        "UserError: no such folder",
    ]
    assert [each["both fail"] for each in ended] == ["UserError: seen by 0", "UserError: seen by 1"]
    assert [each["the disk fails"] for each in ended] == [
        "OSError: [Errno 28] No space left on device",
        f"UserError: rank 0 on {HOST}: [Errno 28] No space left on device",
    ]


def test_another_config_or_other_data_is_named(ended: tuple[dict[str, Any], ...]) -> None:
    assert [each["same"] for each in ended] == [None, None]
    rank1, rank0 = f"rank 1 on {HOST}", f"on rank 0 on {HOST}"
    text = (
        "UserError: the processes of this run differ:\n"
        f"  {rank1}: Global.cpu_threads is 3, but null {rank0}\n"
        f"  {rank1}: Optimizer.lr.learning_rate is 0.5, but 0.01 {rank0}\n"
        "Use the same config, data and software on every machine"
    )
    assert [each["another rate"] for each in ended] == [text, text]
    for each in ended:
        assert f'{rank1}: DataLoader.Train.dataset is "11 samples (' in each["other data"]
        assert 'but "26 samples (' in each["other data"]


def test_digest_changes_with_modules_and_tables_but_not_with_configs(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    digests = set()
    for file in ("module.py", "table.yaml", "configs/small.yaml"):
        (tmp_path / file).write_text("a: 1\n")
        digests.add(digest_package(tmp_path))
    assert len(digests) == 2


def test_agreement_reports_disk_that_is_not_shared(ended: tuple[dict[str, Any], ...], scratch: Path) -> None:
    assert [each["shared"] for each in ended] == [[], []]
    warning = f"is not shared with {HOST}: only rank 0 writes there"
    assert [warning in each["not shared"][0] for each in ended] == [True, True]
    assert not list(scratch.rglob(".shared.*"))


def test_rank_0_chooses_the_checkpoint(ended: tuple[dict[str, Any], ...], scratch: Path) -> None:
    assert [each["new"] for each in ended] == [None, None]
    one = scratch / "one"
    assert [each["latest"] for each in ended] == [
        str(one / "latest"),
        str(one / "checkpoints" / "step_00000001"),
    ]
    refused = f"{one} already holds a run; resume it with --resume (Global.checkpoints=auto)"
    assert [refused in each["refused"] for each in ended] == [True, True]
    missing = "rank 0 resumes from this checkpoint, but it is missing on this machine"
    assert [missing in each["not there"] for each in ended] == [True, True]
    assert ended[0]["not there"].startswith(f"UserError: rank 1 on {HOST}: ")
    assert ["not a checkpoint folder" in each["none such"] for each in ended] == [True, True]


def test_one_rank_per_machine_verifies_the_checkpoint(ended: tuple[dict[str, Any], ...]) -> None:
    first, second = (each["verified bytes"] for each in ended)
    assert first >= 8 << 20
    assert second < 1 << 20


@pytest.mark.slow
def test_run_stops_if_one_rank_has_no_data(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    """Which of them says so first is open; `test_failure_of_one_rank_ends_all` hears both."""
    config = make_yaml("run", Arch__name="Linear")
    odd = {"ODD": "1:DataLoader.Train.dataset.image_root=/nowhere"}
    script = SUPPORT / "cluster_run.py"
    done = launch([str(script), "-c", str(config)], ranks=2, logs=tmp_path / "log", variables=odd)
    assert done.returncode != 0
    assert "/nowhere: no such folder" in (tmp_path / "log" / "workerlog.1").read_text()
    assert "[Train]" not in (tmp_path / "log" / "workerlog.0").read_text()


@pytest.mark.parametrize("error", [UserError("mine"), OSError(28, "No space left on device")])
def test_agreement_of_one_process_exchanges_nothing(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path, error: Exception
) -> None:
    assert all_gather_json(cpu, ["value"]) == [["value"]]
    agree(make_config().model_dump(mode="json"), cpu, {})
    assert describe_unshared(cpu, tmp_path) == []
    with pytest.raises(type(error)) as caught, fail_together(cpu):
        raise error
    assert caught.value is error


def test_only_the_first_differences_are_listed() -> None:
    hosts = ("a", "b", "c")
    facts = ({"x": 1, "same": 0}, {"x": 1, "same": 0, "more": None}, {"same": 0})
    assert compare(hosts, facts) == [
        "rank 1 on b: more is null, but missing on rank 0 on a",
        "rank 2 on c: x is missing, but 1 on rank 0 on a",
    ]
    many = ({}, {str(each): each for each in range(12)})
    found = compare(("a", "b"), many)
    assert len(found) == 11
    assert found[-1] == "… and 2 more"


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.array([0, 1, 0])},
        {"paths": np.array([b"0", b"1", b"3"])},
        {"paths": np.array([b"0", b"1"]), "labels": np.array([0, 1])},
    ],
)
def test_digests_of_different_data_sets_differ(change: dict[str, Any]) -> None:
    index = FileIndex(Path("/data"), np.array([b"0", b"1", b"2"]), np.array([0, 1, 1]), Path("list"))
    same = replace(index, source=Path("list, elsewhere"))
    assert describe_index(index) == describe_index(same)
    assert describe_index(replace(index, **change)) != describe_index(index)
    assert not is_described(describe_index(index), replace(index, **change))
    moved = replace(index, root=Path("/other"))
    assert is_described(describe_index(index), moved), "the folder may move"
    assert is_described("3 samples (b750cf0f6fcd)", index), "as in checkpoints before"
