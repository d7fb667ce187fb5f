"""The division of a GPU's memory: computed everywhere, and measured on a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
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
    MemoryBudget,
    MemoryNeeds,
    MemoryRequest,
    MemoryUsage,
    check_dali_memory,
    describe_memory_use,
    divide_memory,
    estimate_pipeline_memory,
    read_memory_request,
)

fractions = st.floats(0, 1, exclude_min=True, exclude_max=True)
totals = st.integers(1, 1 << 20)


@st.composite
def cards(draw: st.DrawFn) -> tuple[int, int]:
    """Returns total and free MiB."""
    total = draw(totals)
    return total, draw(st.integers(0, total))


limits = st.none() | st.integers(1, 1 << 21)


# --- requests ---


@pytest.mark.parametrize(
    ("fraction", "use_dali", "variables", "asked"),
    [
        (None, False, {}, MemoryRequest()),
        (None, True, {}, MemoryRequest(0.8, is_default=True)),
        (0.5, True, {}, MemoryRequest(0.5)),
        (None, True, {FRACTION: "0.6"}, MemoryRequest(0.6, FRACTION)),
        (None, False, {FRACTION: "6e-1"}, MemoryRequest(0.6, FRACTION)),
        (0.5, False, {FRACTION: "0.5"}, MemoryRequest(0.5)),
        (0.5, False, {FRACTION: "0.6"}, MemoryRequest(0.5, ignored=f"{FRACTION}=0.6 is ignored")),
        (None, True, {LIMIT: "4096"}, MemoryRequest(limit=4096)),
        (0.5, True, {LIMIT: "4096"}, MemoryRequest(0.5, limit=4096)),
        (None, True, {LIMIT: "0", FRACTION: "", STRATEGY: ""}, MemoryRequest(0.8, is_default=True)),
        (
            None,
            False,
            {STRATEGY: "naive_best_fit", INITIAL: "9"},
            MemoryRequest(initial=9, strategy="naive_best_fit"),
        ),
    ],
)
def test_request_prefers_the_config_to_the_environment(
    fraction: float | None, use_dali: bool, variables: dict[str, str], asked: MemoryRequest
) -> None:
    assert read_memory_request(fraction, use_dali, variables) == asked


@pytest.mark.parametrize("text", ["0", "1", "-0.5", "1.5", "nan", "inf", "most", "80%", " "])
def test_invalid_fraction_in_the_environment_is_rejected(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_memory_request(0.5, False, {FRACTION: text})
    assert str(caught.value) == (
        f"environment variable {FRACTION}: expected a number > 0 and < 1, got '{text}'; "
        "correct the value, or unset the variable and use Global.gpu_memory_fraction"
    )


@pytest.mark.parametrize("name", [LIMIT, INITIAL])
@pytest.mark.parametrize("text", ["-1", "1.5", "4 GB", "²"])
def test_invalid_size_in_the_environment_is_rejected(name: str, text: str) -> None:
    with pytest.raises(
        UserError, match=rf"variable {name}: expected an integer number of MiB, got '{text}'; "
    ):
        read_memory_request(None, True, {name: text})


# --- the division ---


@given(cards(), fractions, limits)
def test_budget_parts_sum_to_the_total(card: tuple[int, int], fraction: float, limit: int | None) -> None:
    total, free = card
    budget = divide_memory(MemoryRequest(fraction, limit=limit), total, free)
    assert budget is not None
    assert 1 <= budget.share <= total
    assert budget.share <= max(1, fraction * total)
    if limit is not None:
        assert budget.share <= limit  # the user's limit is never exceeded
    assert 0 <= budget.rest <= free
    if budget.share <= free:
        assert budget.used_before + budget.share + budget.rest == total
    assert budget.flags() == {LIMIT: str(budget.share)}


@given(cards(), st.integers(1, 1 << 21))
def test_limit_alone_is_the_share(card: tuple[int, int], limit: int) -> None:
    total, free = card
    budget = divide_memory(MemoryRequest(limit=limit), total, free)
    assert budget is not None
    assert budget.share == min(limit, total)
    assert budget.setting == LIMIT


@given(cards(), fractions, fractions)
def test_larger_fraction_leaves_less(card: tuple[int, int], one: float, other: float) -> None:
    assume(one <= other)
    small, large = (divide_memory(MemoryRequest(each), *card) for each in (one, other))
    assert small is not None
    assert large is not None
    assert small.share <= large.share
    assert small.rest >= large.rest


@given(cards(), fractions, limits, st.none() | st.integers(1, 1 << 21))
def test_initial_allocation_is_free_and_within_the_share(
    card: tuple[int, int], fraction: float, limit: int | None, initial: int | None
) -> None:
    total, free = card
    asked = MemoryRequest(fraction, limit=limit, initial=initial, strategy="naive_best_fit")
    try:
        budget = divide_memory(asked, total, free)
    except UserError:
        assert max(1, fraction * total) + CONTEXT > free
        return
    assert budget is not None
    assert 1 <= budget.initial <= min(budget.share, free - CONTEXT)
    # Paddle allocates at most 95 % of its limit.
    assert budget.initial <= max(1, 0.95 * budget.share)
    if initial is None:
        assert budget.initial > 0.95 * budget.share - 1
    assert budget.flags() == {LIMIT: str(budget.share), INITIAL: str(budget.initial)}


def test_empty_request_sets_no_limit() -> None:
    assert divide_memory(MemoryRequest(), 24_576, 24_000) is None


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            MemoryRequest(0.8, is_default=True),
            "19660 MiB (Global.gpu_memory_fraction 0.8, the default with DALI); 4340 MiB left",
        ),
        (MemoryRequest(0.5, FRACTION), f"12288 MiB ({FRACTION} 0.5); 11712 MiB left"),
        (
            MemoryRequest(0.5, ignored=f"{FRACTION}=0.6 is ignored"),
            f"12288 MiB (Global.gpu_memory_fraction 0.5; {FRACTION}=0.6 is ignored); 11712 MiB left",
        ),
        (
            MemoryRequest(0.5, limit=10_000),
            f"10000 MiB ({LIMIT} 10000; Global.gpu_memory_fraction 0.5 would be 12288); 14000 MiB left",
        ),
        (
            MemoryRequest(0.5, limit=20_000),
            f"12288 MiB (Global.gpu_memory_fraction 0.5; {LIMIT} 20000 would be 20000); 11712 MiB left",
        ),
        (
            MemoryRequest(0.5, strategy="naive_best_fit"),
            "12288 MiB, 11673 MiB of it allocated at the start (Global.gpu_memory_fraction 0.5); "
            "11712 MiB left",
        ),
    ],
)
def test_budget_describes_shares_and_reason(asked: MemoryRequest, text: str) -> None:
    budget = divide_memory(asked, 24_576, 24_000)
    assert budget is not None
    assert budget.describe() == (
        f"GPU memory: 24576 MiB, 576 MiB in use before; Paddle's share at most {text} "
        "for DALI and CUDA's libraries"
    )


def test_initial_allocation_larger_than_free_memory_is_rejected() -> None:
    text = r"allocates 21012 MiB .* needs 512 MiB, but only 20000 of 24576 MiB are free; lower Global"
    with pytest.raises(UserError, match=text):
        divide_memory(MemoryRequest(0.9, strategy="naive_best_fit"), 24_576, 20_000)


# --- the needs of DALI ---


def test_pipeline_memory_follows_the_formula() -> None:
    picture, output = 500 * 375 * 3, 3 * 224 * 224 * 4
    exact = 16 * (16 << 20) + 2 * 256 * picture + 32 * 4 * picture + 4 * 256 * output
    assert estimate_pipeline_memory(256, 2, (3, 224, 224), 16) == -(-exact // (64 << 20)) * 64


@given(
    st.integers(1, 512),
    st.integers(1, 8),
    st.tuples(st.just(3), *[st.integers(1, 512)] * 2),
    st.integers(1, 64),
)
def test_larger_pipeline_needs_no_less(
    batch_size: int, prefetch: int, shape: tuple[int, int, int], threads: int
) -> None:
    need = estimate_pipeline_memory(batch_size, prefetch, shape, threads)
    assert need > 0
    assert need % 64 == 0
    larger = (shape[0], shape[1] + 100, shape[2])
    assert need <= min(
        estimate_pipeline_memory(batch_size + 9, prefetch, shape, threads),
        estimate_pipeline_memory(batch_size, prefetch + 1, shape, threads),
        estimate_pipeline_memory(batch_size, prefetch, larger, threads),
        estimate_pipeline_memory(batch_size, prefetch, shape, threads + 1),
    )
    assert need >= estimate_pipeline_memory(batch_size, prefetch, shape, threads, itemsize=2)


BUDGET = MemoryBudget(24_576, 600, 19_660, 0, "Global.gpu_memory_fraction", "Global.gpu_memory_fraction 0.8")
NEEDS = MemoryNeeds({"train": 576, "eval": 512})


@pytest.mark.parametrize("paddle", [0, 3000])
def test_dali_memory_excludes_the_rest_of_paddles_share(paddle: int) -> None:
    usage = MemoryUsage(free=23_600 - paddle, paddle=paddle)
    assert check_dali_memory(BUDGET, NEEDS, usage) == (
        "DALI needs about 2112 MiB of GPU memory (train 576, eval 512, CUDA's libraries 1024); "
        "3940 MiB are left"
    )


def test_too_little_memory_for_dali_is_rejected() -> None:
    with pytest.raises(UserError) as caught:
        check_dali_memory(BUDGET, NEEDS, MemoryUsage(free=21_771, paddle=0))
    assert re.search(
        r"needs about 2112 MiB .*, but only 2111 MiB are left\. .*\. Lower Global.gpu", str(caught.value)
    )
    assert check_dali_memory(BUDGET, NEEDS, MemoryUsage(free=21_772, paddle=0)).endswith(
        "; 2112 MiB are left"
    )
    with pytest.raises(UserError, match="but only 0 MiB are left"):
        check_dali_memory(BUDGET, NEEDS, MemoryUsage(free=100, paddle=0))


def test_memory_use_is_described_with_the_estimate() -> None:
    before, after = MemoryUsage(free=23_000, paddle=500), MemoryUsage(free=12_000, paddle=10_400)
    assert describe_memory_use(BUDGET, NEEDS, before, after) == (
        "GPU memory in use: Paddle 10400 MiB of its 19660 MiB; DALI and CUDA's libraries 1100 MiB, "
        f"estimated {576 + 512 + LIBRARIES} MiB; 12000 MiB free"
    )


# --- whole processes ---


def run_code(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process with only these memory variables."""
    first = (
        "import json, os, sys; from ppcls.runtime import paddle_import, start as module\n"
        "from ppcls.runtime.settings import RuntimeSettings\n"
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


def json_output(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_cpu_run_sets_no_flags() -> None:
    code = (
        "run = module.start(RuntimeSettings(gpu_memory_fraction=0.5, use_dali=True, device='auto'))\n"
        f"print(json.dumps([run.device, run.budget, os.environ.get('{LIMIT}')]))"
    )
    assert json_output(run_code(code, CUDA_VISIBLE_DEVICES="", **{FRACTION: "0.7"})) == ["cpu", None, None]


def test_flags_are_set_before_paddle_is_imported() -> None:
    code = """
from ppcls.runtime.hardware import Card
Card.free = lambda self: 23_000
module.find_card = lambda number, visible, order: Card('GPU-x', 24_000) if number == 1 else None
imports, found = paddle_import.import_paddle, []
def import_paddle():
    assert 'paddle' not in sys.modules
    found.append({name: os.environ.get(name) for name in json.loads(sys.argv[1])})
    imports()
paddle_import.import_paddle = import_paddle
run = module.start(RuntimeSettings(gpu_memory_fraction=0.5))
print(json.dumps(found))
"""
    variables = {STRATEGY: "naive_best_fit", FRACTION: "0.7", "FLAGS_selected_gpus": "1"}
    expected = {FRACTION: "0.7", LIMIT: "12000", INITIAL: "11400"}
    assert json_output(run_code(code, json.dumps(list(expected)), **variables)) == [expected]


@pytest.mark.parametrize("device", ["auto", pytest.param("cpu", marks=pytest.mark.slow)])
def test_invalid_variable_is_one_line_on_the_command_line(
    make_yaml: Callable[..., Path], device: str
) -> None:
    done = subprocess.run(
        [sys.executable, "tools/train.py", "-c", str(make_yaml(Global__device=device))],
        cwd=ROOT,
        env=os.environ | {FRACTION: "1.5"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: environment variable {FRACTION}: expected a number > 0 and < 1")
    assert done.stderr.count("\n") == 1


ALLOCATE = """
run = module.start(RuntimeSettings(gpu_memory_fraction=0.1, device='gpu'))
import paddle  # after start: Paddle reads the flags at import
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
def test_paddle_cannot_exceed_its_share() -> None:
    total, share, taken, outcome = json_output(run_code(ALLOCATE, **{STRATEGY: "auto_growth"}))
    assert share == int(0.1 * total)
    assert share // 2 <= taken <= share
    assert re.search("out of memory|ResourceExhausted", outcome, re.IGNORECASE)


@pytest.mark.gpu
def test_naive_best_fit_allocates_its_share_at_the_start() -> None:
    total, share, taken, outcome = json_output(run_code(ALLOCATE, **{STRATEGY: "naive_best_fit"}))
    assert share == int(0.1 * total)
    assert 0.94 * share <= taken <= share
    assert re.search("out of memory|not enough|ResourceExhausted", outcome, re.IGNORECASE)


@pytest.mark.gpu
def test_fraction_in_the_environment_becomes_a_limit() -> None:
    code = (
        "run = module.start(RuntimeSettings(device='gpu'))\n"
        f"import paddle; limit = paddle.get_flags('{LIMIT}')['{LIMIT}']\n"
        f"print(json.dumps([run.budget.share, run.budget.total, limit, '{LIMIT}' in os.environ]))"
    )
    share, total, limit, left = json_output(run_code(code, **{FRACTION: "0.25"}))
    assert share == int(0.25 * total) == int(limit)
    assert not left, "a child process would take it for the user's"


@pytest.mark.parametrize(
    ("fraction", "variables", "note"),
    [
        (None, {}, ""),
        (None, {"FLAGS_fraction_of_gpu_memory_to_use": "0.5"}, "FLAGS_fraction_of_gpu_memory_to_use has no"),
        (0.5, {}, "Global.gpu_memory_fraction has no effect without a GPU"),
        (
            0.5,
            {"FLAGS_gpu_memory_limit_mb": "100"},
            "Global.gpu_memory_fraction and FLAGS_gpu_memory_limit_mb have no effect without a GPU",
        ),
    ],
)
def test_memory_settings_without_a_gpu_are_noted(
    fraction: float | None, variables: dict[str, str], note: str
) -> None:
    for use_dali in (False, True):  # DALI's default share is not a setting of the user
        text = read_memory_request(fraction, use_dali, variables).describe_unused()
        assert text.startswith(note)
        assert bool(text) == bool(note)
