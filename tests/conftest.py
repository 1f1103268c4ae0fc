"""What holds for all tests."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads in each process only wait for cores


def pytest_configure() -> None:
    """Undo that a shell ignores Ctrl-C for what it starts in the background, and children inherit
    that: the tests that send it to commands want the usual answer."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
