"""Two processes with gloo on the CPU: the same samples, weights and counts as one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equal_runs import check_equal_records, check_equal_weights
from launched_run import CAPTURED, LINEAR, run
from small_net import build_linear

from ppcls.cli import train as cli
from ppcls.cli.eval import evaluate
from ppcls.registry import ARCHITECTURES
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord, StepRecord

CONSTANT = {"name": "Constant", "learning_rate": 0.01}


@pytest.fixture(autouse=True)
def _linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the model that ``linear_run.py`` registers in other processes."""
    monkeypatch.setitem(ARCHITECTURES._entries, "Linear", build_linear)


@pytest.mark.parametrize(
    ("use_dali", "sampler", "mixing", "optimizer"),
    [
        (
            True,
            {"name": "DistributedBatchSampler"},
            [],
            # after the second evaluation: none is twice as good as the one before
            {"name": "SGD", "lr": {**CONSTANT, "name": "ReduceOnPlateau", "patience": 0, "threshold": 0.5}},
        ),
        pytest.param(
            *(True, {"name": "PKSampler", "sample_per_id": 2}, [], {"name": "Lamb", "lr": CONSTANT}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            False,
            {"name": "RepeatedAugSampler", "num_repeats": 2},
            [],
            {"name": "LARS", "lars_coeff": 0.1, "lr": CONSTANT},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            True,
            {"name": "DistributedBatchSampler"},
            [{"MixupOperator": {"alpha": 1.0}}],
            {
                "name": "Momentum",
                "lr": {**CONSTANT, "name": "Cosine"},
                "by_name": [{"pattern": "*.bias", "lr_mult": 2}],
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(True, {"name": "DistributedBatchSampler"}, []),
            # A large epsilon, because the sign of a gradient near 0 depends on the order of additions.
            {"name": "ScheduleFreeAdamW", "lr": {**CONSTANT, "warmup_epoch": 1}, "epsilon": 0.1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["dali", "dali-identities", "paddle.io-repeated", "dali-mixed", "dali-schedule-free"],
)
def test_two_ranks_train_and_evaluate_as_one(
    make_yaml: Callable[..., Path],
    tmp_path: Path,
    use_dali: bool,
    sampler: dict[str, Any],
    mixing: list[Any],
    optimizer: dict[str, Any],
) -> None:
    # 26 images in global batches of 8 and updates of 2 batches: the last batch has 1 image a rank, or 2 and
    # none where two have to stay together
    common = {
        "Arch__name": "Linear",
        "Global__use_dali": use_dali,
        "Global__update_freq": 2,
        "Global__epochs": 3,
        "Optimizer": {**optimizer, "clip_norm": 5.0},
        "EMA": None if optimizer["name"] == "ScheduleFreeAdamW" else {"decay": 0.5},
        "Metric__Train": [{"TopkAcc": {"topk": 1}}],
        "DataLoader__Train__dataset__batch_transform_ops": mixing,
    }
    one = make_yaml("one", **common, DataLoader__Train__sampler={**sampler, "batch_size": 8, "shuffle": True})
    two = make_yaml("two", **common, DataLoader__Train__sampler={**sampler, "batch_size": 4, "shuffle": True})
    assert cli.train(["-c", str(one)]) == 0
    run(LINEAR, "-c", str(two), ranks=2, logs=tmp_path / "log2")
    check_equal_weights(tmp_path / "one", tmp_path / "two", 2e-6)
    check_equal_records(tmp_path / "one", tmp_path / "two", 1e-5)
    found = [(tmp_path / name / "report.html").read_text() for name in ("one", "two")]
    for part in (r'"confusion": \{.*?\}', r'<figure title="[^"]+"'):
        first, second = (re.findall(part, page) for page in found)
        assert first == second, "the confusion and the worst errors are those of all ranks"
        assert first


@pytest.mark.slow
def test_two_ranks_with_recorded_steps_train_as_one(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    common = {
        "Arch__name": "Linear",
        "Global__update_freq": 2,
        "Global__epochs": 5,
        "EMA__decay": 0.5,
        "Global__eval_during_train": False,
    }
    one = make_yaml("one", **common, DataLoader__Train__sampler={"batch_size": 4, "shuffle": True})
    two = make_yaml("two", **common, DataLoader__Train__sampler={"batch_size": 2, "shuffle": True})
    assert cli.train(["-c", str(one)]) == 0
    run(CAPTURED, "-c", str(two), ranks=2, logs=tmp_path / "log2")
    for rank in (0, 1):
        log = (tmp_path / "log2" / f"workerlog.{rank}").read_text()
        assert re.search(r"^replays: [1-9]", log, re.MULTILINE)
    assert "steps: recorded" in (tmp_path / "log2" / "workerlog.0").read_text()
    check_equal_weights(tmp_path / "one", tmp_path / "two", 2e-6)


@pytest.mark.slow  # test_resume.py resumes with another batch size, which has the same effect on the order
def test_resume_with_another_number_of_ranks_continues_the_epochs(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    common = {"Arch__name": "Linear", "Global__save_steps": 2}
    part = make_yaml("part", **common, DataLoader__Train__sampler__batch_size=8, Global__epochs=1)
    assert cli.train(["-c", str(part)]) == 0
    rest = make_yaml("part", **common, DataLoader__Train__sampler__batch_size=4)
    run(LINEAR, "-c", str(rest), "-o", "Global.checkpoints=auto", ranks=2, logs=tmp_path / "log2")
    records = read_records(tmp_path / "part" / "metrics.jsonl")
    steps = [(each.epoch, each.update) for each in records if isinstance(each, StepRecord)]
    assert steps == [(1, 2), (1, 4), (2, 6), (2, 8)]


def test_ranks_share_batch_norms_statistics(
    make_yaml: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What training evaluates is what the checkpoint holds, whichever rank looks at it."""
    changes = {
        "Arch": {"name": "WideResNet", "depth": 10, "widen_factor": 1, "class_num": 4},
        **{"DataLoader__Train__sampler__batch_size": 4, "Optimizer__lr__learning_rate": 1e-3},
    }
    changes |= {"Global__use_dali": False, "Global__epochs": 4, "Global__eval_interval": 4}
    config = make_yaml("shared", **changes)
    run(LINEAR, "-c", str(config), ranks=2, logs=tmp_path / "log")
    records = [
        each for each in read_records(tmp_path / "shared" / "metrics.jsonl") if isinstance(each, EvalRecord)
    ]
    scaling = "scaling: 2 ranks train "  # of the 16 updates, four are samples
    assert (tmp_path / "shared" / "train.log").read_text().count(scaling) == 1
    assert evaluate(["-c", str(config)]) == 0
    printed = capsys.readouterr().out
    loss = re.search(r"loss ([0-9.]+) top1 ([0-9.]+)", printed)
    assert loss is not None
    # The layers of oneDNN, which evaluate a checkpoint, add in another order. Four digits are printed.
    assert float(loss[1]) == pytest.approx(records[-1].loss, abs=1e-4)
    assert f"{records[-1].metrics['top1']:.4f}" == loss[2]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [0, 1])
def test_bad_image_on_one_rank_stops_all_ranks(
    make_yaml: Callable[..., Path], images: Path, tmp_path: Path, bad: int
) -> None:
    """The other rank waits for it in the evaluation: nothing on the way out may wait for that one."""
    lines = ["eval 0.jpg 0", "eval 1.jpg 1"]
    lines[bad] = "eval.txt 0"  # text, not an image; one image a rank
    listing = tmp_path / "bad.txt"
    listing.write_text("\n".join(lines))
    config = make_yaml(
        "bad",
        Arch__name="Linear",
        Global__epochs=1,
        DataLoader__Train__sampler__batch_size=4,
        DataLoader__Eval__sampler__batch_size=1,
        DataLoader__Eval__dataset__cls_label_path=str(listing),
    )
    logs = tmp_path / "log"
    with pytest.raises(AssertionError, match="not an image"):
        run(LINEAR, "-c", str(config), ranks=2, logs=logs)
    assert (tmp_path / "bad" / "latest").is_symlink() == (bad == 0)
