"""Measure a device and the cost of a model's engine steps on it, fit a roofline and store both.

The package imports nothing else of FlashEdge and no vLLM, and torch only in a separate process. The
caller provides a probe for each model (`measure.ModelProbe`).

    gpu.py         the NVIDIA cards that CUDA shows, their state and data sheets; the device's name
    card_watch.py  errors that the driver reports while a program runs, and who holds memory
    bench.py       GEMM, memory, transfer and launch figures, in a separate process
    roofline.py    the fit: overhead + max(compute, memory)
    measure.py     the cost of each model's steps by its probe, a whole profile within a time limit
    profile.py     the JSON files: the profile, what engines took besides KV
"""


class ProfileError(Exception):
    """A measurement failed or could not be stored. `hint` says what to do, if known."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
