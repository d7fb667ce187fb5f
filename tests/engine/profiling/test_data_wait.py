"""Only what a device waits for data counts."""

from __future__ import annotations

import threading
import time

import pytest

from ppcls.engine.profiling.data_wait import DataWait


class Device:
    """An event that is done once the test says so."""

    def __init__(self, *, done: bool = False) -> None:
        self.done = threading.Event()
        self.asked = threading.Event()
        if done:
            self.done.set()

    def query(self) -> bool:
        self.asked.set()
        return self.done.is_set()


def test_data_wait_on_a_cpu_counts_completely() -> None:
    now = iter([10.0, 12.5, 20.0, 21.0])
    wait = DataWait(clock=lambda: next(now))
    for _ in range(2):
        with wait.waiting():
            pass
    assert wait.seconds == 3.5


def test_data_wait_of_idle_device_equals_that_of_the_host() -> None:
    now = iter([10.0, 12.5])
    wait = DataWait(lambda: Device(done=True), clock=lambda: next(now))
    with wait.waiting():
        pass
    assert wait.seconds == 2.5


def test_data_wait_of_busy_device_is_zero() -> None:
    device = Device()
    wait = DataWait(lambda: device)
    with wait.waiting():
        device.asked.wait()
        time.sleep(0.02)
    assert wait.seconds == 0.0
    device.done.set()  # lets the watcher end


def test_data_wait_starts_when_the_device_becomes_idle() -> None:
    device = Device()
    wait = DataWait(lambda: device)
    began = time.perf_counter()
    with wait.waiting():
        time.sleep(0.05)
        idle = time.perf_counter()
        device.done.set()
        assert wait._watcher is not None
        wait._watcher.submit(int).result()  # on a slow machine, the thread notices it later
    ended = time.perf_counter()
    assert 0.0 < wait.seconds <= ended - idle < ended - began


@pytest.mark.gpu
def test_data_wait_of_working_gpu_is_zero() -> None:
    import paddle

    from ppcls.runtime.start import Runtime

    paddle.set_device("gpu")
    matrix = paddle.randn([4096, 4096])
    paddle.matmul(matrix, matrix)
    paddle.device.cuda.synchronize()
    from ppcls.engine.profiling.data_wait import build_data_wait

    wait = build_data_wait(Runtime(device="gpu", device_id=0))
    for _ in range(200):
        paddle.matmul(matrix, matrix)
    with wait.waiting():
        pass
    assert wait.seconds == 0.0
    paddle.device.cuda.synchronize()
    with wait.waiting():
        time.sleep(0.05)
    assert wait.seconds >= 0.05
