"""SIGTERM is an interrupt inside the block, and what it was before behind it."""

import signal
import threading

import pytest

from workbench.interrupts import sigterm_as_interrupt


def test_sigterm_interrupts_and_the_earlier_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_as_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_leaves_the_handler_alone():
    seen = []

    def work():
        with sigterm_as_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
