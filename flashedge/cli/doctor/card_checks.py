"""Checks of the CUDA build: whether its libraries can use this machine's driver and card."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator

from flashedge.cli.doctor.check import BAD, GOOD, Check
from flashedge.engine.card_needs import (
    MIN_DRIVERS,
    DriverReport,
    check_card,
    check_compiler,
    describe_cards,
    find_compiler,
    query_driver,
)
from flashedge.engine.vllm.card_check import CardVerdict, check_installed_build

_WORKING = {
    "cuda": "a multiplication on the card gives the right result",
    "kernels": "vLLM's compiled kernels can be loaded",
    "triton": "Triton can launch its kernels",
}


def check_cuda_build(
    query: Callable[[], DriverReport | str | None] = query_driver,
    check_build: Callable[[], list[CardVerdict]] = check_installed_build,
) -> Iterator[Check]:
    """Yield a check for each thing that the CUDA build needs, up to the first that is missing."""
    for check in _check_machine(query):
        yield check
        if check.verdict == BAD:
            return
    for found in check_build():
        yield Check(
            name=found.name,
            verdict=GOOD if found.error is None else BAD,
            detail=found.error or _WORKING[found.name],
            hint=found.hint,
        )


def _check_machine(query: Callable[[], DriverReport | str | None]) -> Iterator[Check]:
    yield _check_driver(query())
    yield _check_compiler()


def _check_driver(found: DriverReport | str | None) -> Check:
    if found is None:
        return Check(name="driver", verdict=GOOD, detail="not checked: there is no nvidia-smi")
    cuda = max(MIN_DRIVERS)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        cuda = int(importlib.metadata.version("nvidia-cuda-runtime").partition(".")[0])
    for need in check_card(found, cuda):
        return Check(name="driver", verdict=BAD, detail=need.what, hint="; ".join(need.hints))
    assert isinstance(found, DriverReport), "check_card finds fault with a text"
    needed = f"CUDA {cuda} needs driver {MIN_DRIVERS[cuda]} or later"
    return Check(name="driver", verdict=GOOD, detail="; ".join([*describe_cards(found), needed]))


def _check_compiler() -> Check:
    need = check_compiler()
    if need is None:
        good = f"{find_compiler()}, with the headers of Python"
        return Check(name="compiler", verdict=GOOD, detail=good)
    return Check(name="compiler", verdict=BAD, detail=need.what, hint="; ".join(need.hints))
