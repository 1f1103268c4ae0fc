"""What holds for all tests."""

import gc
import os
import signal

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads in each process only wait for cores

# Textual and hypothesis make millions of objects that live shortly, beside the million of vLLM's
# and PyTorch's that stay. With Python's thresholds the collector takes a third of the time.
gc.set_threshold(20_000, 50, 100)


def pytest_configure(config: pytest.Config) -> None:
    """Set up this test process."""
    config.stash[gc_collect_iterations_key] = 1  # pytest's five, at the end, take seconds each
    # A shell lets what it starts in the background ignore Ctrl-C, and child processes inherit that.
    # The tests that send Ctrl-C to commands want the usual answer.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
