"""Sentences about the time that DALI saves."""

from __future__ import annotations

import pytest

from ppcls.bench.loader.improvement import Improvement, explain_improvements
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import Label
from ppcls.engine.autotune.processes import Sample


def loader(name: str, *rates: float) -> Candidate[LoaderSetting]:
    labels: dict[str, Label] = {"work": "read only", "loader": name, "workers or threads": 2}
    samples: list[Sample] = [{"images_per_second": rate} for rate in rates]
    return Candidate(LoaderSetting("paddle.io", 2), name, dict, labels, samples=samples)


@pytest.mark.parametrize(
    ("framework", "dali", "text"),
    [
        (
            (100.0, 100.0, 100.0),
            (210.0, 234.0, 260.0),
            "needs 1.709 s per epoch, paddle.io with 2 workers 4 s: 2.3 times (2.1 to 2.6) the speed, "
            "57 % less time (52 to 62 %).",
        ),
        ((100.0,), (234.0,), "4 s: 2.3 times the speed, 57 % less time."),
        ((100.0, 100.0), (70.0, 90.0), "0.8 times (0.7 to 0.9) the speed, 30 % more time (10 to 40 %)."),
    ],
)
def test_sentence_has_seconds_ratio_and_saved_time(
    framework: tuple[float, ...], dali: tuple[float, ...], text: str
) -> None:
    improvement = Improvement(400, loader("paddle.io", *framework), loader("DALI CPU", *dali))
    sentence, _ = explain_improvements([improvement])
    assert sentence.startswith("read only: DALI CPU with 2 threads needs ")
    assert sentence.endswith(text)
    assert improvement.dali.row().labels == improvement.dali.labels


def test_nothing_measured_has_no_sentence() -> None:
    sentences = list(explain_improvements([Improvement(400, loader("paddle.io"), loader("DALI CPU"))]))
    assert len(sentences) == 1
