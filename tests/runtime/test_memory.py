"""The GPU's memory divided on paper, and, where there is a GPU, in fact."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paths import ROOT

from ppcls.errors import UserError
from ppcls.runtime.memory import (
    CONTEXT,
    FRACTION,
    INITIAL,
    LIBRARIES,
    LIMIT,
    STRATEGY,
    Asked,
    Budget,
    Needs,
    Usage,
    check_room,
    describe_use,
    pipeline_need,
    plan,
    read_asked,
)

fractions = st.floats(0, 1, exclude_min=True, exclude_max=True)
totals = st.integers(1, 1 << 20)


@st.composite
def cards(draw: st.DrawFn) -> tuple[int, int]:
    """Total and free MiB."""
    total = draw(totals)
    return total, draw(st.integers(0, total))


limits = st.none() | st.integers(1, 1 << 21)


# --- what is asked for ---


@pytest.mark.parametrize(
    ("fraction", "use_dali", "variables", "asked"),
    [
        (None, False, {}, Asked()),
        (None, True, {}, Asked(0.8, by_default=True)),
        (0.5, True, {}, Asked(0.5)),
        (None, True, {FRACTION: "0.6"}, Asked(0.6, FRACTION)),
        (None, False, {FRACTION: "6e-1"}, Asked(0.6, FRACTION)),
        (0.5, False, {FRACTION: "0.5"}, Asked(0.5)),
        (0.5, False, {FRACTION: "0.6"}, Asked(0.5, unused=f"{FRACTION}=0.6 is not used")),
        (None, True, {LIMIT: "4096"}, Asked(limit=4096)),
        (0.5, True, {LIMIT: "4096"}, Asked(0.5, limit=4096)),
        (None, True, {LIMIT: "0", FRACTION: "", STRATEGY: ""}, Asked(0.8, by_default=True)),
        (
            None,
            False,
            {STRATEGY: "naive_best_fit", INITIAL: "9"},
            Asked(initial=9, strategy="naive_best_fit"),
        ),
    ],
)
def test_the_config_goes_before_the_environment(
    fraction: float | None, use_dali: bool, variables: dict[str, str], asked: Asked
) -> None:
    assert read_asked(fraction, use_dali, variables) == asked


@pytest.mark.parametrize("text", ["0", "1", "-0.5", "1.5", "nan", "inf", "most", "80%", " "])
def test_a_fraction_in_the_environment_is_checked(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_asked(0.5, False, {FRACTION: text})
    assert str(caught.value) == (
        f"environment variable {FRACTION}: expected a number > 0 and < 1, got '{text}'; "
        "correct it, or unset it and use Global.gpu_memory_fraction"
    )


@pytest.mark.parametrize("name", [LIMIT, INITIAL])
@pytest.mark.parametrize("text", ["-1", "1.5", "4 GB", "²"])
def test_sizes_in_the_environment_are_checked(name: str, text: str) -> None:
    with pytest.raises(UserError, match=rf"variable {name}: expected a whole number of MiB, got '{text}'; "):
        read_asked(None, True, {name: text})


# --- the division ---


@given(cards(), fractions, limits)
def test_nothing_is_lost_and_nothing_given_twice(
    card: tuple[int, int], fraction: float, limit: int | None
) -> None:
    total, free = card
    budget = plan(Asked(fraction, limit=limit), total, free)
    assert budget is not None
    assert 1 <= budget.share <= total
    assert budget.share <= max(1, fraction * total)
    if limit is not None:
        assert budget.share <= limit  # the user's own limit is never loosened
    assert 0 <= budget.rest <= free
    if budget.share <= free:
        assert budget.taken + budget.share + budget.rest == total
    assert budget.flags() == {LIMIT: str(budget.share)}


@given(cards(), st.integers(1, 1 << 21))
def test_a_limit_alone_stands(card: tuple[int, int], limit: int) -> None:
    total, free = card
    budget = plan(Asked(limit=limit), total, free)
    assert budget is not None
    assert budget.share == min(limit, total)
    assert budget.setting == LIMIT


@given(cards(), fractions, fractions)
def test_a_larger_fraction_leaves_no_more(card: tuple[int, int], one: float, other: float) -> None:
    assume(one <= other)
    small, large = (plan(Asked(each), *card) for each in (one, other))
    assert small is not None
    assert large is not None
    assert small.share <= large.share
    assert small.rest >= large.rest


@given(cards(), fractions, limits, st.none() | st.integers(1, 1 << 21))
def test_what_is_taken_at_once_is_free_and_within_the_share(
    card: tuple[int, int], fraction: float, limit: int | None, initial: int | None
) -> None:
    total, free = card
    asked = Asked(fraction, limit=limit, initial=initial, strategy="naive_best_fit")
    try:
        budget = plan(asked, total, free)
    except UserError:
        assert max(1, fraction * total) + CONTEXT > free
        return
    assert budget is not None
    assert 1 <= budget.at_once <= min(budget.share, free - CONTEXT)
    # Paddle refuses to take more than 95 % of what its limit leaves.
    assert budget.at_once <= max(1, 0.95 * budget.share)
    if initial is None:
        assert budget.at_once > 0.95 * budget.share - 1
    assert budget.flags() == {LIMIT: str(budget.share), INITIAL: str(budget.at_once)}


def test_without_a_wish_nothing_is_limited() -> None:
    assert plan(Asked(), 24_576, 24_000) is None


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            Asked(0.8, by_default=True),
            "19660 (Global.gpu_memory_fraction 0.8, by default with DALI); 4340 left",
        ),
        (Asked(0.5, FRACTION), f"12288 ({FRACTION} 0.5); 11712 left"),
        (
            Asked(0.5, unused=f"{FRACTION}=0.6 is not used"),
            f"12288 (Global.gpu_memory_fraction 0.5; {FRACTION}=0.6 is not used); 11712 left",
        ),
        (
            Asked(0.5, limit=10_000),
            f"10000 ({LIMIT} 10000; Global.gpu_memory_fraction 0.5 would be 12288); 14000 left",
        ),
        (
            Asked(0.5, limit=20_000),
            f"12288 (Global.gpu_memory_fraction 0.5; {LIMIT} 20000 would be 20000); 11712 left",
        ),
        (
            Asked(0.5, strategy="naive_best_fit"),
            "12288, 11673 of it at once (Global.gpu_memory_fraction 0.5); 11712 left",
        ),
    ],
)
def test_a_budget_tells_who_gets_what_and_why(asked: Asked, text: str) -> None:
    budget = plan(asked, 24_576, 24_000)
    assert budget is not None
    assert budget.describe() == (
        f"GPU memory: 24576 MiB, 576 of it in use before; Paddle's share at most {text} "
        "for DALI and CUDA's libraries"
    )


def test_taking_at_once_what_others_have_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        plan(Asked(0.9, strategy="naive_best_fit"), 24_576, 20_000)
    assert str(caught.value) == (
        f"{STRATEGY} naive_best_fit takes 21012 MiB of GPU memory at once (Global.gpu_memory_fraction 0.9), "
        "beside 512 for CUDA, but 20000 of 24576 MiB are free; lower Global.gpu_memory_fraction"
    )


# --- what DALI needs ---


def test_the_need_of_a_pipeline_is_what_the_formula_says() -> None:
    picture, output = 500 * 375 * 3, 3 * 224 * 224 * 4
    exact = 16 * (16 << 20) + 2 * 256 * picture + 32 * 4 * picture + 4 * 256 * output
    assert pipeline_need(256, 2, (3, 224, 224), 16) == -(-exact // (64 << 20)) * 64


@given(
    st.integers(1, 512),
    st.integers(1, 8),
    st.tuples(st.just(3), *[st.integers(1, 512)] * 2),
    st.integers(1, 64),
)
def test_whatever_is_larger_needs_no_less(
    batch_size: int, prefetch: int, shape: tuple[int, int, int], threads: int
) -> None:
    need = pipeline_need(batch_size, prefetch, shape, threads)
    assert need > 0
    assert need % 64 == 0
    larger = (shape[0], shape[1] + 100, shape[2])
    assert need <= min(
        pipeline_need(batch_size + 9, prefetch, shape, threads),
        pipeline_need(batch_size, prefetch + 1, shape, threads),
        pipeline_need(batch_size, prefetch, larger, threads),
        pipeline_need(batch_size, prefetch, shape, threads + 1),
        pipeline_need(batch_size, prefetch, shape, threads, picture=4000 * 3000 * 3),
    )
    assert need >= pipeline_need(batch_size, prefetch, shape, threads, itemsize=2)


BUDGET = Budget(24_576, 600, 19_660, 0, "Global.gpu_memory_fraction", "Global.gpu_memory_fraction 0.8")
NEEDS = Needs({"train": 576, "eval": 512})


@pytest.mark.parametrize("paddle", [0, 3000])
def test_room_counts_what_paddle_has_yet_to_take(paddle: int) -> None:
    usage = Usage(free=23_600 - paddle, paddle=paddle)
    assert check_room(BUDGET, NEEDS, usage) == (
        "DALI needs about 2112 MiB of GPU memory (train 576, eval 512, CUDA's libraries 1024); 3940 are left"
    )


def test_too_little_room_names_both_figures_and_what_to_change() -> None:
    with pytest.raises(UserError) as caught:
        check_room(BUDGET, NEEDS, Usage(free=21_771, paddle=0))
    assert str(caught.value) == (
        "DALI needs about 2112 MiB of GPU memory (train 576, eval 512, CUDA's libraries 1024), but 2111 are "
        "left: of the GPU's 24576 MiB Paddle's share is 19660 (Global.gpu_memory_fraction 0.8), and others "
        "use 600; lower Global.gpu_memory_fraction, or sampler.batch_size in DataLoader.Train and "
        "DataLoader.Eval"
    )
    assert check_room(BUDGET, NEEDS, Usage(free=21_772, paddle=0)).endswith("; 2112 are left")
    with pytest.raises(UserError, match="but 0 are left"):
        check_room(BUDGET, NEEDS, Usage(free=100, paddle=0))


def test_use_is_told_beside_the_estimate() -> None:
    before, after = Usage(free=23_000, paddle=500), Usage(free=12_000, paddle=10_400)
    assert describe_use(BUDGET, NEEDS, before, after) == (
        "GPU memory in use: Paddle 10400 MiB of its 19660; DALI and CUDA's libraries took 1100, "
        f"estimated {576 + 512 + LIBRARIES}; 12000 free"
    )


# --- whole processes ---


def start(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Starts a run's process on a device of its own choice, with only these memory variables."""
    first = (
        "import json, os, sys; from ppcls import runtime; from ppcls.config.sections.run import Global\n"
        "from ppcls.errors import UserError\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLAGS_")}
    return subprocess.run(
        [sys.executable, "-c", first + code, *arguments],
        cwd=ROOT,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_a_gpu_nothing_is_set() -> None:
    code = (
        "run = runtime.start(Global(gpu_memory_fraction=0.5, use_dali=True, device='auto'))\n"
        f"print(json.dumps([run.device, run.budget, os.environ.get('{LIMIT}')]))"
    )
    assert told(start(code, CUDA_VISIBLE_DEVICES="", **{FRACTION: "0.7"})) == ["cpu", None, None]


def test_flags_are_set_before_paddle_is_imported() -> None:
    code = """
from ppcls.runtime.hardware import Card
Card.free = lambda self: 23_000
runtime.find_card = lambda number, visible, order: Card('GPU-x', 24_000) if number == 1 else None
imports, found = runtime.import_paddle, []
def import_paddle():
    assert 'paddle' not in sys.modules
    found.append({name: os.environ.get(name) for name in json.loads(sys.argv[1])})
    imports()
runtime.import_paddle = import_paddle
run = runtime.start(Global(gpu_memory_fraction=0.5))
print(json.dumps(found))
"""
    variables = {STRATEGY: "naive_best_fit", FRACTION: "0.7", "FLAGS_selected_gpus": "1"}
    expected = {FRACTION: "0.7", LIMIT: "12000", INITIAL: "11400"}
    assert told(start(code, json.dumps(list(expected)), **variables)) == [expected]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_wrong_variable_is_one_message_before_paddle(tmp_path: Path, device: str) -> None:
    arguments = [f"Global.device={device}", f"Global.output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "tools/train.py", "-c", "configs/quickstart.yaml", "-o", *arguments],
        cwd=ROOT,
        env=os.environ | {FRACTION: "1.5"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: environment variable {FRACTION}: expected a number > 0 and < 1, got '1.5'; "
        "correct it, or unset it and use Global.gpu_memory_fraction\n"
    )


ALLOCATE = """
run = runtime.start(Global(gpu_memory_fraction=0.1, device='gpu'))
import paddle  # not before: it reads the flags when it is imported
mib = run.budget.share
kept = paddle.empty([mib // 2, 1 << 20], dtype='uint8')
taken = run.memory_usage().paddle
try:
    paddle.empty([mib * 3 // 4, 1 << 20], dtype='uint8')
    outcome = 'allocated'
except (MemoryError, RuntimeError) as error:
    outcome = str(error)
print(json.dumps([run.budget.total, mib, taken, outcome]))
"""


@pytest.mark.gpu
def test_paddle_can_not_take_more_than_its_share() -> None:
    total, share, taken, outcome = told(start(ALLOCATE, **{STRATEGY: "auto_growth"}))
    assert share == int(0.1 * total)
    assert share // 2 <= taken <= share
    assert re.search("out of memory|ResourceExhausted", outcome, re.IGNORECASE)


@pytest.mark.gpu
def test_naive_best_fit_takes_its_share_at_once_and_no_more() -> None:
    total, share, taken, outcome = told(start(ALLOCATE, **{STRATEGY: "naive_best_fit"}))
    assert share == int(0.1 * total)
    assert 0.94 * share <= taken <= share
    assert re.search("out of memory|not enough|ResourceExhausted", outcome, re.IGNORECASE)


@pytest.mark.gpu
def test_the_environments_fraction_is_made_real() -> None:
    code = (
        "run = runtime.start(Global(device='gpu'))\n"
        f"import paddle; limit = paddle.get_flags('{LIMIT}')['{LIMIT}']\n"
        f"print(json.dumps([run.budget.share, run.budget.total, limit, '{LIMIT}' in os.environ]))"
    )
    share, total, limit, left = told(start(code, **{FRACTION: "0.25"}))
    assert share == int(0.25 * total) == int(limit)
    assert not left, "another process would take it for the user's"
