"""Ctrl-C that comes where Python drops exceptions."""

from __future__ import annotations

import signal
import threading

import pytest

from ppcls.engine.interrupt import heard


class _Ends:
    """Ctrl-C comes while it is tidied up."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("error")
def test_one_that_got_lost_in_a_finalizer_is_heard_and_not_shown() -> None:
    with heard() as interrupt:
        interrupt.check()
        _Ends()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_one_that_comes_as_usual_ends_the_block_at_once() -> None:
    after = []

    def interrupted() -> None:
        with heard():
            signal.raise_signal(signal.SIGINT)
            after.append("went on")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert after == []


def test_the_handler_before_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with heard():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_another_ones_handler_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heard() as interrupt:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            interrupt.check()
    finally:
        signal.signal(signal.SIGINT, before)
    went = []

    def elsewhere() -> None:
        with heard() as interrupt:
            interrupt.check()
            went.append(True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert went == [True]
