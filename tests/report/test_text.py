from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.text import clock, describe

NUMBER = r"(?:-?[\d.]+(?:e[-+]\d+)?|-?inf|nan)"
MEASURES = rf"loss (?P<loss>{NUMBER})(?: \w+ {NUMBER})*"
TRAIN = re.compile(
    rf"\[Train\] epoch (\d+)/(\d+) step (\d+)/(\d+) {MEASURES} lr {NUMBER} {NUMBER} img/s "
    rf"data (?P<data>{NUMBER})% eta (?:\d+:\d\d:\d\d|\?)"
)
EVAL = re.compile(rf"\[Eval\] epoch (\d+) {MEASURES} (?P<images>\d+) images {NUMBER} s(?: \(best\))?")

counts = st.integers(0, 10**7)
names = st.from_regex(r"[a-z]\w{0,8}", fullmatch=True)
# Below the largest floats, which four digits round up to infinity.
numbers = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])
metrics = st.dictionaries(names, numbers, max_size=4)
steps = st.builds(
    StepRecord,
    epoch=counts,
    epochs=counts,
    step=counts,
    steps_per_epoch=counts,
    update=counts,
    loss=numbers,
    metrics=metrics,
    learning_rate=numbers,
    images_per_second=numbers,
    data_wait=st.floats(0, 1),
    eta_seconds=st.floats(max_value=1e9),
)
evaluations = st.builds(
    EvalRecord,
    epoch=counts,
    update=counts,
    loss=numbers,
    metrics=metrics,
    images=counts,
    seconds=st.floats(0, 1e9),
    best=st.booleans(),
)


def test_lines_as_documented(step: StepRecord, evaluation: EvalRecord) -> None:
    assert describe(step) == (
        "[Train] epoch 3/20 step 40/90 loss 0.1234 top1 0.9876 lr 0.00123 1234 img/s data 3% eta 0:01:12"
    )
    assert describe(evaluation) == (
        "[Eval] epoch 3 loss 0.1200 top1 0.9861 top5 1.0000 360 images 1.2 s (best)"
    )


@given(steps)
def test_every_step_is_one_line_of_one_form(record: StepRecord) -> None:
    match = TRAIN.fullmatch(describe(record))
    assert match, describe(record)
    place = (record.epoch, record.epochs, record.step, record.steps_per_epoch)
    assert tuple(map(int, match.groups()[:4])) == place
    assert_close(float(match["loss"]), record.loss)
    assert abs(float(match["data"]) - 100 * record.data_wait) <= 0.5 + 1e-9


@given(evaluations)
def test_every_evaluation_is_one_line_of_one_form(record: EvalRecord) -> None:
    line = describe(record)
    match = EVAL.fullmatch(line)
    assert match, line
    assert int(match["images"]) == record.images
    assert_close(float(match["loss"]), record.loss)
    assert line.endswith(" (best)") == record.best


def assert_close(shown: float, value: float) -> None:
    if math.isfinite(value):
        assert shown == pytest.approx(value, rel=1e-3, abs=6e-5)
    else:
        assert str(shown) == str(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.6, "0:01:00"),
        (72, "0:01:12"),
        (3600 * 30 + 61, "30:01:01"),
        (math.nan, "?"),
        (math.inf, "?"),
        (-1, "?"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
