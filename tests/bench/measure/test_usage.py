"""Resource usage; the card is simulated, because the machine may have none."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ppcls.bench.measure.usage import UsageMeter
from ppcls.runtime.hardware import Card, CardLoad

BUSY = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"


def work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_cpu_time_counts_between_start_and_stop() -> None:
    meter = UsageMeter()
    work(0.1)
    meter.start()
    work(0.1)
    usage = meter.stop()
    assert usage == {"cpu_seconds": pytest.approx(0.1, abs=0.05)}


def test_cpu_time_includes_children() -> None:
    code = BUSY.format(seconds=0.3)  # the system counts in steps of 0.01
    code += "print(flush=True)\ninput()\n"
    meter = UsageMeter()
    meter.start()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as child:  # type: ignore[call-overload]
        child.stdout.readline()
        usage = meter.stop()
        child.communicate("\n")
    assert usage["cpu_seconds"] >= 0.2


def test_card_loads_become_medians_and_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([CardLoad(0.9, None, 100), CardLoad(1.0, 0.5, 300), CardLoad(None, 0.7, 200)])
    last = CardLoad(1.0, 0.6, 50)
    monkeypatch.setattr(Card, "load", lambda self: next(loads, last))
    monkeypatch.setattr("ppcls.bench.measure.usage._INTERVAL", 0.01)
    meter = UsageMeter(Card("GPU-1", 1000))
    meter.start()
    while len(meter._loads) < 4:
        time.sleep(0.01)
    usage = meter.stop()
    assert (usage["gpu_load"], usage["jpeg_load"], usage["gpu_memory"]) == (1.0, 0.6, 300)


def test_card_without_load_reports_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Card, "load", lambda self: CardLoad(None, None, 100))
    meter = UsageMeter(Card("MIG-1", 1000))
    meter.start()
    usage = meter.stop()
    assert usage.keys() == {"cpu_seconds", "gpu_memory"}
    assert usage["gpu_memory"] == 100
