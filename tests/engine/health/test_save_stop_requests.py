"""When to save between epochs, and that ranks agree on it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from launched_run import launch

from ppcls.engine.health import requests as module
from ppcls.engine.health.requests import SaveStopRequests
from ppcls.errors import SignalExit
from ppcls.recipe.settings import Global
from ppcls.runtime.signals import SignalRequests
from ppcls.runtime.start import Runtime


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def make(settings: Global, runtime: Runtime, signals: SignalRequests | None = None) -> SaveStopRequests:
    return SaveStopRequests(settings, runtime, signals or SignalRequests())


def must_save(requests: SaveStopRequests, update: int) -> bool:
    requests.exchange()
    return requests.must_save(update)


def test_save_steps_requests_a_save_at_each_interval(clock: Clock) -> None:
    requests = make(Global(save_steps=3), Runtime())
    assert [must_save(requests, update) for update in range(1, 8)] == [False, False, True] * 2 + [False]


def test_save_minutes_requests_a_save_after_each_interval(clock: Clock) -> None:
    requests = make(Global(save_minutes=0.5), Runtime())
    found = []
    for update in range(1, 10):
        clock.now += 10
        found.append(must_save(requests, update))
        if found[-1]:
            clock.now += 100  # saving takes time, which does not count
            requests.saved()
    assert found == [False, False, True] * 3


def test_save_is_never_requested_without_an_interval(clock: Clock) -> None:
    requests = make(Global(), Runtime())
    clock.now += 1e6
    assert not any(must_save(requests, update) for update in range(1, 100))


def test_save_minutes_on_other_ranks_ignores_their_clock(clock: Clock) -> None:
    requests = make(Global(save_minutes=1.0), Runtime(rank=1))
    clock.now += 1e6
    assert not must_save(requests, 1)


def test_sigusr1_saves_once_and_continues(clock: Clock) -> None:
    signals = SignalRequests()
    requests = make(Global(), Runtime(), signals)
    assert not must_save(requests, 1)
    signals.receive(signal.SIGUSR1)
    assert must_save(requests, 2)
    assert requests.must_save(2)
    requests.saved()
    requests.raise_if_stopped()
    assert not must_save(requests, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_run(clock: Clock, number: int) -> None:
    signals = SignalRequests()
    requests = make(Global(), Runtime(), signals)
    requests.check()
    signals.receive(number)
    assert must_save(requests, 1)
    with pytest.raises(SignalExit) as caught:
        requests.raise_if_stopped()
    assert caught.value.code == 128 + number
    with pytest.raises(SignalExit):
        requests.check()


RANK = """
import os, sys, time
from ppcls.recipe.settings import Global
from ppcls.runtime.start import start
runtime = start(Global(device="cpu"))
from ppcls.runtime.collectives import RequestExchange
wishes = RequestExchange(runtime, 2)
found = []
for call in range(60):
    time.sleep(0.002 * runtime.rank)
    wanted = [int((call, runtime.rank) == (20, 1)), 3 * ((call, runtime.rank) == (40, 0))]
    found.append(wishes.any_rank(wanted))
print("printed", found, flush=True)
os._exit(0)  # Paddle's threads may crash while the interpreters of the ranks end at different times
"""


def test_ranks_agree_at_the_same_call(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    assert launch([str(script)], ranks=3, logs=tmp_path / "log").returncode == 0
    printed = [
        next(
            line
            for line in (tmp_path / "log" / f"workerlog.{rank}").read_text().splitlines()
            if line.startswith("printed")
        )
        for rank in range(3)
    ]
    assert len(set(printed)) == 1
    calls = json.loads(printed[0][printed[0].index("[[") :])
    first, second = (next(at for at, each in enumerate(calls) if each[part]) for part in (0, 1))
    assert 20 <= first <= 28
    assert 40 <= second <= 48
    assert [sum(each[part] for each in calls) for part in (0, 1)] == [1, 3]
